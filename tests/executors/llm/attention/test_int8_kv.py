"""The CPU kernel over keys and values in int8 against the formula in float64 over the same cells, and against itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executors.llm.attention import cpu_attention
from executors.llm.attention.cpu_attention import SPLIT, supports
from executors.llm.model.caches import KvSpec
from tests.executors.kernels.steps import Sequences
from tests.executors.kernels.steps import spec as wide_spec
from tests.executors.llm.attention.test_cpu_attention import (
    BF16,
    FP32,
    MIXED,
    both_dtypes,
    every_isa,
    kernel,
    mixed_items,
)
from tests.tiers import sweep


def spec(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, **changes) -> KvSpec:
    """Of one layer whose cells are int8."""
    return wide_spec(heads, kv_heads, head_dim, dtype, kv_dtype=torch.int8, **changes)


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Queries are rounded to 2^-16 of their largest number, weights to 2^-16 of a tile's largest; values are below 6, and the
    errors of up to 576 products of numbers below 6, and of 64 weights, average out. bf16: results are rounded to 2^-9."""
    error = (got.double() - expected).abs()
    assert got.isfinite().all()
    assert (error <= 2e-4 + (2**-8 * expected.abs() if got.dtype is BF16 else 0)).all()
    assert error.square().mean().sqrt() < 2e-5 + (
        2**-9 * expected.square().mean().sqrt() if got.dtype is BF16 else 0
    )


@pytest.mark.long(every=8)
@sweep(every=4)
@every_isa
@both_dtypes
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256, 20, 33, 8, 1])
def test_head_sizes(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    seqs = Sequences(spec(4, 2, head_dim, dtype), MIXED)
    check(seqs.run(mixed_items(), kernel(isa)), seqs.expected(mixed_items()))


@pytest.mark.long(every=4)
@every_isa
@pytest.mark.parametrize("head_dim", [512, 575, 576])
def test_wide_heads(isa: str, head_dim: int) -> None:
    seqs = Sequences(spec(6, 1, head_dim, BF16), [70, 90])
    items = [(0, 69, 1), (1, 20, 70)]
    check(seqs.run(items, kernel(isa)), seqs.expected(items))


@every_isa
@pytest.mark.parametrize("head_dim", [512, 575, 576])
def test_sums_of_the_largest_integers_fit(isa: str, head_dim: int) -> None:
    """All numbers of a query and of a key are the largest, so that their products add up to as much as there can be."""
    seqs = Sequences(spec(2, 1, head_dim, FP32, scale=1 / head_dim), [40])
    seqs.q[0][:] = 1.0
    seqs.k[0][::2], seqs.k[0][1::2] = 1.0, -1.0
    check(seqs.run([(0, 30, 10)], kernel(isa)), seqs.expected([(0, 30, 10)]))


@pytest.mark.long(every=8)
@every_isa
@both_dtypes
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(3, 3), (4, 2), (9, 3), (4, 1), (5, 1), (7, 1), (16, 2), (200, 1)]
)
def test_shared_heads(isa: str, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    lengths = [1, 70, 600]
    items = [(0, 0, 1), (1, 0, 70), (2, 590, 10)]
    seqs = Sequences(spec(heads, kv_heads, 48, dtype), lengths)
    check(seqs.run(items, kernel(isa)), seqs.expected(items))


@sweep(every=1)
@every_isa
@pytest.mark.parametrize("block_size", [16, 32, 48, 112])
def test_block_sizes(isa: str, block_size: int) -> None:
    seqs = Sequences(spec(4, 2, 48, BF16), MIXED, block_size)
    check(seqs.run(mixed_items(), kernel(isa)), seqs.expected(mixed_items()))


@pytest.mark.long(every=5)
@sweep(every=4)
@every_isa
@both_dtypes
@pytest.mark.parametrize("window", [1, 7, 64, 65, 300, 600, 5000])
def test_sliding_window(isa: str, dtype: torch.dtype, window: int) -> None:
    items = [*mixed_items(), (10, 900, 400)]
    seqs = Sequences(spec(4, 2, 32, dtype, windows=(window,)), [*MIXED, 1300])
    check(seqs.run(items, kernel(isa)), seqs.expected(items))


@sweep(every=3)
@every_isa
@both_dtypes
@pytest.mark.parametrize("window", [None, 90])
def test_softcap_and_scale(isa: str, dtype: torch.dtype, window: int | None) -> None:
    seqs = Sequences(spec(4, 2, 32, dtype, softcap=3.0, scale=0.6, windows=(window,)), MIXED)
    check(seqs.run(mixed_items(), kernel(isa)), seqs.expected(mixed_items()))


@every_isa
def test_values_of_very_different_sizes(isa: str) -> None:
    """A tile's scale of weights follows their products with the scales of values: small values keep their precision."""
    seqs = Sequences(spec(4, 2, 32, FP32), [300])
    seqs.v[0] *= torch.logspace(-6, 3, 300)[
        torch.randperm(300, generator=torch.Generator().manual_seed(1)), None, None
    ]
    seqs.k[0][::3] *= 1e-3
    seqs.k[0][7] = seqs.v[0][7] = 0.0
    got, expected = seqs.run([(0, 0, 300)], kernel(isa)), seqs.expected([(0, 0, 300)])
    assert ((got - expected).abs().amax(-1) < 2e-3 * expected.abs().amax(-1) + 1e-30).all()


@sweep(every=3)
@every_isa
@both_dtypes
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (200, 5.0)])
def test_whole_prefill_chunks_and_decodes_are_bitwise_equal(
    isa: str, dtype: torch.dtype, window: int | None, softcap: float | None
) -> None:
    length = 1100
    seqs, attention = (
        Sequences(spec(6, 2, 64, dtype, windows=(window,), softcap=softcap), [length]),
        kernel(isa),
    )
    whole = seqs.run([(0, 0, length)], attention)
    for sizes in ([1, 63, 64, 65, 300, 19, 588], [7] * 157 + [1]):
        cache, begin, parts = seqs.cache([0]), 0, []
        for size in sizes:
            parts.append(seqs.run([(0, begin, size)], attention, cache))
            begin += size
        assert begin == length and torch.equal(torch.cat(parts), whole)
    cache = seqs.cache([SPLIT - 130])
    singles = [seqs.run([(0, i, 1)], attention, cache) for i in range(SPLIT - 130, SPLIT + 70)]
    assert torch.equal(torch.cat(singles), whole[SPLIT - 130 : SPLIT + 70])


