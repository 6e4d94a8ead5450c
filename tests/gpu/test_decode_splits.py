"""Decode attention with its keys shared by one program and by many, whatever the device at hand would choose.

`in_splits` and `split_error` of the check at the start say how a number of splits is forced: this file and that check know of no
other way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executors.llm.attention.check import LIMITS
from executors.llm.attention.packed import StepMeta
from executors.llm.attention.triton_attention import TritonAttention
from executors.llm.kernel_support.kernel_check import (
    SPLITS,
    border_lengths,
    border_problem,
    in_splits,
    split_error,
)
from tests.executors.kernels.steps import spec
from tests.tiers import sweep

pytestmark = pytest.mark.long

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FP16, FP32, E4M3 = torch.float16, torch.float32, torch.float8_e4m3fn
BF16 = torch.bfloat16
LIMITS_HERE = {FP32: 1e-5, FP16: LIMITS[FP16] / 4, BF16: LIMITS[BF16] / 4}
SHAPES: dict[str, tuple[tuple[int, int], int, torch.dtype, int, dict[str, Any]]] = {
    "as served": ((2, 1), 128, FP16, 16, {}),
    "tiles of 128": ((2, 1), 64, FP16, 16, {"softcap": 20.0}),
    "float32, a window": ((3, 1), 32, FP32, 64, {"windows": (130,)}),
    "fp8": ((2, 1), 32, FP16, 16, {"kv_dtype": E4M3, "kv_scales": ((0.02, 0.5),)}),
}
if DEVICE.type == "cuda":  # the interpreter's products of bf16 operands are wrong
    SHAPES["bf16, as served"] = (16, 8), 128, BF16, 16, {}
    SHAPES["bf16 over fp8"] = (16, 8), 128, BF16, 16, SHAPES["fp8"][-1]
"""Heads, their size, dtype, tokens of a page, and what else there is."""
LONG = ("tiles of 128", "float32, a window")
"""Interpreted, each takes half a minute."""


@pytest.mark.long(every=4)
@sweep(every=5)
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.long] if one in LONG else []) for one in SHAPES]
)
@torch.inference_mode()
def test_any_number_of_splits_gives_the_same(name: str, splits: int) -> None:
    """Items in order and listed, with ends on, before and behind borders of pages and tiles."""
    heads, dim, dtype, page, more = SHAPES[name]
    model = replace(spec(*heads, dim, dtype), device=DEVICE, **more)
    problem = border_problem(model, page)
    assert split_error(TritonAttention(model), problem, splits) < LIMITS_HERE[dtype]
    assert list(problem.past + 1) == border_lengths(model, page), (
        "the next number of splits has the same to compute"
    )


@pytest.mark.parametrize(("dim", "page"), [(128, 16), (64, 16), (32, 64)])
def test_the_lengths_end_on_borders_and_every_split_has_keys(dim: int, page: int) -> None:
    tile = max(16, min(128, 8192 // dim))
    lengths = border_lengths(spec(2, 1, dim, FP16), page)
    for border in (page, tile):
        assert {length % border for length in lengths} >= {0, 1, border - 1}
    assert lengths[0] >= 49 * tile and min(lengths) == 1
    assert len(set(lengths)) == len(lengths)


def test_what_is_forced() -> None:
    nothing = torch.zeros(0, dtype=torch.int32)
    lengths = torch.tensor([60, 3, 500], dtype=torch.int32)
    meta = StepMeta(
        *[nothing] * 4, lengths, nothing, nothing, None, 3, torch.zeros(3, 6, dtype=torch.int32), nothing
    )
    ordered, listed = in_splits(meta, 49, False), in_splits(meta, 17, True)
    assert ordered.decodes is None and listed.decodes is not None
    assert listed.decodes.tolist() == [[2, 2], [1, 1], [0, 0]]
    for made, rows in ((ordered, [60, 3, 500]), (listed, [500, 3, 60])):
        pieces = made.pieces.numpy()
        most = 49 if made is ordered else 17
        assert np.bincount(pieces[:, 0]).tolist() == [min(most, length) for length in rows]
        assert [pieces[pieces[:, 0] == row, 2].max() for row in range(3)] == rows
