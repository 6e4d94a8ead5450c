"""Packed linears against products in float64, on every instruction set that this machine has."""

from __future__ import annotations

import pytest
import torch

from executors.kernels import CPU_ISAS
from executors.kernels.compiler import ISAS
from executors.kernels.cpu import ACTIVATIONS, BLOCK, DTYPES, KINDS, PackedWeight, cpu_kernels
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, both_dtypes, every_isa
from tests.tiers import sweep

every_kind = pytest.mark.parametrize("kind", list(KINDS))
# (rows, columns): whole panels, and every sort of remainder; the last two are wider than what is prefetched at a time.
SHAPES = [(64, 64), (32, 16), (1, 1), (5, 3), (33, 130), (100, 37), (47, 258), (256, 515)]
SIZES = [1, 2, 5, 6, 7, 13, 14, 15, 29, 64]


def packed(weight: torch.Tensor, kind: str, isa: str, gated: bool = False) -> PackedWeight:
    linear = PackedWeight(cpu_kernels(isa), *weight.shape, kind, gated)
    linear.fill(weight, 0)
    return linear


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bound(kind: str, dtype: torch.dtype) -> float:
    """Largest relative RMS error.

    fp32: sums of some hundred roundings to 2^-24. float16: weights are rounded, to 2^-11 of themselves at worst. bf16: weights, x
    and the result are rounded, to 2^-9 of themselves each at worst, which a product of one number may meet. int8: steps of 1/127
    of the largest of a block of 32, which is 2.4 deviations, so 2.4/127 / sqrt(12) of a deviation each for x and w, together
    0.0077; a short row's largest may be further out.
    """
    if kind == "int8":
        return 0.011
    if kind == "float16" and dtype is FP32:
        return 2**-11
    return 1e-6 if kind == "float32" and dtype is FP32 else 2**-9 * 2.5


