"""Causal attention of prompt chunks over paged KV, with a tile's keys cut into pieces that programs share.

`extend_attention.py` reads all keys of a tile of queries in one program: 100 queries behind 7,000 keys keep 16 of a device's
132 multiprocessors busy. Here, as in decode attention (`decode_attention.py`), a program computes one piece of a tile's keys,
and the program that finishes a tile last adds up the results of all its pieces, in their order.

    tiles     (item, first query)                        `extend_attention.query_tiles`
    pieces    row, first key, end, place, first, count   row: place of the tile in `tiles`; the words of decode attention

The loop over keys is that of `extend_attention.py`. The host chooses the pieces (`tile_pieces.py`), and a step in which no tile
is cut launches `extend_attention.py`, unless its graph has room for pieces: then each tile has one piece, written at once.

Bytes: keys and values of each tile once, and 4 * head_dim for each row of a piece of a tile that has several, written and read.
Operations: 4 * head_dim for each pair of a query head and a key. Floor of 64 queries behind 7,000 keys, 16 heads over 8 of 128
numbers in bf16: 29 MB, 6.8 us at 4.25 TB/s; reckoned 25 us a layer with 16 pieces, 250 us with one (`tuning.py`). No GPU has run
this yet.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from executors.kernels.triton.extend_attention import (
    FASTEST,
    LoopOptions,
    attend_piece,
    is_plain,
    loop_of,
    rows_per_tile,
)
from executors.kernels.triton.int8_kv import factors
from executors.kernels.triton.tile import LOG2_E, add_sink
from executors.kernels.triton.tuning import Choice, choose, head_shape, kind_of


@triton.jit
def _add_tiles(
    partial, lse, sinks, first, count, head, real,
    KV_HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BASE2: tl.constexpr,
    GROUP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Return the sum [ROWS, DIM_PAD] of `count` pieces' results, each weighted by its share of the softmax. A piece without
    visible keys of a row has no share of it, and the sink of a row's head has one. Rows that are not `real` have none."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    if SINKS:
        best = tl.load(sinks + head * GROUP + rows % GROUP).to(tl.float32)
        if BASE2:
            best *= LOG2_E
        total = tl.full((ROWS,), 1.0, tl.float32)
    else:
        best = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM_PAD), tl.float32)
    for number in range(count):
        at = ((first + number).to(tl.int64) * KV_HEADS + head) * ROWS + rows
        # Others wrote these: past the first cache, which is a multiprocessor's own.
        sizes = tl.load(lse + at, mask=real, other=float("-inf"), cache_modifier=".cg")
        parts = tl.load(
            partial + at[:, None] * DIM + dims[None, :], mask=real[:, None] & (dims[None, :] < DIM), other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        peak = tl.maximum(best, sizes)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        if BASE2:
            share, keep = tl.exp2(sizes - base), tl.exp2(best - base)
        else:
            share, keep = tl.exp(sizes - base), tl.exp(best - base)
        mixed = mixed * keep[:, None] + parts * share[:, None]
        total = total * keep + share
        best = peak
    return mixed / tl.where(total > 0.0, total, 1.0)[:, None]


# Numbers that change from step to step take any value, see `_split_kernel`.
@triton.jit(do_not_specialize=["table_stride"])
def _shared_extend_kernel(
    q, keys, values, key_peaks, value_peaks, out, partial, lse, arrived, sinks, tiles, pieces,
    q_starts, q_lens, pos_offsets, tables, table_stride, scale, value_scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, WORDS: tl.constexpr,
    SKIP_MASKS: tl.constexpr, BASE2: tl.constexpr, NEAR: tl.constexpr, STRIDE: tl.constexpr, HEAD: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """One (piece of a tile's keys, key head), heads first. Rows as in `_extend_kernel`. `out` receives the result of a tile's
    only piece; if a tile has several, `partial` and `lse` receive them, and `arrived` counts them."""
    piece = pieces + tl.program_id(0) // KV_HEADS * WORDS
    head = tl.program_id(0) % KV_HEADS
    tile = tl.load(piece)
    if tile < 0:  # padding of a graph
        return
    item = tl.load(tiles + 2 * tile)
    begin = tl.load(tiles + 2 * tile + 1)
    q_len = tl.load(q_lens + item)
    if begin >= q_len:  # padding of a graph
        return
    low, last = tl.load(piece + 1), tl.load(piece + 2)
    count = tl.load(piece + 5)
    q_start = tl.load(q_starts + item).to(tl.int64)
    offset = tl.load(pos_offsets + item)

    QUERIES: tl.constexpr = ROWS // GROUP
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    query = begin + rows // GROUP
    real = (query < q_len) & (rows < QUERIES * GROUP)
    row_at = ((q_start + query) * KV_HEADS + head) * GROUP + rows % GROUP
    at = row_at[:, None] * DIM + dims[None, :]
    stored = real[:, None] & (dims[None, :] < DIM)
    block = tl.load(q + at, mask=stored, other=0.0)

    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM_PAD), tl.float32)
    table = tables + item.to(tl.int64) * table_stride
    best, total, mixed = attend_piece(
        low, last, offset + begin, offset + tl.minimum(begin + QUERIES, q_len), block, keys, values, key_peaks, value_peaks,
        table, head, offset + query, best, total, mixed, scale, softcap, window,
        STRIDE, HEAD, DIM, DIM_PAD, PAGE, TILE, SOFTCAP, WINDOW, SKIP_MASKS, BASE2, NEAR,
    )  # fmt: skip
    if SINKS:  # noqa: SIM102 - of constants and numbers Triton evaluates both sides
        if count == 1:  # else once, where the pieces are added up
            sink = tl.load(sinks + head * GROUP + rows % GROUP).to(tl.float32)
            total, mixed = add_sink(sink, best, total, mixed, BASE2)
    safe = tl.where(total > 0.0, total, 1.0)
    mixed = mixed / safe[:, None] * value_scale
    if count == 1:
        tl.store(out + at, mixed.to(out.dtype.element_ty), mask=stored)
    else:
        size = best + (tl.log2(safe) if BASE2 else tl.log(safe))
        row = (tl.load(piece + 3).to(tl.int64) * KV_HEADS + head) * ROWS + rows
        # A few drafts fill a small part of a tile: the rest is neither written nor read.
        tl.store(partial + row[:, None] * DIM + dims[None, :], mixed, mask=stored)
        tl.store(lse + row, tl.where(total > 0.0, size, float("-inf")), mask=real)
        # All threads write before one of them counts; the program that counts last sees what all others wrote.
        tl.debug_barrier()
        first = tl.load(piece + 4)
        counter = arrived + first.to(tl.int64) * KV_HEADS + head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1:
            tl.store(counter, 0)  # for the next layer
            mixed = _add_tiles(
                partial, lse, sinks, first, count, head, real, KV_HEADS, ROWS, DIM, DIM_PAD, BASE2, GROUP, SINKS
            )  # fmt: skip
            tl.store(out + at, mixed.to(out.dtype.element_ty), mask=stored)


class ExtendWorkspace:
    """Memory for the results of pieces of shared tiles, allocated once, so that captured graphs find it at the same address.

    `partial` float32 [places, kv_heads, rows, head_dim], `lse` float32 [places, kv_heads, rows], rows of `rows_per_tile`:
    contents are meaningless between launches. `arrived` int32 [places, kv_heads]: how many pieces of the tile whose first
    piece has that place are done, 0 between launches. Launches that share the workspace must run one after the other.
    """

    def __init__(
        self, places: int, heads: int, kv_heads: int, head_dim: int, device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        """`dtype`: that of queries."""
        self.places = places
        rows = places * kv_heads * rows_per_tile(heads // kv_heads, head_dim, dtype)
        self.partial = torch.empty(rows * head_dim, dtype=torch.float32, device=device)
        self.lse = torch.empty(rows, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(places * kv_heads, dtype=torch.int32, device=device)


def tile_keys(tiles: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray, queries: int) -> np.ndarray:
    """Return int64 [tiles]: keys that the last of the `queries` queries of each tile sees, itself included. `tiles` int
    [tiles, 2] of `query_tiles`; `q_lens` and `pos_offsets` int [n] of all items."""
    item, begin = tiles[:, 0], tiles[:, 1]
    return (pos_offsets[item] + np.minimum(begin + queries, q_lens[item])).astype(np.int64)


def tuned(head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, plain: bool = False) -> Choice:
    """Return the row of the table for heads of `head_dim` and queries of `dtype` over keys of `kv_dtype`. Its `depth`: keys that
    a program processes at a time; `parts` and `least` of a cut; `programs` of a multiprocessor. Pieces consist of tiles of the
    row that is not `plain`, see `extend_attention.is_plain`: they are cut before a launch chooses, and may end within a tile."""
    return choose("shared_extend", kind_of(dtype, kv_dtype), head_shape(head_dim, plain))


def shared_extend_attention(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, tiles: torch.Tensor, pieces: torch.Tensor,
    q_starts: torch.Tensor, q_lens: torch.Tensor, pos_offsets: torch.Tensor, tables: torch.Tensor, scale: float,
    workspace: ExtendWorkspace, *, window: int | None = None, softcap: float | None = None,
    kv_scales: tuple[float, float] = (1.0, 1.0), sinks: torch.Tensor | None = None, peaks: torch.Tensor | None = None,
    loop: LoopOptions | None = None, row: Choice | None = None,
) -> torch.Tensor:  # fmt: skip
    """Write the attention of the queries in `tiles` to `out` [T, heads, head_dim]; see `extend_attention`, whose arguments
    have the same meaning. Of float32 and of heads of 512 the kernel spills registers: it is right, and no step is cut for
    it (`parts` of the table is 1). `row`: None for that of the table; tiles are of as many rows.

    `pieces` int32 [k, 6], contiguous: the division of the tiles' keys, see `tile_pieces`. Keys outside all pieces of a tile
    are not computed, and a tile without any piece is not written. Places of shared tiles' pieces must be less than those that
    `workspace` has room for, which is not checked on the device.
    """
    tokens, heads, dim = q.shape
    _, _, kv_heads, page, _ = kv.shape
    group, pad = heads // kv_heads, triton.next_power_of_2(dim)
    plain = loop in (None, FASTEST) and is_plain(
        tokens, heads, kv_heads, dim, q.dtype, window=window, softcap=softcap, sinks=sinks is not None,
    )  # fmt: skip
    tile = row or tuned(dim, q.dtype, kv.dtype, plain)
    rows, loop = tile.rows or rows_per_tile(group, dim, q.dtype), loop or loop_of(tile)
    key_peaks, value_peaks, key_factor, value_factor = factors(kv, peaks, kv_scales)
    _shared_extend_kernel[(len(pieces) * kv_heads,)](
        q, kv[0], kv[1], key_peaks, value_peaks, out, workspace.partial, workspace.lse, workspace.arrived, sinks,
        tiles, pieces, q_starts, q_lens, pos_offsets, tables, tables.stride(0),
        scale * key_factor * loop.base(softcap), value_factor, softcap or 1.0, window or 0,
        KV_HEADS=kv_heads, GROUP=group, ROWS=rows, DIM=dim, DIM_PAD=pad, PAGE=page,
        TILE=tile.depth, SOFTCAP=softcap is not None, WINDOW=window is not None,
        WORDS=pieces.shape[1], SKIP_MASKS=loop.skip_masks, BASE2=loop.base2, NEAR=loop.near,
        STRIDE=kv.stride(1), HEAD=kv.stride(2), SINKS=sinks is not None,
        # A larger group makes more rows than the table's.
        num_warps=max(tile.warps, 8 if rows >= 128 else 4), num_stages=tile.stages,
    )  # fmt: skip
    return out
