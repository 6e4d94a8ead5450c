"""Both attention kernels against plain float64 softmax, over random pages, mixed batches, windows and head sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention
from executors.kernels.triton.extend_attention import (
    FASTEST,
    LoopOptions,
    extend_attention,
    query_tiles,
    rows_per_tile,
)
from executors.kernels.triton.rotary import rotate_and_store
from executors.llm.attention.key_pieces import PieceRule, idle_pieces
from tests.tiers import sweep

pytestmark = pytest.mark.long

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {
    torch.float32: 2e-6 if DEVICE.type == "cpu" else 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
"""Without a GPU no bf16: the interpreter's products of bf16 operands are wrong. On one, divisions and powers are approximate."""


class Batch:
    """Sequences over shuffled pages. The cache is NaN wherever no key of theirs lies: nothing else may be read."""

    def __init__(
        self, q_lens: list[int], past: list[int], heads: tuple[int, int], dim: int, page: int, dtype: torch.dtype, seed: int,
        sinks: bool = False,
    ) -> None:  # fmt: skip
        """`sinks`: each head has one, of a size that neither hides it nor the keys."""
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.q_lens, self.past = np.array(q_lens), np.array(past)
        self.heads, self.kv_heads, self.dim, self.dtype = heads[0], heads[1], dim, dtype
        self.lengths = self.q_lens + self.past
        pages = -(-self.lengths // page)
        order = rng.permutation(int(pages.sum()) + 2)
        self.tables = np.full((len(q_lens), int(pages.max(initial=1))), 10**6, np.int32)
        self.kv = torch.full((2, len(order), self.kv_heads, page, dim), float("nan"), dtype=dtype)
        self.keys, self.values, used = [], [], 0
        for i, (length, count) in enumerate(zip(self.lengths, pages, strict=True)):
            self.tables[i, :count] = order[used : used + count]
            used += count
            both = torch.randn(2, length, self.kv_heads, dim, dtype=torch.float64).to(dtype)
            for place in range(length):
                self.kv[:, self.tables[i, place // page], :, place % page] = both[:, place]
            self.keys.append(both[0].double())
            self.values.append(both[1].double())
        self.q = torch.randn(int(self.q_lens.sum()), self.heads, dim, dtype=torch.float64).to(dtype)
        self.starts = np.cumsum(self.q_lens) - self.q_lens
        self.sinks = (2.0 + torch.randn(self.heads)).to(dtype) if sinks else None

    def expected(self, window: int | None, softcap: float | None) -> torch.Tensor:
        """float64 [T, heads, dim]."""
        parts = []
        for i, (q_len, past) in enumerate(zip(self.q_lens, self.past, strict=True)):
            q = self.q[self.starts[i] : self.starts[i] + q_len].double()
            group = self.heads // self.kv_heads
            keys = self.keys[i].repeat_interleave(group, 1)
            values = self.values[i].repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q, keys) * self.dim**-0.5
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            own = torch.arange(past, past + q_len)[:, None]
            place = torch.arange(past + q_len)[None]
            hidden = place > own
            if window is not None:
                hidden |= place <= own - window
            weights = scores.exp().masked_fill(hidden, 0.0)
            sink = 0.0 if self.sinks is None else self.sinks.double().exp()[:, None, None]
            shares = weights / (weights.sum(-1, keepdim=True) + sink)
            parts.append(torch.einsum("hqk,khd->qhd", shares, values))
        return torch.cat(parts)

    @property
    def sinks_there(self) -> torch.Tensor | None:
        return None if self.sinks is None else self.sinks.to(DEVICE)

    def on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(DEVICE)

    def extend(
        self, items: np.ndarray, window: int | None, softcap: float | None, out: torch.Tensor, padded: int = 0,
        loop: LoopOptions | None = None,
    ) -> None:  # fmt: skip
        rows = rows_per_tile(self.heads // self.kv_heads, self.dim, self.dtype)
        tiles = query_tiles(self.q_lens, self.past, items, rows // (self.heads // self.kv_heads))
        if padded:  # a graph's: of an item without queries, and behind the last query of one
            self.q_lens = np.append(self.q_lens, 0)
            self.past, self.starts = np.append(self.past, 0), np.append(self.starts, 0)
            tiles = np.concatenate((tiles, [[len(self.q_lens) - 1, 0]] * padded, [[0, 10**6]]))
        extend_attention(
            self.q.to(DEVICE), self.kv.to(DEVICE), out, self.on_device(tiles), self.on_device(self.starts),
            self.on_device(self.q_lens), self.on_device(self.past), self.on_device(self.tables), self.dim**-0.5,
            window=window, softcap=softcap, sinks=self.sinks_there, loop=loop,
        )  # fmt: skip

    def decode(
        self, items: np.ndarray, pieces: int | np.ndarray, window: int | None, softcap: float | None, out: torch.Tensor,
        steady: int = 0, listed: bool = False,
    ) -> DecodeWorkspace:  # fmt: skip
        """`pieces` of every row, or a list of them; `steady`: of so many keys. `listed`: items are named, though all are there.
        What is in the workspace before is NaN: what no piece wrote may not be read."""
        named = np.stack((items, self.starts[items]), 1)
        if isinstance(pieces, int):
            pieces = PieceRule(1, 64, steady=steady, count=pieces).cut(self.lengths[items])
        workspace = DecodeWorkspace(len(pieces), self.heads, self.kv_heads, self.dim, DEVICE)
        workspace.partial.fill_(float("nan"))
        workspace.lse.fill_(float("nan"))
        plain = len(items) == len(self.q_lens) and not listed
        decode_attention(
            self.q.to(DEVICE), self.kv.to(DEVICE), out, self.on_device(self.tables), self.on_device(self.lengths),
            self.dim**-0.5, self.on_device(pieces), workspace, window=window, softcap=softcap,
            items=None if plain else self.on_device(named), sinks=self.sinks_there,
        )  # fmt: skip
        assert not workspace.arrived.any(), "the next layer would add up too early"
        return workspace


def check(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    found = found.cpu().double()
    assert torch.isfinite(found).all()
    error = (found - expected).norm() / expected.norm()
    assert error < TOLERANCE[dtype], float(error)


def fresh(batch: Batch) -> torch.Tensor:
    """NaN until it is written."""
    return torch.full(batch.q.shape, float("nan"), dtype=batch.dtype, device=DEVICE)


@pytest.mark.long(every=5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "page", "window", "softcap"),
    [
        ((4, 2), 64, 16, None, None),
        ((7, 1), 64, 16, None, None),
        ((2, 2), 128, 32, None, None),
        ((4, 1), 80, 16, None, 30.0),
        ((2, 1), 96, 64, 20, None),
        ((4, 4), 32, 16, 5, None),
        ((4, 2), 256, 16, 70, 50.0),
        ((16, 1), 128, 16, None, None),
    ],
)
def test_decode(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, page: int, window: int | None, softcap: float | None
) -> None:
    lengths = [1, 2, 64, 65, 200]
    batch = Batch([1] * len(lengths), [n - 1 for n in lengths], heads, dim, page, dtype, dim + page)
    expected = batch.expected(window, softcap)
    for splits in (1, 5):
        out = fresh(batch)
        batch.decode(np.arange(len(lengths)), splits, window, softcap, out)
        check(out, expected, dtype)


@pytest.mark.long(every=5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "page", "window", "softcap"),
    [
        ((4, 2), 64, 16, None, None),
        ((7, 1), 64, 16, None, None),
        ((2, 2), 128, 32, None, 20.0),
        ((2, 1), 80, 16, 9, None),
        ((2, 1), 256, 16, 40, None),
    ],
)
def test_extend(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, page: int, window: int | None, softcap: float | None
) -> None:
    """Whole prompts, later chunks and decode steps in one call."""
    batch = Batch([5, 1, 70, 33, 1, 129], [0, 40, 0, 50, 130, 3], heads, dim, page, dtype, dim + page)
    out = fresh(batch)
    batch.extend(np.arange(6), window, softcap, out)
    check(out, batch.expected(window, softcap), dtype)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "sinks"), [(64, False), (64, True), (80, False), (128, False), (256, True)])
@pytest.mark.parametrize(
    ("window", "softcap"), [(None, None), (5, None), (32, None), (47, 20.0), (100, None), (None, 30.0)]
)
def test_whole_tiles_take_no_masks(
    dtype: torch.dtype, dim: int, sinks: bool, window: int | None, softcap: float | None
) -> None:
    """Random lengths and histories: windows and diagonals end within tiles of keys, at their borders and beside them."""
    rng = np.random.default_rng(dim + sinks + 2 * (window or 0))
    lens, past = rng.integers(1, 80, 4), rng.integers(0, 140, 4)
    past[0], lens[0] = 64, 64
    batch = Batch(lens.tolist(), past.tolist(), (4, 2), dim, 16, dtype, dim, sinks)
    out = fresh(batch)
    batch.extend(np.arange(4), window, softcap, out, loop=FASTEST)
    check(out, batch.expected(window, softcap), dtype)


def test_mixed_steps_take_both_kernels() -> None:
    """Each writes its own rows and no other."""
    batch = Batch([1, 20, 1, 3, 1], [64, 10, 0, 100, 33], (4, 2), 64, 16, torch.float32, 1)
    out, expected = fresh(batch), batch.expected(None, None)
    batch.decode(np.array([0, 2, 4]), 3, None, None, out)
    written = torch.isfinite(out).all(-1).all(-1).cpu()
    assert written.tolist() == (batch.q_lens == 1).repeat(batch.q_lens).tolist()
    batch.extend(np.array([1, 3]), None, None, out)
    check(out, expected, torch.float32)


@pytest.mark.parametrize("window", [None, 48])
def test_pieces_of_fixed_size_make_a_row_independent_of_its_batch(window: int | None) -> None:
    """Bit for bit, whatever is longer beside it and however many pieces that takes."""
    past, dtype = [300, 5, 1023, 128], torch.float32
    batch = Batch([1] * 4, past, (4, 2), 64, 16, dtype, 3)
    out = fresh(batch)
    batch.decode(np.arange(4), 0, window, None, out, steady=128)
    check(out, batch.expected(window, None), dtype)
    for i in (0, 1, 3):
        alone = fresh(batch)
        batch.decode(np.array([i]), 0, window, None, alone, steady=128)
        assert torch.equal(alone[i], out[i])


def test_a_row_without_keys_is_zero() -> None:
    """Padding of a captured graph: length 0."""
    batch = Batch([1, 1], [9, 3], (4, 2), 64, 16, torch.float32, 5)
    batch.lengths = np.array([10, 0])
    for splits in (1, 2):
        out = fresh(batch)
        batch.decode(np.arange(2), splits, None, None, out)
        assert torch.isfinite(out[0]).all()
        assert (out[1] == 0).all()


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("window", "steady"), [(None, 0), (100, 0), (None, 128), (100, 128)])
def test_pieces_before_the_window_and_padding_count_for_nothing(window: int | None, steady: int) -> None:
    """A layer with a window has the same pieces as one without. As in a graph: a row of length 0, and padding."""
    batch = Batch([1] * 4, [0, 299, 63, 39], (4, 2), 256, 16, torch.float32, 7)
    expected = batch.expected(window, None)
    batch.lengths = np.array([1, 300, 0, 40])  # the third is padding
    expected[2] = 0.0
    pieces = PieceRule(4, 32, steady=steady, least=32).cut(batch.lengths)
    assert pieces[:, 5].max() >= 3
    padded = np.concatenate((pieces, np.full((7, pieces.shape[1]), -1)))
    out = fresh(batch)
    batch.decode(np.arange(4), padded, window, None, out)
    check(out, expected, torch.float32)


