"""Extend attention whose tiles' keys are shared, against plain float64 softmax: random cuts, options of the loop, padding, any
order of programs. And how tiles are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from executors.kernels.triton.extend_attention import (
    FASTEST,
    MASKED,
    LoopOptions,
    query_tiles,
    rows_per_tile,
)
from executors.kernels.triton.shared_extend import (
    ExtendWorkspace,
    shared_extend_attention,
    tile_keys,
    tuned,
)
from executors.kernels.triton.tuning import HEADS, choose
from executors.llm.attention.key_pieces import WORDS
from executors.llm.attention.tile_pieces import MOST_OF_A_SHARE, TileRule, num_places
from tests.gpu.test_attention import DEVICE, DTYPES, Batch, check, fresh

ALONE = [
    MASKED,
    LoopOptions(True, False, False),
    LoopOptions(False, True, False),
    LoopOptions(False, False, True),
]
"""Each option by itself, and none."""


class Shared:
    """A batch's tiles as `shared_extend_attention` takes them. What no piece wrote is NaN and may not be read."""

    def __init__(self, batch: Batch, items: np.ndarray) -> None:
        group = batch.heads // batch.kv_heads
        self.batch, self.queries = batch, rows_per_tile(group, batch.dim, batch.dtype) // group
        self.tiles = query_tiles(batch.q_lens, batch.past, items, self.queries)
        self.keys = tile_keys(self.tiles, batch.q_lens, batch.past, self.queries)

    def attend(
        self, pieces: np.ndarray, window: int | None, softcap: float | None, loop: LoopOptions = FASTEST, *,
        depth: int = 0, kv: torch.Tensor | None = None, scales: tuple[float, float] = (1.0, 1.0),
        peaks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """`depth`: keys at a time, 0: the table's."""
        batch, out = self.batch, fresh(self.batch)
        places = max(1, num_places(pieces))
        workspace = ExtendWorkspace(places, batch.heads, batch.kv_heads, batch.dim, DEVICE, batch.dtype)
        workspace.partial.fill_(float("nan"))
        workspace.lse.fill_(float("nan"))
        on, there = batch.on_device, batch.kv.to(DEVICE) if kv is None else kv
        row = tuned(batch.dim, batch.dtype, there.dtype)
        shared_extend_attention(
            batch.q.to(DEVICE), there, out, on(self.tiles), on(pieces), on(batch.starts), on(batch.q_lens), on(batch.past),
            on(batch.tables), batch.dim**-0.5, workspace, window=window, softcap=softcap, kv_scales=scales, loop=loop,
            sinks=batch.sinks_there, peaks=peaks, row=replace(row, depth=depth or row.depth),
        )  # fmt: skip
        assert not workspace.arrived.any(), "the next layer would add up too early"
        return out


def cut_at_random(keys: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Pieces of any lengths, empty ones included, in any order."""
    rows = []
    place = 0
    for row, length in enumerate(keys.tolist()):
        count = int(rng.integers(1, most + 1))
        borders = [0, *sorted(rng.integers(0, length + 1, count - 1).tolist()), length]
        first = place
        for begin, end in pairwise(borders):
            rows.append((row, begin, end, place, first, count))
            place += count > 1
    pieces = np.array(rows, np.int32)
    return pieces[rng.permutation(len(pieces))]


def small(past: int = 130) -> Batch:
    """Tiles of 64 queries: one that is full, one that is not, and chunks of a few queries behind many keys."""
    return Batch([70, 5, 1], [past, 61, 0], (4, 2), 32, 16, torch.float32, 1)


def test_tiles_are_added_up_by_the_program_that_ends_last() -> None:
    """In any order of programs the same, bit for bit."""
    shared = Shared(small(), np.arange(3))
    pieces = TileRule(8, 32).cut(shared.keys)
    assert pieces[:, 5].max() == 1, "pieces of 256 keys at least"
    pieces = TileRule(1, 32, count=3).cut(shared.keys)
    outs = [shared.attend(pieces[order], None, None) for order in (slice(None), slice(None, None, -1))]
    check(outs[0], shared.batch.expected(None, None), torch.float32)
    assert torch.equal(*outs)


@pytest.mark.parametrize("past", [30, 31, 32])
def test_keys_that_one_query_does_not_see_are_masked(past: int) -> None:
    """A tile of keys ends with the first query's own key, one before it and one behind it."""
    batch = Batch([4], [past], (2, 1), 32, 16, torch.float32, past)
    shared = Shared(batch, np.arange(1))
    assert tuned(batch.dim, batch.dtype, batch.dtype).depth == 32
    for count, window in ((1, None), (2, None), (1, 33), (1, 34)):
        pieces = TileRule(1, 32, parts=2, count=count).cut(shared.keys)
        check(shared.attend(pieces, window, None), batch.expected(window, None), torch.float32)


@pytest.mark.long(every=4)
@pytest.mark.parametrize(("loop", "depth"), [*((one, 0) for one in (*ALONE, FASTEST)), (FASTEST, 16)])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (40, None), (None, 20.0), (9, 30.0)])
def test_options_of_the_loop(
    loop: LoopOptions, depth: int, window: int | None, softcap: float | None
) -> None:
    shared = Shared(small(), np.arange(3))
    pieces = cut_at_random(shared.keys, 4, np.random.default_rng(5))
    check(
        shared.attend(pieces, window, softcap, loop, depth=depth),
        shared.batch.expected(window, softcap),
        torch.float32,
    )


