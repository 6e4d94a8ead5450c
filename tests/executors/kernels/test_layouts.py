"""Weights that are packed as a file has them, against the `gguf` package's own dequantization or the definition of groups, on
every instruction set here."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from executors.kernels.cpu import (
    ACTIVATIONS,
    INT4_ROW,
    STORED_KINDS,
    MergedWeight,
    PackedWeight,
    StoredRows,
    cpu_kernels,
    quantized_rows,
)
from tests.executors.kernels.blocks import block_bytes, block_size, dequantized, plain_bytes, random_rows
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, both_dtypes, every_isa
from tests.executors.usable_isas import USABLE_ISAS
from tests.tiers import sweep

# One kind with values from a table of each shape of scales runs in `make test`: the others differ in the table alone.
_SAME_SHAPE = ("lut4-iq3xxs", "lut4-iq3s")
every_kind = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind in _SAME_SHAPE else ()) for kind in STORED_KINDS],
)
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


@sweep(every=1)
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


@sweep(every=1)
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
            # A row alone is multiplied with two panels at a time.
            assert torch.equal(got[:1], weight(x[:1].to(dtype)))
        bias = torch.linspace(-1.0, 1.0, rows)
        weight.set_bias(bias)
        assert (weight(x[:5]) - bias - wanted[:5]).abs().max() <= 1e-6 * size + 1e-6


@sweep(every=1)
@every_isa
@every_kind
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F], ids=hex)
def test_extreme_codes(isa: str, kind: str, byte: int) -> None:
    """Sums of the largest codes and activations overflow nothing; a code of -128 is one."""
    columns = 512
    raw = random_rows(kind, 33, columns)
    clean = raw.copy()
    raw[:] = byte
    blocks, clean_blocks = (rows.reshape(-1, block_bytes(kind)) for rows in (raw, clean))
    for at in plain_bytes(kind):
        blocks[:, at] = clean_blocks[:, at]
    x = torch.cat(
        [torch.full((1, columns), 127.0), torch.full((1, columns), -127.0), whole_numbers(7, columns)]
    )
    wanted = exact(raw, kind, x)
    assert (packed(raw, kind, isa)(x) - wanted).abs().max() <= 1e-6 * max(1e-9, float(wanted.abs().max()))


@sweep(every=1)
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
    first, *others = [packed(raw, kind, isa)(x) for isa in USABLE_ISAS]
    for other in others:
        assert torch.equal(first, other)


@sweep(every=1)
@every_isa
@every_kind
def test_a_row_does_not_depend_on_the_others(isa: str, kind: str) -> None:
    columns = max(96, 2 * block_size(kind))
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
    "kinds",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("Q5_0", "Q8_0"),
        ("Q4_1", "IQ4_NL", "Q5_1"),
        ("uint4-g128", "int4-g64", "uint8-f32"),
        ("lut4-iq2", "Q4_K", "lut4-iq3s"),
    ],
    ids=str,
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
    assert packed(raw, kind, USABLE_ISAS[0]).num_bytes <= bound * raw.nbytes


@every_isa
@every_kind
def test_rows_are_dequantized_as_the_format_is_defined(isa: str, kind: str) -> None:
    """Bit for bit."""
    columns = max(96, 2 * block_size(kind))
    raw = random_rows(kind, 50, columns)
    rows = StoredRows(cpu_kernels(isa), torch.from_numpy(raw), columns, kind)
    at = torch.tensor([49, 0, 7, 7])
    assert torch.equal(rows.look_up(at), torch.from_numpy(dequantized(kind, raw))[at])


def random_weights(rows: int, columns: int) -> torch.Tensor:
    """Normal numbers, with blocks of one number, of zeros, of one outlier, and of large and small numbers."""
    weights = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) * 0.05
    weights[0, :32], weights[1, :32] = 0.25, 0.0
    weights[2, 5], weights[3] = 7.0, weights[3] * 1e-4
    weights[4] = weights[4].abs() + 3.0
    return weights


@every_isa
@both_dtypes
def test_int4_is_as_near_as_its_scales_allow(isa: str, dtype: torch.dtype) -> None:
    """Every code is the nearest, and no block has a larger squared error than by its range alone, which is what `gguf` takes."""
    weights = random_weights(35, 256).to(dtype)
    raw = quantized_rows(cpu_kernels(isa), weights)
    wide, got = weights.float().numpy(), dequantized("Q4_1", raw)
    blocks = raw.reshape(-1, INT4_ROW)
    scale, minimum = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float64) for at in (0, 2))
    grid = (np.arange(16) * scale + minimum)[:, None, :]
    nearest = np.abs(grid - wide.reshape(-1, 32, 1)).min(-1)
    off = np.abs(got - wide).reshape(-1, 32)
    assert (off <= nearest * (1 + 1e-5) + 1e-7).all()
    plain = dequantized("Q4_1", gguf.quants.quantize(wide, gguf.GGMLQuantizationType.Q4_1)) - wide
    ours, theirs = ((error.reshape(-1, 32).astype(np.float64) ** 2).sum(1) for error in (got - wide, plain))
    assert (ours <= theirs * (1 + 1e-5) + 1e-12).all()
    normal = slice(5 * 8, None)
    assert ours[normal].sum() <= 0.9 * theirs[normal].sum()  # the search is worth something


def test_int4_has_the_same_bits_on_every_instruction_set() -> None:
    weights = random_weights(70, 512)
    first, *others = [quantized_rows(cpu_kernels(isa), weights) for isa in USABLE_ISAS]
    for other in others:
        assert np.array_equal(first, other)


@every_isa
def test_int4_packs_floats(isa: str) -> None:
    weights = random_weights(35, 96)
    weight = PackedWeight(cpu_kernels(isa), 35, 96, "int4")
    weight.fill(weights[:20], 0)
    weight.fill(weights[20:].double(), 20)
    x = whole_numbers(5, 96)
    wanted = exact(quantized_rows(cpu_kernels(isa), weights), "Q4_1", x)
    assert (weight(x) - wanted).abs().max() <= 1e-6 * wanted.abs().max()
    weights[7, 40] = torch.nan
    weight.fill(weights, 0)
    assert weight(x).isnan().all(0).tolist() == [row == 7 for row in range(35)]


@every_isa
@pytest.mark.parametrize("gated", [False, True])
@both_dtypes
def test_columns_in_another_order(isa: str, gated: bool, dtype: torch.dtype) -> None:
    """The same bits as of values in that order, by any number of threads."""
    raw = random_rows("uint4-g64", 70, 256)
    weight, ordered = packed(raw, "uint4-g64", isa, gated), packed(raw, "uint4-g64", isa, gated)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1))
    ordered.set_order(order)
    x = torch.randn(29, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = weight(x[:, order])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(ordered(x), wanted)
    finally:
        torch.set_num_threads(before)
    if not gated:
        assert torch.equal(ordered.with_maxima(x)[0], weight.with_maxima(x[:, order])[0])
        merged = MergedWeight([ordered, packed(raw[:5], "uint4-g64", isa)])
        assert torch.equal(merged(x), torch.cat((wanted, wanted[:, :5]), 1))