def test_rows_that_no_piece_names_are_not_written() -> None:
    batch = Batch([1] * 3, [40, 90, 5], (4, 2), 64, 16, torch.float32, 8)
    out = fresh(batch)
    pieces = PieceRule(1, 64, count=3).cut(batch.lengths)
    pieces[pieces[:, 0] == 1] = -1
    batch.decode(np.arange(3), pieces, None, None, out)
    assert torch.isnan(out[1]).all() and torch.isfinite(out[[0, 2]]).all()


@pytest.mark.long(every=3)
@sweep(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "window", "softcap", "count"),
    [
        ((2, 1), 64, None, None, 3), ((2, 1), 64, None, None, 17), ((2, 1), 64, None, None, 49), ((4, 2), 32, None, None, 64),
        ((3, 1), 80, None, 20.0, 49), ((2, 1), 64, 333, None, 49), ((16, 1), 128, None, None, 33),
    ],
)  # fmt: skip
def test_many_pieces_of_a_row(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, window: int | None, softcap: float | None, count: int
) -> None:  # fmt: skip
    """Beside rows with fewer and with one; named and in order."""
    past = [511, 99, 3, 0]
    batch = Batch([1] * 4, past, heads, dim, 16, dtype, dim + count)
    expected = batch.expected(window, softcap)
    pieces = PieceRule(1, 64, count=count).cut(batch.lengths)
    assert np.bincount(pieces[:, 0]).tolist() == [count, count, min(4, count), 1]
    out = fresh(batch)
    batch.decode(np.arange(4), pieces, window, softcap, out, listed=count == 17)
    check(out, expected, dtype)


