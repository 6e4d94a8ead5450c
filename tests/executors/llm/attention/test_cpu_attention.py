"""The CPU kernel against attention by the formula, and against itself: a token's result depends on nothing but the token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executors.kernels.compiler import KernelUnavailable, find_compiler, usable_isas
from executors.llm.attention import cpu_attention
from executors.llm.attention.cpu_attention import SPLIT, CpuAttention, Plan, Plans, plan, supports
from executors.llm.step_arrays import StepArrays
from tests.executors.kernels.steps import Sequences, spec
from tests.tiers import sweep

FP32, BF16 = torch.float32, torch.bfloat16


def _isas() -> list[str]:
    """What can be tried here: none without a compiler."""
    try:
        return [isa.name for isa in usable_isas() if find_compiler()]
    except KernelUnavailable:
        return []


ISAS = _isas()
every_isa = pytest.mark.parametrize("isa", ISAS)
both_dtypes = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])


def kernel(isa: str, threads: int = 1) -> CpuAttention:
    """On a busy machine threads that wait for each other make small tests ten times slower."""
    return CpuAttention(isa, threads)


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    """fp32: sums of at most 576 products and some thousand weights, each rounded to 2^-24; values are below 6.

    bf16: weights and results are rounded to 2^-9 of themselves. A weighted mean whose weights are off by a factor of
    1 +- 2^-9 each moves by at most 2^-8 times the spread of the values, mostly far less, as the errors average out: on the
    whole the two roundings together stay below 2^-8 of the result.
    """
    error = got.float() - expected
    if got.dtype is FP32:
        assert error.abs().max() < 2e-5
    else:
        assert error.abs().max() <= 2**-8 * 6 + 2**-9 * expected.abs().max()
        assert error.square().mean().sqrt() <= 2**-8 * expected.square().mean().sqrt() + 1e-5


MIXED = [1, 3, 63, 64, 65, 130, 511, 512, 513, 700]


def mixed_items() -> list[tuple[int, int, int]]:
    """Decodes, verifications, chunks and whole prompts around the borders of tiles (64) and splits (512)."""
    return [
        (0, 0, 1), (1, 2, 1), (2, 0, 63), (3, 63, 1), (4, 60, 5), (5, 64, 66), (6, 510, 1), (7, 0, 512), (8, 512, 1),
        (9, 500, 200),
    ]  # fmt: skip


@sweep(every=4)
@every_isa
@both_dtypes
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256, 20, 33, 8])
def test_head_sizes(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    seqs = Sequences(spec(4, 2, head_dim, dtype), MIXED)
    check(seqs.run(mixed_items(), kernel(isa)), seqs.expected(mixed_items()))


@pytest.mark.long(every=4)
@every_isa
@both_dtypes
@pytest.mark.parametrize("head_dim", [512, 576])
def test_wide_heads(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    """Decodes of few and many rows of a key head, and prompts; whole and in chunks they are the same bits."""
    for heads, kv_heads in ((2, 1), (8, 1)):
        seqs = Sequences(spec(heads, kv_heads, head_dim, dtype), [70, 150])
        items = [(0, 69, 1), (1, 0, 130)]
        whole = seqs.run(items, kernel(isa))
        check(whole, seqs.expected(items))
        cache = seqs.cache([0, 0])
        chunks = [seqs.run([(1, begin, 65)], kernel(isa), cache) for begin in (0, 65)]
        assert torch.equal(torch.cat(chunks), whole[1:])


@sweep(every=1)
@every_isa
@both_dtypes
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2), (4, 1), (16, 2), (7, 1), (14, 2), (200, 1)])
def test_shared_heads(isa: str, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    lengths = [1, 70, 600]
    items = [(0, 0, 1), (1, 0, 70), (2, 590, 10)]
    seqs = Sequences(spec(heads, kv_heads, 32, dtype), lengths)
    check(seqs.run(items, kernel(isa)), seqs.expected(items))


@sweep(every=4)
@every_isa
@both_dtypes
@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 100])
def test_block_sizes(isa: str, dtype: torch.dtype, block_size: int) -> None:
    seqs = Sequences(spec(4, 2, 48, dtype), MIXED, block_size)
    check(seqs.run(mixed_items(), kernel(isa)), seqs.expected(mixed_items()))


@sweep(every=4)
@every_isa
@both_dtypes
@pytest.mark.parametrize("window", [1, 7, 64, 65, 300, 600, 5000])
def test_sliding_window(isa: str, dtype: torch.dtype, window: int) -> None:
    lengths = [*MIXED, 1300]
    items = [*mixed_items(), (10, 900, 400)]
    seqs = Sequences(spec(4, 2, 32, dtype, windows=(window,)), lengths)
    check(seqs.run(items, kernel(isa)), seqs.expected(items))


@sweep(every=1)
@every_isa
@both_dtypes
@pytest.mark.parametrize("window", [None, 90])
def test_softcap_and_scale(isa: str, dtype: torch.dtype, window: int | None) -> None:
    seqs = Sequences(spec(4, 2, 32, dtype, softcap=3.0, scale=0.6, windows=(window,)), MIXED)
    check(seqs.run(mixed_items(), kernel(isa)), seqs.expected(mixed_items()))


@every_isa
@both_dtypes
def test_scores_of_any_size(isa: str, dtype: torch.dtype) -> None:
    items = [(0, 0, 600)]
    for scale in (1e-6, 30.0):
        seqs = Sequences(spec(2, 1, 32, dtype, scale=scale), [600])
        got = seqs.run(items, kernel(isa))
        # Large scores magnify the rounding of the scores themselves.
        assert torch.allclose(got.float(), seqs.expected(items), atol=0.03 if dtype is BF16 else 2e-3)


@pytest.mark.long(every=8)
@every_isa
@both_dtypes
def test_seeded_random_batches(isa: str, dtype: torch.dtype) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        kv_heads, shared = int(rng.integers(1, 4)), int(rng.integers(1, 9))
        window = int(rng.integers(1, 800)) if rng.random() < 0.3 else None
        shape = spec(kv_heads * shared, kv_heads, int(rng.integers(1, 17)) * 16, dtype, windows=(window,))
        lengths = rng.integers(1, 900, rng.integers(1, 7)).tolist()
        seqs = Sequences(shape, lengths, int(rng.integers(1, 40)), seed)
        begins = [int(rng.integers(0, length)) for length in lengths]
        items = [
            (i, b, int(rng.integers(1, n - b + 1)))
            for i, (b, n) in enumerate(zip(begins, lengths, strict=True))
        ]
        check(seqs.run(items, kernel(isa)), seqs.expected(items))


@sweep(every=2)
@every_isa
@both_dtypes
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (200, 5.0)])
def test_whole_prefill_chunks_and_decodes_are_bitwise_equal(
    isa: str, dtype: torch.dtype, window: int | None, softcap: float | None
) -> None:
    length = 1100
    shape = spec(6, 2, 64, dtype, windows=(window,), softcap=softcap)
    seqs, attention = Sequences(shape, [length]), kernel(isa)
    whole = seqs.run([(0, 0, length)], attention)
    for sizes in ([1, 63, 64, 65, 300, 19, 588], [512, 512, 76], [7] * 157 + [1]):
        cache, begin, parts = seqs.cache([0]), 0, []
        for size in sizes:
            parts.append(seqs.run([(0, begin, size)], attention, cache))
            begin += size
        assert begin == length and torch.equal(torch.cat(parts), whole)
    begin = SPLIT - 130
    cache = seqs.cache([begin])
    singles = [seqs.run([(0, i, 1)], attention, cache) for i in range(begin, SPLIT + 70)]
    assert torch.equal(torch.cat(singles), whole[begin : SPLIT + 70])
    # All of them as one batch of decodes over the same blocks.
    assert torch.equal(seqs.run([(0, i, 1) for i in range(length)], attention), whole)


@sweep(every=1)
@every_isa
@both_dtypes
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (8, 2)])
@pytest.mark.parametrize("window", [None, 90])
def test_few_tokens_over_a_long_context_are_bitwise_those_of_a_whole_prompt(
    isa: str, dtype: torch.dtype, heads: int, kv_heads: int, window: int | None
) -> None:
    """Steps of 1 to 13 tokens cross tiles and a split at every offset: one to four rows are read without packing."""
    length, begin = SPLIT + 90, SPLIT - 70
    shape = spec(heads, kv_heads, 64, dtype, windows=(window,))
    seqs, attention = Sequences(shape, [length]), kernel(isa)
    whole = seqs.run([(0, 0, length)], attention)
    for size in (1, 2, 3, 4, 5, 13):
        cache, parts = seqs.cache([begin]), []
        for at in range(begin, length, size):
            parts.append(seqs.run([(0, at, min(size, length - at))], attention, cache))
        assert torch.equal(torch.cat(parts), whole[begin:])


@sweep(every=1)
@every_isa
@both_dtypes
def test_neighbours_and_threads_do_not_matter_bitwise(
    isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_attention, "SERIAL_COST", 0)
    lengths = [2000, 5, 600, 64]
    seqs = Sequences(spec(4, 2, 80, dtype), lengths)
    items = [(0, 1990, 10), (1, 4, 1), (2, 0, 600), (3, 63, 1)]
    alone = torch.cat([seqs.run([item], kernel(isa)) for item in items])
    for threads in (1, 2, 3, 7):
        attention = kernel(isa, threads)
        assert torch.equal(seqs.run(items, attention), alone)
        backwards = seqs.run(items[::-1], attention).split([item[2] for item in items[::-1]])
        assert torch.equal(torch.cat(backwards[::-1]), alone)
        assert torch.equal(torch.cat([seqs.run([item], attention) for item in items]), alone)


@every_isa
@both_dtypes
def test_unwritten_cells_are_never_read(isa: str, dtype: torch.dtype) -> None:
    # `Sequences` fills every cell that has no token with NaN, the rest of last blocks included.
    lengths = [1, 17, 63, 65, 513]
    seqs = Sequences(spec(4, 2, 32, dtype), lengths, 32)
    items = [(i, length - 1, 1) for i, length in enumerate(lengths)]
    got = seqs.run(items, kernel(isa))
    assert got.isfinite().all()
    check(got, seqs.expected(items))
    # Stale tokens after the query's position, as a cut leaves behind.
    cache = seqs.cache(lengths)
    cache.layers[0][0, seqs.tables[4, 9:]] = torch.nan
    got = seqs.run([(4, 200, 3)], kernel(isa), cache)
    check(got, seqs.expected([(4, 200, 3)]))


@every_isa
def test_nan_of_one_sequence_stays_there(isa: str) -> None:
    seqs = Sequences(spec(4, 2, 32, BF16), [40, 700, 90])
    seqs.k[1][3, 1] = torch.nan
    items = [(0, 39, 1), (1, 600, 100), (2, 0, 90)]
    got = seqs.run(items, kernel(isa))
    assert got[1:101, 2:].isnan().all() and got[1:101, :2].isfinite().all()
    assert got[:1].isfinite().all() and got[101:].isfinite().all()


@every_isa
@both_dtypes
def test_writes_keys_and_values_and_nothing_else(isa: str, dtype: torch.dtype) -> None:
    lengths = [100, 3]
    seqs = Sequences(spec(4, 2, 24, dtype), lengths)
    for items in ([(0, 10, 90), (1, 0, 3)], [(0, 99, 1), (1, 2, 1)]):
        cache = seqs.cache([items[0][1], items[1][1]])
        seqs.run(items, kernel(isa), cache)
        assert torch.equal(cache.layers[0].nan_to_num(9.0), seqs.cache(lengths).layers[0].nan_to_num(9.0))


@every_isa
def test_empty_batch_and_items_without_tokens(isa: str) -> None:
    seqs = Sequences(spec(4, 2, 32, FP32), [30, 40])
    assert seqs.run([], kernel(isa)).shape == (0, 4, 32)
    items = [(0, 10, 0), (1, 20, 20), (0, 30, 0)]
    check(seqs.run(items, kernel(isa)), seqs.expected(items))


@every_isa
def test_inputs_in_other_layouts(isa: str) -> None:
    seqs = Sequences(spec(4, 2, 32, FP32), [50])
    expected = seqs.expected([(0, 0, 50)])
    q, k, v = (x[0].transpose(0, 1).contiguous().transpose(0, 1) for x in (seqs.q, seqs.k, seqs.v))
    step = StepArrays(np.zeros(50, np.int64), np.array([50]), np.array([0]), seqs.tables)
    check(kernel(isa).begin(step, seqs.cache([0]))(0, q, k, v), expected)


@every_isa
def test_layers_with_and_without_window(isa: str) -> None:
    shape = spec(4, 2, 32, FP32)
    layers = [Sequences(spec(4, 2, 32, FP32, windows=(w,)), [400]) for w in (None, 50, None)]
    both = type(shape)(3, 4, 2, 32, FP32, shape.device, shape.scale, None, (None, 50, None))
    cache = cpu_attention.KvCache(both, layers[0].num_blocks, 16)
    step = StepArrays(np.zeros(400, np.int64), np.array([400]), np.array([0]), layers[0].tables)
    attend = kernel(isa).begin(step, cache)
    for i, one in enumerate(layers):
        check(attend(i, one.q[0], one.k[0], one.v[0]), one.expected([(0, 0, 400)]))


def check_plan(made: Plan, step: StepArrays, window: int | None) -> None:
    """Check that a plan for 8 heads and 2 key heads covers every query and key once."""
    lens = step.q_lens
    seen: dict[int, list[int]] = {}
    slots = []
    for row, tokens, pos, item, first, last, group, slot, group_slot, in_group in made.work.tolist():
        assert row + tokens <= step.q_starts[item] + lens[item]
        assert (step.positions[row : row + tokens] == np.arange(pos, pos + tokens)).all()
        assert tokens * 4 <= made.max_rows
        if group >= 0:
            assert last == first + 1 and 0 <= slot - group_slot < in_group and tokens * 4 <= made.partial_rows
            slots.append(slot)
        for token in range(row, row + tokens):
            seen.setdefault(token, []).extend(range(first, last))
    assert sorted(slots) == list(range(made.slots))
    assert sorted(seen) == list(range(lens.sum()))
    for token, splits in seen.items():
        position = int(step.positions[token])
        lowest = max(0, position + 1 - window) if window else 0
        assert sorted(splits) == list(range(min(splits), max(splits) + 1))
        assert min(splits) <= lowest // SPLIT and max(splits) >= position // SPLIT


def test_plan_covers_every_query_and_key_once() -> None:
    rng = np.random.default_rng(0)
    for threads in (1, 2, 16):
        for window in (None, 100, 700):
            lens, past = rng.integers(0, 300, 20), rng.integers(0, 3000, 20)
            tables = np.zeros((20, 1), np.int32)
            step = StepArrays(np.zeros(lens.sum(), np.int64), lens, past, tables)
            made = plan(step, 8, 2, window, threads)
            check_plan(made, step, window)


def test_a_kept_plan_serves_sequences_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences grow by a token a step; now and then one is replaced by another, or has several new tokens."""
    rng, made_anew = np.random.default_rng(1), 0

    def counted(*args: Any) -> Plan:
        nonlocal made_anew
        made_anew += 1
        return plan(*args)

    monkeypatch.setattr(cpu_attention, "plan", counted)
    for window in (None, 100, 700):
        plans, past = Plans(), rng.integers(0, 3000, 5)
        made = None
        for number in range(400):
            lens = np.ones(5, np.int64)
            if number % 50 == 20:
                past[rng.integers(5)] = rng.integers(0, 3000)
            if number % 50 == 40:
                lens[rng.integers(5)] = 4
            step = StepArrays(np.zeros(lens.sum(), np.int64), lens, past.copy(), np.zeros((5, 1), np.int32))
            before, made = made, plans.get(step, 8, 2, window, 2)
            check_plan(made, step, window)
            assert before is None or made.work is not before.work
            past += lens
    assert made_anew < 300


