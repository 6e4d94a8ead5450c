"""Causal attention of prompt chunks over paged KV, including the chunk's own keys, which are written first.

FlashAttention-2 (Dao, 2023) with keys found through block tables. A program takes a tile of queries of one key head. The
query heads that share it are adjacent in the tile, so that a key is read once for all of them. A decode step is a chunk of
one token: mixed batches run in one call, at the cost of tiles that are nearly empty.

A key may be hidden from a query among the last keys of a tile of queries and the first ones of a window. Only those take
masks: the tiles of keys between them, most of a long history, go through a loop without.

Operations: 4 * head_dim for each pair of a query head and a key. Bytes: keys and values once for each tile of queries. A
program reads all keys of its tile one after the other, so few tiles behind a long history keep most of a device idle:
`shared_extend.py` is launched then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from executors.kernels.triton.int8_kv import factors
from executors.kernels.triton.tile import add_sink, attend_tile
from executors.kernels.triton.tuning import Choice, choose, head_class, head_shape, kind_of


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How the loop over keys is compiled.

    `skip_masks`: no masks where all rows see all keys. `base2`: powers of 2 in place of e, whose factor is in the scale.
    `near`: 32-bit offsets from a pointer to a key.
    """

    skip_masks: bool = True
    base2: bool = True
    near: bool = True

    def base(self, softcap: float | None) -> float:
        """Return the factor of scores. With a cap it comes behind it, in the kernel."""
        return math.log2(math.e) if self.base2 and softcap is None else 1.0


MASKED = LoopOptions(skip_masks=False, base2=False, near=False)
"""Each tile of keys takes masks, as decode attention's do."""
FASTEST = LoopOptions()
_MANY = 64
"""Programs of a launch that has many queries: half of the multiprocessors of an H200, so that keys of a tile are cut once."""
_LARGEST_GROUP = 8
"""Query heads of a key head up to which tiles of 128 keys spill no registers: with 16 those that share keys do."""


def loop_of(row: Choice) -> LoopOptions:
    """Return the loop of a row of the table."""
    return FASTEST if row.whole else MASKED