@pytest.mark.long(every=6)
@pytest.mark.parametrize("seed", range(6))
def test_random_lengths_cut_by_the_rule(seed: int) -> None:
    """Of page and tile borders, and 0. Some are 40 times the others."""
    rng = np.random.default_rng(seed)
    past = rng.choice([0, 15, 16, 31, 63, 64, 65, 127, 128, *rng.integers(0, 300, 6)], 9)
    past[rng.integers(9)] = rng.choice([1023, 1024, 1500])
    batch = Batch([1] * 9, past.tolist(), (4, 2), 64, int(rng.choice([16, 32, 64])), torch.float32, seed)
    window = None if seed % 3 else int(rng.integers(1, 200))
    expected = batch.expected(window, None)
    empty = int(rng.integers(9))
    batch.lengths[empty], expected[empty] = 0, 0.0
    rule = PieceRule(int(rng.integers(2, 40)), 64, window if seed % 2 else None, least=64)
    pieces = rule.cut(batch.lengths)
    assert pieces[:, 5].max() > 1
    out = fresh(batch)
    batch.decode(np.arange(9), pieces, window, None, out)
    check(out, expected, torch.float32)


def test_a_row_is_added_up_by_whoever_ends_last() -> None:
    """In any order the same, bit for bit."""
    batch = Batch([1] * 3, [400, 700, 0], (4, 2), 64, 16, torch.float32, 9)
    pieces = PieceRule(1, 64, count=7).cut(batch.lengths)
    outs = []
    for seed in range(3):
        outs.append(fresh(batch))
        order = np.random.default_rng(seed).permutation(len(pieces))
        batch.decode(np.arange(3), pieces[order], None, None, outs[-1])
    check(outs[0], batch.expected(None, None), torch.float32)
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_more_pieces_than_there_is_room_for_are_refused() -> None:
    batch = Batch([1], [9], (4, 2), 64, 16, torch.float32, 5)
    with pytest.raises(ValueError, match="2 pieces, and room for 1"):
        decode_attention(
            batch.q, batch.kv, batch.q, torch.zeros(1, 1), torch.ones(1), 1.0, torch.from_numpy(idle_pieces(0, 2, 0)),
            DecodeWorkspace(1, 4, 2, 64, DEVICE),
        )  # fmt: skip