@sweep(every=1)
@every_isa
def test_neighbours_and_threads_do_not_matter_bitwise(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "SERIAL_COST", 0)
    seqs = Sequences(spec(4, 2, 80, BF16), [2000, 5, 600, 64])
    items = [(0, 1990, 10), (1, 4, 1), (2, 0, 600), (3, 63, 1)]
    alone = torch.cat([seqs.run([item], kernel(isa)) for item in items])
    for threads in (1, 2, 3, 7):
        attention = kernel(isa, threads)
        assert torch.equal(seqs.run(items, attention), alone)
        backwards = seqs.run(items[::-1], attention).split([item[2] for item in items[::-1]])
        assert torch.equal(torch.cat(backwards[::-1]), alone)


@every_isa
@both_dtypes
@pytest.mark.parametrize("head_dim", [24, 33])
def test_writes_keys_and_values_and_nothing_else(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    """Byte by byte, beside bytes that other tokens have; the scales with them."""
    lengths = [100, 3]
    seqs = Sequences(spec(4, 2, head_dim, dtype), lengths)
    seqs.k[0][5] = 0.0
    for items in ([(0, 10, 90), (1, 0, 3)], [(0, 99, 1), (1, 2, 1)]):
        cache = seqs.cache([items[0][1], items[1][1]])
        seqs.run(items, kernel(isa), cache)
        got, expected = cache.layers[0], seqs.cache(lengths).layers[0]
        assert torch.equal(got, expected)


@every_isa
def test_a_number_that_is_not_finite_makes_its_rows_nan_and_no_others(isa: str) -> None:
    for side, value in (("k", torch.nan), ("v", torch.inf), ("q", torch.nan)):
        seqs = Sequences(spec(4, 2, 32, BF16), [40, 700, 90])
        getattr(seqs, side)[1][620 if side == "q" else 3, 1] = value
        got = seqs.run([(0, 39, 1), (1, 600, 100), (2, 0, 90)], kernel(isa))
        wrong = torch.zeros(191, 4, dtype=torch.bool)
        if side == "q":
            wrong[21, 1] = True
        else:
            wrong[1:101, 2:] = True
        assert torch.equal(got.isnan().all(-1), wrong) and torch.equal(got.isnan().any(-1), wrong)


@every_isa
def test_copied_blocks_bring_their_scales(isa: str) -> None:
    seqs = Sequences(spec(4, 2, 32, BF16), [40, 40])
    cache = seqs.cache([40, 0])
    expected = seqs.run([(0, 39, 1)], kernel(isa), cache)
    pairs = np.stack([seqs.tables[0, :3], seqs.tables[1, :3]], 1)
    cache.copy_blocks(pairs.astype(np.int32))
    seqs.q[1], seqs.k[1], seqs.v[1] = seqs.q[0], seqs.k[0], seqs.v[0]
    assert torch.equal(seqs.run([(1, 39, 1)], kernel(isa), cache), expected)


def test_bytes_of_a_block_are_half_and_the_scales() -> None:
    wide = wide_spec(9, 3, 64, BF16)
    assert wide.bytes_per_token() == 2 * 3 * 64 * 2
    assert spec(9, 3, 64, BF16).bytes_per_token() == 2 * 3 * (64 + 4)
    assert spec(9, 3, 33, BF16).bytes_per_token() == 2 * 3 * (34 + 4)
    seqs = Sequences(spec(9, 3, 64, BF16), [40])
    cache = seqs.cache([0])
    # 6,528 bytes, rounded up to whole pages.
    assert (
        cache.num_bytes == cache.num_blocks * 2 * 4096 and 16 * spec(9, 3, 64, BF16).bytes_per_token() == 6528
    )


def test_what_is_supported() -> None:
    assert supports(spec(4, 2, 128, BF16)) and supports(spec(4, 2, 20, FP32))
    assert supports(spec(4, 2, 128, torch.float16)) and not supports(spec(4, 2, 592, BF16))
    assert not supports(wide_spec(4, 2, 128, BF16, kv_dtype=torch.float8_e4m3fn))