@sweep(every=1)
@every_isa
@every_kind
@both_dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(isa: str, kind: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight, bias = noise(*shape).to(dtype), noise(shape[0], seed=2)
    x = noise(max(SIZES), shape[1], seed=1).to(dtype)
    linear = packed(weight, kind, isa)
    expected = x.double() @ weight.double().T
    for rows in SIZES:
        linear.set_bias(None)
        got = linear(x[:rows])
        assert got.dtype is dtype and got.shape == (rows, shape[0])
        error = (got - expected[:rows]).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < bound(kind, dtype), rows
        linear.set_bias(bias)
        shifted = linear(x[:rows]).double() - bias.double()
        assert (shifted - got).abs().max() <= (1e-5 if dtype is FP32 else 2**-7 * (got.abs().max() + 4))


@every_isa
@pytest.mark.parametrize("columns", [576, 1536, 4096, 16384])
def test_long_sums_in_float32_stay_exact(isa: str, columns: int) -> None:
    """The error of one running sum grows with its length: 7e-7 at 1,536 columns, 2.3e-6 at 16,384. torch's stays at 3e-7."""
    weight, x = noise(64, columns), noise(29, columns, seed=1)
    expected = x.double() @ weight.double().T
    error = (packed(weight, "float32", isa)(x) - expected).square().mean().sqrt()
    assert error < 3.5e-7 * expected.square().mean().sqrt()


@every_isa
def test_exponentials_are_exact_to_float32(isa: str) -> None:
    """Weights exp(x) of single logits: off by 1.3 units of the last place at most, of which the product x log2 e makes a part."""
    kernels = cpu_kernels(isa)
    logits = torch.linspace(-1.0, 0.0, 4001)[:, None].contiguous()
    rows, scale, sums, best = torch.arange(4001), torch.ones(4001), torch.empty(4001, 1), torch.zeros(4001)
    kernels.block_weights(
        DTYPES[FP32], logits.data_ptr(), rows.data_ptr(), 4001, 1, 1, 64, best.data_ptr(),
        scale.data_ptr(), sums.data_ptr(), 1,
    )  # fmt: skip
    error = (sums[:, 0].double() / logits[:, 0].double().exp() - 1).abs().max()
    assert error < 2**-23 * 1.3


def joined(name: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation `name` of gate and up; the clamped one with alpha 1.702 and a limit of 2, which many numbers pass."""
    if name == "clamped_swiglu":
        gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
        return (up + 1.0) * gate * torch.sigmoid(1.702 * gate)
    act = torch.nn.functional.silu(gate)
    return up * (act if name == "silu" else torch.nn.functional.gelu(gate, approximate="tanh"))


@sweep(every=1)
@every_isa
@every_kind
@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize("inner", [16, 1, 37, 96])
def test_gate_and_up(isa: str, kind: str, name: str, inner: int) -> None:
    weight, x, bias = noise(2 * inner, 50) * 0.2, noise(9, 50, seed=1), noise(2 * inner, seed=2)
    linear = packed(weight, kind, isa, gated=True)
    linear.set_bias(bias)
    linear.set_clamp(1.702, 2.0)
    gate, up = (x.double() @ weight.double().T + bias.double()).chunk(2, -1)
    error = linear(x, ACTIVATIONS[name]) - joined(name, gate, up)
    largest = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.05}.get(kind, 0.2)
    assert error.abs().max() < largest


@sweep(every=1)
@every_isa
@every_kind
@both_dtypes
def test_a_row_does_not_depend_on_the_others(isa: str, kind: str, dtype: torch.dtype) -> None:
    """Bit for bit, beyond the number of rows that are multiplied at a time, on one thread and on two."""
    linear = packed(noise(70, 90).to(dtype), kind, isa)
    x = noise(600, 90, seed=1).to(dtype)
    before = torch.get_num_threads()
    try:
        whole = linear(x)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for begin, end in ((0, 1), (3, 5), (10, 24), (7, 107), (255, 258), (599, 600), (0, 600)):
                assert torch.equal(linear(x[begin:end]), whole[begin:end])
    finally:
        torch.set_num_threads(before)


@every_isa
@every_kind
def test_any_number_of_rows(isa: str, kind: str) -> None:
    """Rows are cut into chunks of whole tiles, which from some 2,500 rows on may be one fewer than rows / ROWS."""
    linear, x = packed(noise(3, 8), kind, isa), noise(4300, 8, seed=1)
    expected = torch.cat([linear(x[:100]), linear(x[100:])])
    for rows in (2585, 3451, *range(2500, 4300, 50)):
        assert torch.equal(linear(x[:rows]), expected[:rows]), rows


@every_isa
@every_kind
def test_rows_in_any_pieces(isa: str, kind: str) -> None:
    weight, x = noise(150, 40), noise(3, 40, seed=1)
    for gated in (False, True):
        expected = packed(weight, kind, isa, gated)(x)
        pieces = PackedWeight(cpu_kernels(isa), *weight.shape, kind, gated)
        for begin, end in ((90, 150), (0, 1), (1, 33), (33, 70), (70, 90)):
            pieces.fill(weight[begin:end], begin)
        assert torch.equal(pieces(x), expected)


@every_isa
@every_kind
def test_a_row_that_is_not_finite_harms_only_itself(isa: str, kind: str) -> None:
    linear, x = packed(noise(40, 30), kind, isa), noise(5, 30, seed=1)
    clean = linear(x)
    for value in (torch.nan, torch.inf):
        x[2, 17] = value
        got = linear(x)
        assert torch.equal(got[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
        assert not torch.isfinite(got[2]).any()


@every_isa
@every_kind
def test_zeros_and_no_rows(isa: str, kind: str) -> None:
    linear = packed(torch.zeros(20, 10), kind, isa)
    assert torch.equal(linear(noise(3, 10)), torch.zeros(3, 20))
    assert torch.equal(packed(noise(20, 10), kind, isa)(torch.zeros(3, 10)), torch.zeros(3, 20))
    assert linear(torch.empty(0, 10)).shape == (0, 20)


def outlying(*shape: int, seed: int) -> torch.Tensor:
    """Noise whose blocks of 32 columns differ as those of trained models do, and more: a few values are a hundred times larger,
    the blocks of some rows are tiny, denormal or zeros."""
    values = noise(*shape, seed=seed)
    values[:, 5::97] *= 100.0
    values[1::7, 32:64] *= 1e-25
    values[2::7, :32] *= 1e-42
    values[3::7, 64:96] = 0.0
    values[4::7, 40] = 1e6
    return values


def half_steps(values: torch.Tensor, coarser: float = 1.0) -> torch.Tensor:
    """float64 like `values`: how far each may be rounded where 32 of a row share a scale; below 1e-30 they become 0."""
    blocks = torch.nn.functional.pad(values.double(), (0, -values.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    steps = torch.where(largest < 1e-30, largest, largest * coarser / 254)
    return steps.expand_as(blocks).flatten(1)[:, : values.shape[1]]


@every_isa
@pytest.mark.parametrize("columns", [130, 192, 515])
def test_int8_is_rounded_by_blocks(isa: str, columns: int) -> None:
    """Each result is within what the rounding of its blocks' values can add up to; scales of w are rounded up to bf16."""
    weight, x = outlying(70, columns, seed=3), outlying(29, columns, seed=4)
    got = packed(weight, "int8", isa)(x).double()
    dx, dw = half_steps(x), half_steps(weight, coarser=1 + 2**-7)
    x, weight = x.double(), weight.double()
    bounds = x.abs() @ dw.T + dx @ weight.abs().T + dx @ dw.T
    sums = 1e-6 * (x.abs() @ weight.abs().T)  # of float32
    assert ((got - x @ weight.T).abs() <= bounds + sums).all()


@every_isa
def test_a_huge_value_costs_int8_only_its_block(isa: str) -> None:
    """Bit for bit: the other side's block is zeros, so that the huge one adds nothing but, perhaps, its scale."""
    block = slice(64, 96)
    weight, x = noise(70, 130), noise(20, 130, seed=1)
    for one, other in ((weight, x), (x, weight)):
        one[:, block] = 0.0
        expected = packed(weight, "int8", isa)(x)
        kept = other.clone()
        other[:, 70] = 1e6
        assert torch.equal(packed(weight, "int8", isa)(x), expected)
        one[:, block] = noise(len(one), 32, seed=2)
        other.copy_(kept)


@every_isa
@pytest.mark.parametrize("size", [1e-25, 1e-12, 1e12, 1e30])
def test_int8_of_small_and_large_numbers_is_as_exact(isa: str, size: float) -> None:
    """Of x, and of w."""
    weight, x = noise(70, 130), noise(20, 130, seed=1)
    expected = x.double() @ weight.double().T
    for got in (packed(weight, "int8", isa)(x * size), packed(weight * size, "int8", isa)(x)):
        error = (got.double() / size - expected).square().mean().sqrt()
        assert error < bound("int8", FP32) * expected.square().mean().sqrt()


@every_isa
def test_int8_of_denormal_numbers_is_zero(isa: str) -> None:
    weight, x = noise(70, 130), noise(20, 130, seed=1)
    assert torch.equal(packed(weight, "int8", isa)(x * 1e-40), torch.zeros(20, 70))
    assert torch.equal(packed(weight * 1e-40, "int8", isa)(x), torch.zeros(20, 70))


def test_int8_is_the_same_on_every_instruction_set() -> None:
    """A block's sum is of whole numbers; products with scales and sums of blocks are rounded in the same way."""
    weight, x = noise(75, 133), noise(20, 133, seed=1)
    results = [packed(weight, "int8", isa)(x) for isa in every_isa.args[1]]
    assert all(torch.equal(result, results[0]) for result in results)


@every_isa
def test_other_dtypes_are_packed_as_float32(isa: str) -> None:
    weight, x = noise(20, 10), noise(3, 10, seed=1)
    assert torch.equal(
        packed(weight.half(), "float32", isa)(x), packed(weight.half().float(), "float32", isa)(x)
    )
    assert torch.equal(
        packed(weight.half(), "bfloat16", isa)(x), packed(weight.half().to(BF16), "bfloat16", isa)(x)
    )


@every_isa
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (33, 130), (100, 517)], ids=str)
def test_float16_is_multiplied_as_float32_is(isa: str, shape: tuple[int, int], gated: bool) -> None:
    """Bit for bit: weights are widened as they are read. Rows come whole and one by one, and from any dtype."""
    rows, columns = shape[0] * 2 if gated else shape[0], shape[1]
    weight, x = noise(rows, columns).half(), noise(29, columns, seed=1)
    weight[0, 0] = 2.0**-24
    wide = packed(weight.float(), "float32", isa, gated)
    whole = packed(weight, "float16", isa, gated)
    piecewise = PackedWeight(cpu_kernels(isa), rows, columns, "float16", gated)
    for row in range(rows):
        piecewise.fill(weight[row : row + 1].double(), row)
    for linear in (whole, piecewise):
        assert torch.equal(linear(x), wide(x))
    halves = x.half()
    assert torch.equal(whole(halves), wide(halves.float()).half()) and whole(halves).dtype is torch.float16
    assert torch.equal(whole(halves, wide=True), wide(halves.float()))
    assert 2 * whole.num_bytes == wide.num_bytes