@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "page", "window", "softcap"),
    [
        ((4, 2), 64, 16, None, None),
        ((7, 1), 64, 16, 50, None),
        ((2, 2), 128, 32, None, 20.0),
        ((2, 1), 80, 16, 9, None),
        ((2, 1), 256, 16, 40, 30.0),
    ],
)
def test_random_cuts(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, page: int, window: int | None, softcap: float | None
) -> None:
    batch = Batch([5, 1, 70, 33, 1, 129], [0, 140, 0, 250, 30, 3], heads, dim, page, dtype, dim + page)
    shared = Shared(batch, np.arange(6))
    pieces = cut_at_random(shared.keys, 6, np.random.default_rng(dim))
    check(shared.attend(pieces, window, softcap), batch.expected(window, softcap), dtype)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("loop", [FASTEST, MASKED], ids=["fastest", "masked"])
@pytest.mark.parametrize(("dim", "window"), [(32, None), (32, 40), (512, None)])
def test_a_sink_counts_once_however_keys_are_shared(loop: LoopOptions, dim: int, window: int | None) -> None:
    batch = Batch([70, 5, 1], [130, 61, 0], (4, 2), dim, 16, torch.float32, 1, sinks=True)
    shared = Shared(batch, np.arange(3))
    expected = batch.expected(window, None)
    for most in (1, 4):
        pieces = cut_at_random(shared.keys, most, np.random.default_rng(5))
        check(shared.attend(pieces, window, None, loop), expected, torch.float32)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("window", [None, 70])
def test_cuts_of_the_rule_with_padding(window: int | None) -> None:
    """As in a graph: tiles of an item without queries, pieces of no tile, and a tile that no piece names."""
    batch = Batch([40, 3], [1000, 600], (4, 2), 64, 16, torch.float32, 8)
    shared = Shared(batch, np.arange(2))
    expected = batch.expected(window, None)
    pieces = TileRule(6, 64, None if window is None else window + shared.queries).cut(shared.keys)
    assert window is not None or sorted(np.bincount(pieces[:, 0]).tolist()) == [2, 4]
    batch.q_lens, batch.past = np.append(batch.q_lens, 0), np.append(batch.past, 0)
    batch.starts = np.append(batch.starts, 0)
    shared.tiles = np.concatenate((shared.tiles, [[2, 0]])).astype(np.int32)
    idle = [[2, 0, 0, 0, 0, 1], *[[-1] * WORDS] * 3]
    padded = np.concatenate((pieces, idle)).astype(np.int32)
    check(shared.attend(padded, window, None), expected, torch.float32)
    alone = shared.attend(padded[padded[:, 0] != 1], window, None).cpu()
    first = shared.tiles[1, 0]
    own = np.repeat(np.arange(2), batch.q_lens[:2]) == first
    assert torch.isnan(alone[own]).all() and torch.isfinite(alone[~own]).all()