def test_tiles_of_padding_write_nothing() -> None:
    """They come last and name an item without queries, or none of an item's queries."""
    batch = Batch([70, 5], [3, 40], (4, 2), 64, 16, torch.float32, 11)
    expected = batch.expected(None, None)
    q_lens = batch.q_lens
    out = torch.full((100, 4, 64), float("nan"), device=DEVICE)
    batch.q = torch.cat((batch.q, torch.full((25, 4, 64), float("nan"))))
    batch.extend(np.arange(2), None, None, out, padded=5)
    check(out[: q_lens.sum()], expected, torch.float32)
    assert torch.isnan(out[q_lens.sum() :]).all()


def test_tiles_cover_every_query_once_and_those_with_most_keys_begin_first() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        q_lens, past = rng.integers(1, 300, 9), rng.integers(0, 500, 9)
        items = np.sort(rng.permutation(9)[:5])
        queries = int(rng.integers(1, 130))
        tiles = query_tiles(q_lens, past, items, queries)
        ends = [(item, begin, min(begin + queries, q_lens[item])) for item, begin in tiles.tolist()]
        seen = [(item, row) for item, begin, end in ends for row in range(begin, end)]
        assert sorted(seen) == [(i, row) for i in items for row in range(q_lens[i])]
        keys = [past[item] + end for item, _, end in ends]
        assert keys == sorted(keys, reverse=True)


