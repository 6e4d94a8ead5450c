"""Weights that are packed as a file has them, against the `gguf` package's own dequantization, on every instruction set here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executors.kernels import CPU_ISAS
from executors.kernels.cpu import (
    ACTIVATIONS,
    STORED_KINDS,
    MergedWeight,
    PackedWeight,
    StoredRows,
    cpu_kernels,
)
from tests.executors.kernels.blocks import block_size, dequantized, random_rows
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, both_dtypes, every_isa

every_kind = pytest.mark.parametrize("kind", list(STORED_KINDS))
ROWS = [1, 15, 32, 70]
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 13, 29]


def packed(raw: np.ndarray, kind: str, isa: str, gated: bool = False, cut: int = 0) -> PackedWeight:
    columns = dequantized(kind, raw[:1]).shape[1]
    weight = PackedWeight(cpu_kernels(isa), len(raw), columns, kind, gated)
    for begin, end in ((0, cut), (cut, len(raw))):
        if end > begin:
            weight.fill_blocks(np.ascontiguousarray(raw[begin:end]), begin)
    return weight


def whole_numbers(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    """Activations that int8 holds exactly, with scales that are powers of two: blocks of whole numbers, 127 the largest."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-127, 128, (rows, columns // 32, 32)).astype(np.float32)
    x[:, :, 7] = 127.0
    x *= 2.0 ** rng.integers(-3, 3, (rows, columns // 32, 1))
    return torch.from_numpy(x.reshape(rows, columns))


def exact(raw: np.ndarray, kind: str, x: torch.Tensor) -> torch.Tensor:
    return x.double() @ torch.from_numpy(dequantized(kind, raw)).double().T


@every_isa
@every_kind
def test_every_weight_is_the_one_of_the_file(isa: str, kind: str) -> None:
    """One weight at a time: 127 times it, over 127."""
    columns = 2 * block_size(kind)
    raw = random_rows(kind, 35, columns)
    weight, x = packed(raw, kind, isa), torch.eye(columns) * 127.0
    got = weight(x).T / 127.0
    wanted = torch.from_numpy(dequantized(kind, raw))
    assert torch.allclose(got, wanted, rtol=3e-7, atol=1e-6 * float(wanted.abs().max()))


@every_isa
@every_kind
@both_dtypes
def test_products(isa: str, kind: str, dtype: torch.dtype) -> None:
    columns = max(96, 3 * block_size(kind))
    x = whole_numbers(max(SIZES), columns)
    for rows in ROWS:
        raw = random_rows(kind, rows, columns, seed=rows)
        weight, wanted = packed(raw, kind, isa, cut=rows // 3), exact(raw, kind, x)
        size = float(wanted.abs().max())
        for count in SIZES:
            got = weight(x[:count].to(dtype))
            assert got.dtype is dtype and got.shape == (count, rows)
            assert (got - wanted[:count]).abs().max() <= (1e-6 if dtype is FP32 else 2**-8) * size
        bias = torch.linspace(-1.0, 1.0, rows)
        weight.set_bias(bias)
        assert (weight(x[:5]) - bias - wanted[:5]).abs().max() <= 1e-6 * size + 1e-6


@every_isa
@every_kind
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F], ids=hex)
def test_extreme_codes(isa: str, kind: str, byte: int) -> None:
    """Sums of the largest codes and activations overflow nothing; a code of -128 is one."""
    columns = 512
    raw = random_rows(kind, 33, columns)
    clean = raw.copy()
    raw[:] = byte
    size = raw.shape[1] // (columns // block_size(kind))
    halves, clean_blocks = raw.reshape(-1, size), clean.reshape(-1, size)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}.get(kind, (0,)):
        halves[:, at : at + 2] = clean_blocks[:, at : at + 2]
    if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        halves[:, 2:4] = clean_blocks[:, 2:4]
    if kind == "MXFP4":
        halves[:, 0] = 120
    x = torch.cat(
        [torch.full((1, columns), 127.0), torch.full((1, columns), -127.0), whole_numbers(7, columns)]
    )
    wanted = exact(raw, kind, x)
    assert (packed(raw, kind, isa)(x) - wanted).abs().max() <= 1e-6 * max(1e-9, float(wanted.abs().max()))


