"""Causal attention of prompt chunks over paged KV, including the chunk's own keys, which are written first.

FlashAttention-2 (Dao, 2023) with keys found through block tables. A program takes a tile of queries of one key head. The
query heads that share it are adjacent in the tile, so that a key is read once for all of them. A decode step is a chunk of
one token: mixed batches run in one call, at the cost of tiles that are nearly empty.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from executors.kernels.triton.int8_kv import factors
from executors.kernels.triton.tile import add_sink, attend_tile
from executors.kernels.triton.tuning import choose, head_class, kind_of


# See `_split_kernel`.
@triton.jit(do_not_specialize=["table_stride"])
def _extend_kernel(
    q, keys, values, key_peaks, value_peaks, out, sinks, tiles, q_starts, q_lens, pos_offsets, tables, table_stride,
    scale, value_scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr, HEAD: tl.constexpr,
    SINKS: tl.constexpr,
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
    seen_from = tl.maximum(offset + begin + 1 - window, 0) if WINDOW else 0
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM_PAD), tl.float32)
    table = tables + item.to(tl.int64) * table_stride
    for start in range(seen_from // TILE * TILE, last, TILE):
        place = start + tl.arange(0, TILE)
        there = place < last
        if WINDOW:  # before the first query's window the table may name blocks of other sequences
            there &= place >= seen_from
        own = offset + query
        visible = there[None, :] & (place[None, :] <= own[:, None])
        if WINDOW:
            visible &= place[None, :] > own[:, None] - window
        best, total, mixed = attend_tile(
            block, keys, values, key_peaks, value_peaks, table, head, place, there, visible, best, total, mixed, scale, softcap,
            STRIDE, HEAD, DIM, DIM_PAD, PAGE, SOFTCAP,
        )  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head * GROUP + rows % GROUP).to(tl.float32)
        total, mixed = add_sink(sink, best, total, mixed)
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None] * value_scale
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=real[:, None] & (dims[None, :] < DIM))


def rows_per_tile(group: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> int:
    """Return the rows of a tile, a power of two: a query takes `group` of them, one per head. `dtype`: that of queries."""
    chosen = choose("extend_attention", kind_of(dtype), head_class(head_dim)).rows
    return max(chosen, triton.next_power_of_2(group))


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
    sinks: torch.Tensor | None = None, peaks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Write the attention of the queries in `tiles` to `out` [T, heads, head_dim]: `query_tiles` of rows_per_tile // group for
    queries of this dtype.

    `q` [T, heads, head_dim] and `kv` [2, pages, kv_heads, page, head_dim] of one dtype, contiguous but for the strides of
    sides, pages and heads; or `kv` in e4m3, which the `kv_scales` of keys and values multiply; or codes in int8 with `peaks`, see
    `int8_kv.factors`. int32 per item: `q_starts` its
    first row of q, `q_lens` its rows, `pos_offsets` its tokens in the cache before them; `tables` int32 [n, pages]. A tile that
    begins after its item's queries (padding of a graph) writes nothing. `sinks`: see `decode_attention`.
    """
    _, heads, dim = q.shape
    _, _, kv_heads, page, _ = kv.shape
    group, pad = heads // kv_heads, triton.next_power_of_2(dim)
    rows, tile = (
        rows_per_tile(group, dim, q.dtype),
        choose("extend_attention", kind_of(q.dtype, kv.dtype), head_class(dim)),
    )
    # A larger group makes more rows than the table's.
    warps = tile.warps if rows == tile.rows else max(tile.warps, 8 if rows >= 128 else 4)
    key_peaks, value_peaks, key_factor, value_factor = factors(kv, peaks, kv_scales)
    _extend_kernel[(len(tiles) * kv_heads,)](
        q, kv[0], kv[1], key_peaks, value_peaks, out, sinks, tiles, q_starts, q_lens, pos_offsets, tables, tables.stride(0),
        scale * key_factor, value_factor, softcap or 1.0, window or 0,
        KV_HEADS=kv_heads, GROUP=group, ROWS=rows, DIM=dim, DIM_PAD=pad, PAGE=page,
        TILE=tile.depth, SOFTCAP=softcap is not None, WINDOW=window is not None, STRIDE=kv.stride(1), HEAD=kv.stride(2),
        SINKS=sinks is not None, num_warps=warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