def test_the_names_of_instruction_sets_are_known_without_torch() -> None:
    assert tuple(isa.name for isa in ISAS) == CPU_ISAS


@sweep(every=1)
@every_isa
@every_kind
@both_dtypes
@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 100, 160])
def test_maxima(isa: str, kind: str, dtype: torch.dtype, outputs: int) -> None:
    """Those of the results as they are returned: not rounded to x's dtype."""
    kernels = cpu_kernels(isa)
    linear, x = packed(noise(outputs, 30), kind, isa), noise(20, 30, seed=1).to(dtype)
    x[7] = torch.nan
    out, maxima = linear.with_maxima(x)
    assert torch.equal(out[:7], linear(x, wide=True)[:7]) and not torch.isfinite(out[7]).any()
    assert out.dtype is FP32 and torch.equal(out[:7].to(dtype), linear(x)[:7])
    padding = -outputs % kernels.panel_rows
    blocks = torch.nn.functional.pad(out.float(), (0, padding), value=-torch.inf).unflatten(
        1, (-1, kernels.panel_rows)
    )
    assert torch.equal(maxima.nan_to_num(99.0), blocks.amax(-1).nan_to_num(99.0))
    again, _ = linear.with_maxima(x[:3])
    assert again.data_ptr() == out.data_ptr() and len(again) == 3