@every_isa
@every_kind
@pytest.mark.parametrize("inner", [16, 1, 37])
def test_gate_and_up(isa: str, kind: str, inner: int) -> None:
    columns = max(64, block_size(kind))
    raw = random_rows(kind, 2 * inner, columns)
    x = whole_numbers(9, columns) * 1e-3
    gate, up = exact(raw, kind, x).chunk(2, -1)
    for name, act in (("silu", torch.nn.functional.silu), ("gelu_pytorch_tanh", _gelu)):
        weight = packed(raw, kind, isa, gated=True, cut=inner)
        wanted = act(gate) * up
        # The scales are no powers of two here: activations are off by what int8 rounds, at most 1e-7 of them.
        error = (weight(x, ACTIVATIONS[name]) - wanted).abs().max()
        assert error <= 5e-6 * max(1.0, float(wanted.abs().max()))


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


@every_kind
def test_every_instruction_set_gives_the_same_bits(kind: str) -> None:
    columns = max(96, 2 * block_size(kind))
    raw = random_rows(kind, 70, columns)
    x = torch.randn(29, columns, generator=torch.Generator().manual_seed(0))
    first, *others = [packed(raw, kind, isa)(x) for isa in CPU_ISAS]
    for other in others:
        assert torch.equal(first, other)


@every_isa
@every_kind
def test_a_row_does_not_depend_on_the_others(isa: str, kind: str) -> None:
    columns = max(96, block_size(kind))
    weight = packed(random_rows(kind, 70, columns), kind, isa)
    x = torch.randn(300, columns, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    try:
        whole = weight(x)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for begin, end in ((0, 1), (3, 5), (10, 24), (7, 107), (255, 258), (0, 300)):
                assert torch.equal(weight(x[begin:end]), whole[begin:end])
    finally:
        torch.set_num_threads(before)


@every_isa
@pytest.mark.parametrize(
    "kinds", [("Q4_K", "Q4_K", "Q6_K"), ("Q5_0", "Q8_0"), ("Q4_1", "IQ4_NL", "Q5_1")], ids=str
)
@pytest.mark.parametrize("rows", [(64, 32, 32), (9, 3, 3)], ids=str)
def test_parts_of_several_formats(isa: str, kinds: tuple[str, ...], rows: tuple[int, ...]) -> None:
    raws = [random_rows(kind, count, 256, seed=count) for kind, count in zip(kinds, rows, strict=False)]
    parts = [
        PackedWeight(cpu_kernels(isa), len(raw), 256, kind) for kind, raw in zip(kinds, raws, strict=True)
    ]
    merged, begin = MergedWeight(parts), 0
    for raw in raws:
        merged.fill_blocks(raw, begin)
        begin += len(raw)
    x = whole_numbers(11, 256)
    wanted = torch.cat([exact(raw, kind, x) for kind, raw in zip(kinds, raws, strict=True)], -1)
    assert merged.outputs == begin and merged.num_bytes == sum(part.num_bytes for part in parts)
    assert (merged(x) - wanted).abs().max() <= 1e-6 * wanted.abs().max()
    assert merged(x.to(BF16)).dtype is BF16
    bias = torch.linspace(-1.0, 1.0, begin)
    merged.set_bias(bias)
    assert (merged(x) - bias - wanted).abs().max() <= 1e-6 * wanted.abs().max() + 1e-6


@every_kind
def test_memory_is_little_more_than_the_file_takes(kind: str) -> None:
    raw = random_rows(kind, 256, 1024)
    bound = {"Q2_K": 1.2, "Q3_K": 1.35, "IQ4_XS": 1.08}.get(kind, 1.07)  # Q3_K: widened to 4 bits
    assert packed(raw, kind, CPU_ISAS[0]).num_bytes <= bound * raw.nbytes


@every_isa
@every_kind
def test_rows_are_dequantized_as_the_format_is_defined(isa: str, kind: str) -> None:
    """Bit for bit as the `gguf` package does."""
    columns = max(96, 2 * block_size(kind))
    raw = random_rows(kind, 50, columns)
    rows = StoredRows(cpu_kernels(isa), torch.from_numpy(raw), columns, kind)
    at = torch.tensor([49, 0, 7, 7])
    assert torch.equal(rows.look_up(at), torch.from_numpy(dequantized(kind, raw))[at])