def test_the_order_of_tiles() -> None:
    """A short chunk behind much context reads more than the beginning of a long prompt."""
    q_lens, past = np.array([6, 1, 3, 4]), np.array([0, 9, 100, 2])
    tiles = query_tiles(q_lens, past, np.array([0, 2, 3]), 2)
    assert tiles.dtype == np.int32
    assert tiles.tolist() == [[2, 2], [2, 0], [0, 4], [3, 2], [0, 2], [3, 0], [0, 0]]
    assert query_tiles(q_lens, past, np.array([], np.int64), 2).shape == (0, 2)


def test_kernels_follow_the_strides_of_sides_pages_and_heads() -> None:
    batch = Batch([1, 5, 1], [20, 3, 0], (4, 2), 16, 8, torch.float32, 3)
    contiguous = batch.kv
    cells = torch.tensor([int(batch.tables[1, 0]) * 8 + 1, int(batch.tables[0, 2]) * 8 + 7, -1])
    qkv = torch.randn(3, (4 + 2 * 2) * 16)
    found = []
    for kv in (contiguous, _placed_by_block(contiguous)):
        batch.kv, out = kv, fresh(batch)
        batch.extend(np.array([1]), None, None, out)
        batch.decode(np.array([0, 2]), 2, None, None, out, listed=True)
        stored = kv.to(DEVICE).clone() if kv is contiguous else _placed_by_block(kv.to(DEVICE))
        rotate_and_store(qkv.to(DEVICE), stored, cells.to(DEVICE), 4)
        found.append((out, stored))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1].nan_to_num(9.0), found[1][1].nan_to_num(9.0))
    assert not torch.equal(found[0][1].nan_to_num(9.0).cpu(), contiguous.nan_to_num(9.0)), (
        "two tokens are stored"
    )


def _placed_by_block(kv: torch.Tensor) -> torch.Tensor:
    """The same keys and values, [pages][heads][sides] with room behind each page: as on a CPU, see `KvCache`."""
    sides, pages, heads, page, dim = kv.shape
    memory = torch.zeros(pages, heads * sides * page * dim + 24, dtype=kv.dtype, device=kv.device)
    inner = sides * page * dim
    placed = memory.as_strided(kv.shape, (page * dim, memory.shape[1], inner, dim, 1))
    placed.copy_(kv)
    return placed


# -- sinks and heads of 512 ----------------------------------------------------------------------------------------------


@pytest.mark.long(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "window", "softcap", "sinks"),
    [
        ((16, 2), 64, 128, None, True),
        ((16, 2), 64, None, None, True),
        ((3, 3), 32, 1, None, True),
        ((7, 1), 80, 50, 20.0, True),
        ((8, 1), 512, None, None, False),
        ((2, 1), 512, 60, 20.0, True),
    ],
)
def test_sinks_and_wide_heads(
    dtype: torch.dtype,
    heads: tuple[int, int],
    dim: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
) -> None:
    """Decodes in one piece and in several, beside rows with fewer; prompts, chunks and single queries. With a window of 1 a token
    sees itself and the sink."""
    lengths = [1, 2, 64, 65, 200]
    batch = Batch([1] * 5, [n - 1 for n in lengths], heads, dim, 16, dtype, dim, sinks)
    expected = batch.expected(window, softcap)
    for splits in (1, 5):
        out = fresh(batch)
        batch.decode(np.arange(5), splits, window, softcap, out)
        check(out, expected, dtype)
    batch = Batch([5, 1, 40, 1], [0, 40, 30, 100], heads, dim, 16, dtype, dim + 1, sinks)
    out = fresh(batch)
    batch.extend(np.arange(4), window, softcap, out)
    check(out, batch.expected(window, softcap), dtype)


@pytest.mark.parametrize("size", [60.0, -60.0])
def test_a_sink_of_any_size(size: float) -> None:
    """It leaves nothing to the keys, or is nothing beside them; in one piece and in several. A row without keys is zero."""
    batch = Batch([1] * 3, [9, 130, 3], (4, 2), 64, 16, torch.float32, 5, sinks=True)
    assert batch.sinks is not None
    batch.sinks[:] = size
    expected = batch.expected(None, None)
    batch.lengths[2], expected[2] = 0, 0.0
    for splits in (1, 3):
        out = fresh(batch)
        batch.decode(np.arange(3), splits, None, None, out)
        assert torch.isfinite(out).all()
        assert torch.allclose(out.cpu().double(), expected, atol=2e-6)