@sweep(every=1)
@every_isa
@both_dtypes
@pytest.mark.parametrize(("width", "size"), [(1, 64), (15, 64), (64, 64), (1000, 64), (1111, 512), (33, 512)])
def test_reading_rows_of_logits(isa: str, dtype: torch.dtype, width: int, size: int) -> None:
    kernels = cpu_kernels(isa)
    logits = (3 * noise(5, width + 7)).to(dtype)[:, :width]
    blocks = -(-width // size)
    wide = torch.nn.functional.pad(logits.float(), (0, blocks * size - width), value=-torch.inf)
    found = torch.empty(5, blocks)
    shape = width, logits.stride(0), size
    kernels.block_maxima(DTYPES[dtype], logits.data_ptr(), 5, *shape, found.data_ptr(), 2)
    assert torch.equal(found, wide.unflatten(1, (-1, size)).amax(-1))
    rows, best = torch.tensor([4, 0, 2]), wide.amax(-1)[[4, 0, 2]]
    scale, sums = torch.tensor([1.0, 0.3, 2.5]), torch.empty(3, blocks)
    kernels.block_weights(
        DTYPES[dtype], logits.data_ptr(), rows.data_ptr(), 3, *shape, best.data_ptr(), scale.data_ptr(),
        sums.data_ptr(), 2,
    )  # fmt: skip
    weights = ((wide[rows].double() - best[:, None]) / scale[:, None]).exp()
    assert torch.allclose(sums.double(), weights.unflatten(1, (-1, size)).sum(-1), rtol=1e-6, atol=1e-12)
