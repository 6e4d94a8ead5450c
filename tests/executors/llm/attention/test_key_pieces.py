"""How rows' keys are cut: every key once, and how long a device takes by list scheduling, beside what it took before."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from executors.llm.attention.key_pieces import MOST_OF_A_ROW, WORDS, PieceRule, idle_pieces

PROCESSORS, PROGRAMS, KV_HEADS, TILE = 132, 3, 8, 64
"""Of an H100 or H200, and of Qwen3-0.6B in bf16."""
SLOTS = PROCESSORS * PROGRAMS
H200 = PieceRule(SLOTS // KV_HEADS, TILE)
LENGTHS = {
    "255 of 500 and one of 32k": [32_768] + [500] * 255,
    "31 of 500 and one of 32k": [32_768] + [500] * 31,
    "32 of 1,500": [1_500] * 32,
    "256 of 500": [500] * 256,
    "one of 32k": [32_768],
    "40 of 1,500": [1_500] * 40,
    "64 of 300": [300] * 64,
    "7 of 5,000 and 60 of 200": [5_000] * 7 + [200] * 60,
}


def tiles_of(lengths: Sequence[int]) -> int:
    return sum(-(-length // TILE) for length in lengths)


def makespan(jobs: Sequence[int], slots: int = SLOTS) -> int:
    """When the last of the jobs is done: each goes, in their order, to the slot that is free first."""
    free = [0] * slots
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def shares(jobs: Sequence[int], lengths: Sequence[int]) -> float:
    """The makespan, in even shares."""
    return makespan(jobs) / (tiles_of(lengths) * KV_HEADS / SLOTS)


def jobs_of(pieces: np.ndarray) -> list[int]:
    """Tiles of each program of a launch, in the order in which they begin."""
    found: list[int] = np.repeat(-(-(pieces[:, 2] - pieces[:, 1]) // TILE), KV_HEADS).tolist()
    return found


def alike(lengths: Sequence[int]) -> list[int]:
    """Tiles of each program where every row has as many pieces as there are programs for each: what was done before."""
    splits = max(1, min(SLOTS // (len(lengths) * KV_HEADS), -(-max(lengths) // 256), 64))
    jobs = []
    for split in range(splits):
        for length in lengths:
            tiles = -(-length // TILE)
            size = -(-tiles // splits)
            jobs += [max(0, min(size, tiles - split * size))] * KV_HEADS
    return jobs


def test_no_program_is_busy_for_much_longer_than_its_share() -> None:
    """`pytest -s` prints the table."""
    print("\n                           shares before   now   pieces   of a row, at most")
    before = {}
    for name, lengths in LENGTHS.items():
        pieces = H200.cut(np.array(lengths))
        before[name], now = shares(alike(lengths), lengths), shares(jobs_of(pieces), lengths)
        print(f"{name:27} {before[name]:12.2f} {now:5.2f} {len(pieces):8} {pieces[:, 5].max():10}")
        assert now <= 1.5 and now <= before[name] + 1e-9
    assert before["255 of 500 and one of 32k"] > 9 and before["31 of 500 and one of 32k"] > 30


def test_rows_alike_are_not_cut_where_the_device_is_full() -> None:
    """Another program for a row costs a partial result."""
    assert len(H200.cut(np.full(256, 500))) == 256
    assert len(H200.cut(np.full(48, 1000))) == 48


@pytest.mark.parametrize("seed", range(4))
def test_random_lengths(seed: int) -> None:
    """Every key is in one piece, no piece is lost, and none comes that there is no room for. The makespan is bounded as list
    scheduling promises: pieces have half a share, or as few keys as are worth a program."""
    rng = np.random.default_rng(seed)
    for _ in range(150):
        rows, kv_heads = int(rng.integers(1, 257)), int(rng.choice([1, 2, 4, 8, 16]))
        tile = int(rng.choice([16, 32, 64, 128]))
        window = None if rng.random() < 0.6 else int(rng.integers(1, 5000))
        rule = PieceRule(max(1, SLOTS // kv_heads), tile, window)
        longest = int(rng.choice([1, 300, 4096, 40_960, 131_072]))
        lengths = np.minimum(np.exp(rng.uniform(0, 12, rows)).astype(np.int64), longest)
        lengths[rng.random(rows) < 0.05] = 0
        pieces = rule.cut(lengths)
        check(pieces, lengths, window, tile)
        assert len(pieces) <= rule.most(rows, longest)
        assert pieces[:, 5].max() <= MOST_OF_A_ROW
        seen = lengths if window is None else np.minimum(lengths, window + tile)
        share = (-(-seen // tile)).sum() / rule.programs
        # A row has so many pieces at most: where few key heads leave programs for more, its pieces are longer than half a share.
        least = max(rule.least // tile, -(-int(seen.max()) // tile // MOST_OF_A_ROW), share / 2)
        jobs = -(-(pieces[:, 2] - pieces[:, 1]) // tile)
        assert jobs.max(initial=0) <= max(least, 1.25 * share) + 1
        assert makespan(jobs.tolist(), rule.programs) <= share + least + 1


def check(pieces: np.ndarray, lengths: np.ndarray, window: int | None, unit: int) -> None:
    assert pieces.dtype == np.int32 and pieces.shape[1] == WORDS
    sizes = pieces[:, 2] - pieces[:, 1]
    assert (np.diff(sizes) <= 0).all(), "the longest come first"
    assert sorted(pieces[:, 3].tolist()) == list(range(len(pieces))), "two pieces write to one place"
    for row, length in enumerate(lengths.tolist()):
        own = pieces[pieces[:, 0] == row]
        own = own[np.argsort(own[:, 3])]
        assert (own[:, 5] == len(own)).all() and (own[:, 4] == own[0, 3]).all()
        assert own[:, 3].tolist() == list(range(own[0, 3], own[0, 3] + len(own)))
        begin = 0 if window is None else max(0, length - window) // unit * unit
        assert own[0, 1] == begin and own[-1, 2] == length
        assert (own[1:, 1] == own[:-1, 2]).all() and (own[1:, 1] % unit == 0).all()
        assert (own[:, 2] > own[:, 1]).all() or (length == 0 and len(own) == 1)


@pytest.mark.parametrize("window", [None, 300, 2000])
def test_steady_pieces_do_not_depend_on_the_batch(window: int | None) -> None:
    rule = PieceRule(H200.programs, TILE, window, steady=512)
    lengths = np.array([5000, 0, 1, 511, 512, 513, 32_768])
    pieces = rule.cut(lengths)
    check(pieces, lengths, window, 512)
    assert len(pieces) <= rule.most(len(lengths), 32_768)
    assert set(pieces[:, 1] % 512) == {0}
    for row, length in enumerate(lengths.tolist()):
        alone, own = rule.cut(np.array([length])), pieces[pieces[:, 0] == row]
        assert alone[:, [1, 2, 5]].tolist() == own[:, [1, 2, 5]].tolist()
        assert (alone[:, 3] - alone[:, 4]).tolist() == (own[:, 3] - own[:, 4]).tolist()


@pytest.mark.parametrize("count", [1, 3, 17, 49])
def test_as_many_pieces_as_are_asked_for(count: int) -> None:
    lengths = np.array([1000, 49, 48, 2, 0])
    pieces = PieceRule(1, TILE, count=count).cut(lengths)
    check(pieces, lengths, None, 1)
    assert np.bincount(pieces[:, 0]).tolist() == [min(count, max(1, length)) for length in lengths]
    assert len(pieces) <= PieceRule(1, TILE, count=count).most(5, 1000)


def test_rows_of_padding_have_a_piece_each() -> None:
    assert idle_pieces(3, 5, 9).tolist() == [[3, 0, 0, 9, 9, 1], [4, 0, 0, 10, 10, 1]]
    assert H200.cut(np.zeros(2)).tolist() == idle_pieces(0, 2, 0).tolist()
    assert H200.cut(np.empty(0)).shape == (0, WORDS)


def seconds_of(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(20):
        began = time.thread_time()
        for _ in range(50):
            call()
        best = min(best, (time.thread_time() - began) / 50)
    return best


def test_cutting_256_rows_takes_little_of_a_step() -> None:
    """Measured 17 to 30 us; a step of 256 rows takes some 10 ms."""
    for lengths in (LENGTHS["255 of 500 and one of 32k"], LENGTHS["256 of 500"]):
        given = np.array(lengths)
        assert seconds_of(lambda given=given: H200.cut(given)) < 200e-6  # type: ignore[misc]


@pytest.mark.parametrize(
    "rule",
    [
        H200, PieceRule(3, TILE, least=64), PieceRule(5, 32, 100, least=64), PieceRule(4, TILE, 128),
        PieceRule(3, TILE, steady=512), PieceRule(3, TILE, count=3),
    ],
)  # fmt: skip
def test_a_cut_lasts_while_rows_grow_together(rule: PieceRule) -> None:
    rng = np.random.default_rng(5)
    kept = 0
    for _ in range(300):
        lengths = rng.integers(1, rng.choice([90, 400, 3_000]), rng.choice([1, 2, 7, 60]))
        pieces = rule.cut(lengths)
        ends = pieces[:, 2] == lengths[pieces[:, 0]]
        for grown in range(min(rule.lasts(lengths), 200)):
            pieces[ends, 2] = lengths[pieces[ends, 0]] + grown
            assert np.array_equal(rule.cut(lengths + grown), pieces), (lengths, grown)
            kept += grown > 0
    assert kept > 300 or rule.count
