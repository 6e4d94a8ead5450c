"""Dequantization against the gguf package, bit for bit."""

import numpy as np
import pytest
import torch

from executors.gguf.types import BY_NAME
from executors.llm.checkpoint.gguf_blocks import DEQUANTIZED, dequantize
from tests.executors.kernels.blocks import dequantized
from tests.tiers import sweep


def _reference(raw: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return dequantized(kind, raw)


def _same(mine: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether all bits are equal, NaN apart from its payload."""
    numbers = ~np.isnan(theirs)
    return np.array_equal(np.isnan(mine), ~numbers) and np.array_equal(
        mine.view(np.uint32)[numbers], theirs.view(np.uint32)[numbers]
    )


@sweep(every=1)
@pytest.mark.parametrize("kind", DEQUANTIZED)
@pytest.mark.parametrize("blocks", [1, 3, 1000, 9000])
def test_random_blocks_equal_the_reference(kind: str, blocks: int):
    rng = np.random.default_rng(blocks)
    block = BY_NAME[kind]
    # Any bytes: scales that are subnormal, infinite or NaN, and reserved codes, are among them.
    raw = rng.integers(0, 256, (blocks, block.num_bytes), dtype=np.uint8)
    out = torch.empty(blocks, block.values)

    dequantize(torch.from_numpy(raw), kind, out)

    assert _same(out.numpy(), _reference(raw, kind))


@sweep(every=1)
@pytest.mark.parametrize("kind", DEQUANTIZED)
@pytest.mark.parametrize("byte", [0, 1, 127, 128, 255])
def test_uniform_blocks_equal_the_reference(kind: str, byte: int):
    block = BY_NAME[kind]
    raw = np.full((5, block.num_bytes), byte, dtype=np.uint8)
    out = torch.empty(5, block.values)

    dequantize(torch.from_numpy(raw), kind, out)

    assert _same(out.numpy(), _reference(raw, kind))


@sweep(every=1)
@pytest.mark.parametrize("byte", range(256))
def test_every_exponent_of_mxfp4(byte: int):
    raw = np.arange(17, dtype=np.uint8)[None] * 15
    raw[0, 0] = byte
    out = torch.empty(1, 32)

    dequantize(torch.from_numpy(raw), "MXFP4", out)

    assert _same(out.numpy(), _reference(raw, "MXFP4"))