@triton.jit
def attend_keys(
    begin, end, block, keys, values, key_peaks, value_peaks, table, head, seen_from, last, own, best, total, mixed,
    scale, softcap, window,
    STRIDE: tl.constexpr, HEAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, WHOLE: tl.constexpr, BASE2: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Update `best`, `total` and `mixed` with the keys at begin .. end, of which those from `last` on do not exist. With a
    window, those before `seen_from` may be other sequences'. `own` [rows]: position of each row's query."""
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        there = place < last
        visible = there[None, :] & (place[None, :] <= own[:, None])
        if WINDOW:
            there &= place >= seen_from
            visible &= place[None, :] > own[:, None] - window
        best, total, mixed = attend_tile(
            block, keys, values, key_peaks, value_peaks, table, head, place, there, visible, best, total, mixed, scale, softcap,
            STRIDE, HEAD, DIM, DIM_PAD, PAGE, SOFTCAP, WHOLE, BASE2, NEAR,
        )  # fmt: skip
    return best, total, mixed


@triton.jit
def attend_piece(
    low, last, first, after, block, keys, values, key_peaks, value_peaks, table, head, own, best, total, mixed,
    scale, softcap, window,
    STRIDE: tl.constexpr, HEAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SKIP_MASKS: tl.constexpr, BASE2: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """As `attend_keys`, of the keys low .. last of a tile whose queries are at the positions `first` up to `after`."""
    seen_from = tl.maximum(first + 1 - window, 0) if WINDOW else 0
    if WINDOW:
        low = tl.maximum(low, seen_from // TILE * TILE)
    if SKIP_MASKS:
        if WINDOW:
            # The last query sees none of the keys before this one.
            hidden = after - window
            middle = tl.minimum(low + (tl.maximum(hidden - low, 0) + TILE - 1) // TILE * TILE, last)
            best, total, mixed = attend_keys(
                low, middle, block, keys, values, key_peaks, value_peaks, table, head, seen_from, last, own, best, total, mixed,
                scale, softcap, window, STRIDE, HEAD, DIM, DIM_PAD, PAGE, TILE, SOFTCAP, WINDOW, False, BASE2, NEAR,
            )  # fmt: skip
            low = tl.maximum(low, middle)
        # The first query sees all keys before this one, and so do the others.
        common = tl.minimum(last, first + 1)
        middle = low + tl.maximum(common - low, 0) // TILE * TILE
        best, total, mixed = attend_keys(
            low, middle, block, keys, values, key_peaks, value_peaks, table, head, seen_from, last, own, best, total, mixed,
            scale, softcap, window, STRIDE, HEAD, DIM, DIM_PAD, PAGE, TILE, SOFTCAP, False, True, BASE2, NEAR,
        )  # fmt: skip
        low = middle
    best, total, mixed = attend_keys(
        low, last, block, keys, values, key_peaks, value_peaks, table, head, seen_from, last, own, best, total, mixed,
        scale, softcap, window, STRIDE, HEAD, DIM, DIM_PAD, PAGE, TILE, SOFTCAP, WINDOW, False, BASE2, NEAR,
    )  # fmt: skip
    return best, total, mixed


# See `_split_kernel`.
@triton.jit(do_not_specialize=["table_stride"])
def _extend_kernel(
    q, keys, values, key_peaks, value_peaks, out, sinks, tiles, q_starts, q_lens, pos_offsets, tables, table_stride,
    scale, value_scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr, HEAD: tl.constexpr,
    SINKS: tl.constexpr, SKIP_MASKS: tl.constexpr, BASE2: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """One (tile of queries, key head). Rows: query after query, each with its GROUP heads; remaining rows are idle."""
    # All heads of a tile before the next tile: in a grid of two dimensions the longest of the last head would begin near the end.
    tile = tl.program_id(0) // KV_HEADS
    head = tl.program_id(0) % KV_HEADS
    item = tl.load(tiles + 2 * tile)
    begin = tl.load(tiles + 2 * tile + 1)
    q_start = tl.load(q_starts + item).to(tl.int64)
    q_len = tl.load(q_lens + item)
    if begin >= q_len:  # padding of a graph
        return
    offset = tl.load(pos_offsets + item)

    QUERIES: tl.constexpr = ROWS // GROUP
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    query = begin + rows // GROUP
    real = (query < q_len) & (rows < QUERIES * GROUP)
    row_at = ((q_start + query) * KV_HEADS + head) * GROUP + rows % GROUP
    at = row_at[:, None] * DIM + dims[None, :]
    block = tl.load(q + at, mask=real[:, None] & (dims[None, :] < DIM), other=0.0)

    last = offset + tl.minimum(begin + QUERIES, q_len)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM_PAD), tl.float32)
    table = tables + item.to(tl.int64) * table_stride
    best, total, mixed = attend_piece(
        0, last, offset + begin, last, block, keys, values, key_peaks, value_peaks, table, head, offset + query,
        best, total, mixed, scale, softcap, window,
        STRIDE, HEAD, DIM, DIM_PAD, PAGE, TILE, SOFTCAP, WINDOW, SKIP_MASKS, BASE2, NEAR,
    )  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head * GROUP + rows % GROUP).to(tl.float32)
        total, mixed = add_sink(sink, best, total, mixed, BASE2)
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None] * value_scale
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=real[:, None] & (dims[None, :] < DIM))


def rows_per_tile(group: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> int:
    """Return the rows of a tile, a power of two: a query takes `group` of them, one per head. `dtype`: that of queries."""
    chosen = choose("extend_attention", kind_of(dtype), head_class(head_dim)).rows
    return max(chosen, triton.next_power_of_2(group))


def is_plain(
    tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, window: int | None, softcap: float | None,
    sinks: bool,
) -> bool:  # fmt: skip
    """Return whether a launch of so many rows of q takes the table's rows for plain heads. No number of its loop is beside those
    that all need: no window, cap or sinks, and a group that divides a tile's rows (with one of seven, 128 keys spill).
    And its queries are many. Few behind a long history have their keys cut, and of a short piece a large tile is rarely full:
    on an H200 64 queries behind 7,000 keys take 1.11 of the time with tiles of 128 keys, 512 take 0.95."""
    if window is not None or softcap is not None or sinks:
        return False
    group = heads // kv_heads
    return group & -group == group <= _LARGEST_GROUP and tokens >= many_from(heads, kv_heads, head_dim, dtype)


def many_from(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Return the number of rows of q from which on its queries are many: they fill the tiles of `_MANY` programs."""
    return -(-_MANY * rows_per_tile(heads // kv_heads, head_dim, dtype) // heads)


def query_tiles(q_lens: np.ndarray, pos_offsets: np.ndarray, items: np.ndarray, queries: int) -> np.ndarray:
    """Return int32 [tiles, 2]: (item, its first query) of every tile of `queries` queries of the given items. `q_lens` int
    [n] of all items, `pos_offsets` int [n] the tokens before them.

    Tiles with the most keys to read come first: the device starts tiles in order, and a long tile that starts last would run
    while all other processors are idle.
    """
    counts = -(-q_lens[items] // queries)
    begins = (np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)) * queries
    items = np.repeat(items, counts)
    keys = pos_offsets[items] + np.minimum(begins + queries, q_lens[items])
    order = np.argsort(-keys, kind="stable")
    return np.stack((items[order], begins[order]), 1).astype(np.int32)


def extend_attention(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, tiles: torch.Tensor, q_starts: torch.Tensor,
    q_lens: torch.Tensor, pos_offsets: torch.Tensor, tables: torch.Tensor, scale: float, *,
    window: int | None = None, softcap: float | None = None, kv_scales: tuple[float, float] = (1.0, 1.0),
    sinks: torch.Tensor | None = None, peaks: torch.Tensor | None = None, loop: LoopOptions | None = None,
    steady: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Write the attention of the queries in `tiles` to `out` [T, heads, head_dim]: `query_tiles` of rows_per_tile // group for
    queries of this dtype.

    `q` [T, heads, head_dim] and `kv` [2, pages, kv_heads, page, head_dim] of one dtype, contiguous but for the strides of
    sides, pages and heads; or `kv` in e4m3, which the `kv_scales` of keys and values multiply; or codes in int8 with `peaks`, see
    `int8_kv.factors`. int32 per item: `q_starts` its first row of q, `q_lens` its rows, `pos_offsets` its tokens in the cache
    before them; `tables` int32 [n, pages]. A tile that begins after its item's queries (padding of a graph) writes nothing.
    `sinks`: see `decode_attention`. `loop`: None for that of the table. `steady`: a query's result is bitwise the same beside any
    number of others.
    """
    tokens, heads, dim = q.shape
    _, _, kv_heads, page, _ = kv.shape
    group, pad = heads // kv_heads, triton.next_power_of_2(dim)
    plain = not steady and loop in (None, FASTEST) and is_plain(
        tokens, heads, kv_heads, dim, q.dtype, window=window, softcap=softcap, sinks=sinks is not None,
    )  # fmt: skip
    rows = rows_per_tile(group, dim, q.dtype)
    tile = choose("extend_attention", kind_of(q.dtype, kv.dtype), head_shape(dim, plain))
    loop = loop or loop_of(tile)
    # A larger group makes more rows than the table's.
    warps = tile.warps if rows == tile.rows else max(tile.warps, 8 if rows >= 128 else 4)
    key_peaks, value_peaks, key_factor, value_factor = factors(kv, peaks, kv_scales)
    _extend_kernel[(len(tiles) * kv_heads,)](
        q, kv[0], kv[1], key_peaks, value_peaks, out, sinks, tiles, q_starts, q_lens, pos_offsets, tables, tables.stride(0),
        scale * key_factor * loop.base(softcap), value_factor, softcap or 1.0, window or 0,
        KV_HEADS=kv_heads, GROUP=group, ROWS=rows, DIM=dim, DIM_PAD=pad, PAGE=page,
        TILE=tile.depth, SOFTCAP=softcap is not None, WINDOW=window is not None, STRIDE=kv.stride(1), HEAD=kv.stride(2),
        SINKS=sinks is not None, SKIP_MASKS=loop.skip_masks, BASE2=loop.base2, NEAR=loop.near,
        num_warps=warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