def test_a_long_sequence_is_cut_for_many_threads_only() -> None:
    step = StepArrays(np.zeros(1, np.int64), np.array([1]), np.array([40_000]), np.zeros((1, 1), np.int32))
    assert len(plan(step, 8, 2, None, 1).work) == 1
    assert len(plan(step, 8, 2, None, 8).work) == 40_000 // SPLIT + 1


@sweep(every=1)
@every_isa
@pytest.mark.parametrize("head_dim", [64, 33])
@pytest.mark.parametrize(
    "changes", [{}, {"windows": (90,), "softcap": 5.0, "sinks": True}], ids=["plain", "more"]
)
def test_float16_is_read_as_float32_is(isa: str, head_dim: int, changes: dict[str, Any]) -> None:
    """Bit for bit, but that the result is rounded; what a step writes is float16."""
    half = Sequences(spec(6, 2, head_dim, torch.float16, **changes), MIXED)
    wide = Sequences(spec(6, 2, head_dim, FP32, **changes), MIXED)
    wide.q, wide.k, wide.v = ([one.float() for one in rows] for rows in (half.q, half.k, half.v))
    wide.sinks = None if half.sinks is None else half.sinks.float()
    cache = half.cache([begin for _, begin, _ in mixed_items()])
    got = half.run(mixed_items(), kernel(isa), cache)
    assert got.dtype is torch.float16 and torch.equal(got, wide.run(mixed_items(), kernel(isa)).half())
    written = half.cache([begin + count for _, begin, count in mixed_items()])
    assert torch.equal(cache.layers[0].nan_to_num(9.0), written.layers[0].nan_to_num(9.0))


def test_what_is_supported() -> None:
    assert supports(spec(4, 2, 128, BF16)) and supports(spec(4, 2, 20, FP32))
    assert supports(spec(4, 2, 128, torch.float16)) and not supports(spec(4, 2, 592, BF16))