def check_pieces(keys: np.ndarray, pieces: np.ndarray, rule: TileRule) -> None:
    """Each tile's pieces follow each other from its first key to its last, and places are each shared piece's own."""
    places = num_places(pieces)
    assert places <= rule.most_places and len(pieces) <= rule.most(len(keys), int(keys.max()))
    assert sorted(set(pieces[:, 0].tolist())) == list(range(len(keys)))
    for row, length in enumerate(keys.tolist()):
        own = pieces[pieces[:, 0] == row]
        own = own[np.argsort(own[:, 1])]
        assert own[0, 1] == 0 and own[-1, 2] == length
        assert (own[1:, 1] == own[:-1, 2]).all() and (own[:, 5] == len(own)).all()
        if len(own) > 1:
            assert (own[:, 3] == own[0, 4] + np.arange(len(own))).all() and own[-1, 3] < places
            least = max(1, rule.least // rule.tile // 2) * rule.tile
            assert (own[:-1, 2] - own[:-1, 1] >= least).all() and len(own) <= rule.parts
    shared = pieces[pieces[:, 5] > 1]
    assert len(set(shared[:, 3].tolist())) == len(shared) == places


@pytest.mark.parametrize(
    ("sequences", "queries", "past", "cut"),
    [
        (1, 64, 7_000, True),
        (1, 5, 300, True),
        (1, 5, 200, False),
        (1, 512, 32_000, True),
        (3, 9, 200, False),
        (40, 64, 100, False),
        # As many tiles as programs, and all are alike.
        (33, 64, 7_000, False),
        # A long prompt: its longest tile is less than a share.
        (1, 8_192, 0, False),
    ],
)
def test_how_tiles_are_cut(sequences: int, queries: int, past: int, cut: bool) -> None:
    q_lens, before = np.full(sequences, queries), np.full(sequences, past)
    tiles = query_tiles(q_lens, before, np.arange(sequences), 64)
    keys, rule = tile_keys(tiles, q_lens, before, 64), TileRule(33, 64)
    pieces = rule.cut(keys)
    check_pieces(keys, pieces, rule)
    assert (num_places(pieces) > 0) is cut
    if len(tiles) < rule.programs:  # As many programs as the device runs at once, and no more.
        assert len(pieces) <= rule.programs


def test_a_long_history_beside_a_prompt_is_shared() -> None:
    """The prompt's tiles alone are as many as programs; the agent's would run long after they end."""
    q_lens, past = np.array([64, 2_048]), np.array([32_000, 0])
    tiles = query_tiles(q_lens, past, np.arange(2), 64)
    keys, rule = tile_keys(tiles, q_lens, past, 64), TileRule(16, 64)
    pieces = rule.cut(keys)
    check_pieces(keys, pieces, rule)
    assert tiles[0].tolist() == [0, 0] and (pieces[pieces[:, 5] > 1, 0] == 0).all()
    assert num_places(pieces) == rule.parts
    longest = int((pieces[:, 2] - pieces[:, 1]).max())
    assert (
        longest <= -(-int(keys[0]) // rule.parts // 64 + 1) * 64
        or longest * 16 <= MOST_OF_A_SHARE * keys.sum()
    )


def test_random_tiles_are_cut_within_bounds() -> None:
    rng = np.random.default_rng(1)
    cut = 0
    for _ in range(300):
        count = int(rng.integers(1, 60))
        keys = np.sort(rng.integers(1, int(10 ** rng.uniform(1, 5)), count))[::-1].astype(np.int64)
        rule = TileRule(
            int(rng.integers(1, 133)), int(rng.choice([16, 32, 64])), None, int(rng.integers(2, 17)),
            int(rng.choice([64, 256])),
        )  # fmt: skip
        pieces = rule.cut(keys)
        check_pieces(keys, pieces, rule)
        cut += num_places(pieces) > 0
        assert rule.most(count + 1, int(keys.max())) >= rule.most(count, int(keys.max()))
    assert 50 < cut < 300


def test_where_nothing_is_cut_there_are_no_pieces() -> None:
    rule = TileRule(16, 64, parts=1)
    assert rule.most(5, 40_000) == 0 and rule.cut(np.array([7_000])).shape == (0, WORDS)
    with pytest.raises(ValueError, match="as many as there are tiles"):
        _ = TileRule(16, 64, count=3).most_places


def test_keys_of_tiles_end_with_their_last_query() -> None:
    q_lens, past = np.array([100, 7]), np.array([0, 50])
    tiles = query_tiles(q_lens, past, np.arange(2), 64)
    assert tiles.tolist() == [[0, 64], [0, 0], [1, 0]]
    assert tile_keys(tiles, q_lens, past, 64).tolist() == [100, 64, 57]


def test_tiles_of_keys_are_those_of_extend_attention() -> None:
    for kind in ("half", "e4m3", "int8", "float32"):
        for head in HEADS:
            one, other = choose("shared_extend", kind, head), choose("extend_attention", kind, head)
            assert one.depth == other.depth, (
                "what is computed at once is the same, whether keys are shared or not"
            )
            assert one.rows == 0 and one.programs == 1
            assert (one.parts > 1) is (kind != "float32" and head < 512), "others spill registers"
