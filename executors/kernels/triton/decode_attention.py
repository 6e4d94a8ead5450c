"""Attention of one query token per sequence over paged KV, with keys cut into pieces that programs share.

Flash-Decoding (Dao et al., 2023): a piece's program computes the weighted sum and log-sum-exp of its keys by online softmax
(Milakov and Gimelshein, 2018). The program that finishes a row last adds up the results of all the row's pieces, in their
order, so there is no second launch. All query heads of a key head share a program, so each key is read once; they are padded
to the number of rows that a matrix product needs.

The host knows all lengths and computes the pieces (`key_pieces.py`), which are stored on the device: a captured graph serves
sequences of any length. The division of a row's keys determines the order of sums, whichever program finishes last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.early import launch_next, options, wait_for_last
from executors.kernels.triton.int8_kv import factors
from executors.kernels.triton.tile import add_sink, attend_tile
from executors.kernels.triton.tuning import Choice, choose, head_shape, kind_of

MIN_ROWS = 16
"""Rows of the smallest matrix product."""


@triton.jit
def _add_up(
    partial, lse, out, sinks, row_at, q_at, first, count,
    ROW: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PIECES: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Combine `count` pieces' results for the query heads of a key head, each weighted by its share of the softmax.

    A piece without keys has no share, and a head's sink has one. PIECES are combined at a time; two pieces are ROW query heads
    apart; `row_at` and `q_at`: the first of the key head's heads among the heads of a row, and among those of `out`.
    """
    heads = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    own = heads < GROUP
    real = own[:, None] & (dims[None, :] < DIM)
    if SINKS:
        best = tl.load(sinks + row_at + heads, mask=own, other=0.0).to(tl.float32)
        total = tl.full((GROUP_PAD,), 1.0, tl.float32)
    else:
        best = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
        total = tl.zeros((GROUP_PAD,), tl.float32)
    mixed = tl.zeros((GROUP_PAD, DIM_PAD), tl.float32)
    for start in range(0, count, PIECES):
        number = start + tl.arange(0, PIECES)
        there = number < count
        at = (first + number).to(tl.int64)[:, None] * ROW + row_at + heads[None, :]
        mask = there[:, None] & own[None, :]
        # Others wrote these: past the first cache, which is a multiprocessor's own.
        sizes = tl.load(lse + at, mask=mask, other=float("-inf"), cache_modifier=".cg")
        parts = tl.load(
            partial + at[:, :, None] * DIM + dims[None, None, :], mask=there[:, None, None] & real[None, :, :],
            other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        peak = tl.maximum(best, tl.max(sizes, 0))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp(sizes - base[None, :])
        keep = tl.exp(best - base)
        mixed = mixed * keep[:, None] + tl.sum(parts * weights[:, :, None], 0)
        total = total * keep + tl.sum(weights, 0)
        best = peak
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    place = out + q_at + heads[:, None] * DIM + dims[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=real)


# Numbers that change from step to step take any value: a kernel compiled for some of them would be compiled while requests wait.
@triton.jit(do_not_specialize=["table_stride"])
def _split_kernel(
    q, keys, values, key_peaks, value_peaks, out, partial, lse, arrived, sinks, pieces, items, tables, lengths,
    table_stride, scale, value_scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, ITEMS: tl.constexpr,
    WORDS: tl.constexpr, GROUP_PAD: tl.constexpr, PIECES: tl.constexpr, STRIDE: tl.constexpr, HEAD: tl.constexpr,
    SINKS: tl.constexpr, WIDENED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One (piece, key head), heads first: programs that start together read one page's heads, which are adjacent. `out`
    receives the result of a row's only piece, zeros if it has no keys. If a row has several pieces, `partial` and `lse`
    receive the results, and `arrived` counts them."""
    piece = pieces + tl.program_id(0) // KV_HEADS * WORDS
    head = tl.program_id(0) % KV_HEADS
    launch_next(EARLY)
    row = tl.load(piece)
    if row < 0:  # in a graph there are as many pieces as any lengths may need
        wait_for_last(EARLY)
        return
    begin = tl.load(piece + 1)
    end = tl.load(piece + 2)
    number = tl.load(piece + 3).to(tl.int64)
    count = tl.load(piece + 5)
    item = tl.load(items + 2 * row) if ITEMS else row
    q_row = (tl.load(items + 2 * row + 1) if ITEMS else row).to(tl.int64)
    first = tl.maximum(tl.load(lengths + item) - window, 0) if WINDOW else 0
    if WINDOW:
        begin = tl.maximum(begin, first // TILE * TILE)
    wait_for_last(EARLY)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    real = (rows[:, None] < GROUP) & (dims[None, :] < DIM)
    q_at = (q_row * KV_HEADS + head) * GROUP * DIM
    inner = rows[:, None] * DIM + dims[None, :]
    query = tl.load(q + q_at + inner, mask=real, other=0.0)

    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM_PAD), tl.float32)
    table = tables + item.to(tl.int64) * table_stride
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        there = place < end
        if WINDOW:  # before the window the table may name blocks of other sequences
            there &= place >= first
        best, total, mixed = attend_tile(
            query, keys, values, key_peaks, value_peaks, table, head, place, there, there[None, :], best, total, mixed, scale,
            softcap, STRIDE, HEAD, DIM, DIM_PAD, PAGE, SOFTCAP, WIDENED=WIDENED,
        )  # fmt: skip
    if SINKS:  # noqa: SIM102 - of constants and numbers Triton evaluates both sides
        if count == 1:  # else once, where the pieces are added up
            sink = tl.load(sinks + head * GROUP + rows, mask=rows < GROUP, other=0.0).to(tl.float32)
            total, mixed = add_sink(sink, best, total, mixed)
    safe = tl.where(total > 0.0, total, 1.0)
    mixed = mixed / safe[:, None] * value_scale
    if count == 1:
        tl.store(out + q_at + inner, mixed.to(out.dtype.element_ty), mask=real)
    else:
        row_at = head * GROUP
        heads = number * (KV_HEADS * GROUP) + row_at + rows
        tl.store(partial + heads[:, None] * DIM + dims[None, :], mixed, mask=real)
        tl.store(lse + heads, tl.where(total > 0.0, best + tl.log(safe), float("-inf")), mask=rows < GROUP)
        # All threads write before one of them counts; the program that counts last sees what all others wrote.
        tl.debug_barrier()
        counter = arrived + row.to(tl.int64) * KV_HEADS + head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1:
            tl.store(counter, 0)  # for the next layer
            _add_up(
                partial, lse, out, sinks, row_at, q_at, tl.load(piece + 4), count,
                KV_HEADS * GROUP, GROUP, GROUP_PAD, DIM, DIM_PAD, PIECES, SINKS,
            )  # fmt: skip


class DecodeWorkspace:
    """Memory for the pieces' results, allocated once for the largest batch, so that captured graphs find it at the same
    address.

    `partial` float32 [pieces, heads, head_dim], `lse` float32 [pieces, heads]: contents are meaningless between launches.
    `arrived` int32 [pieces, kv_heads]: how many pieces of a row are done, 0 between launches. Launches that share the
    workspace must run one after the other.
    """

    def __init__(self, pieces: int, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> None:
        self.pieces = pieces
        self.partial = torch.empty(pieces * heads * head_dim, dtype=torch.float32, device=device)
        self.lse = torch.empty(pieces * heads, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(pieces * kv_heads, dtype=torch.int32, device=device)


def tuned(head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, softcap: float | None = None) -> Choice:
    """Return the row of the table for heads of `head_dim` and queries of `dtype` over keys of `kv_dtype`; without a cap the
    loop is plain. Its `depth`: how many keys a program processes at a time; pieces consist of whole tiles."""
    return choose("decode_attention", kind_of(dtype, kv_dtype), head_shape(head_dim, softcap is None))


def decode_attention(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor,
    scale: float, pieces: torch.Tensor, workspace: DecodeWorkspace, *,
    window: int | None = None, softcap: float | None = None, items: torch.Tensor | None = None,
    kv_scales: tuple[float, float] = (1.0, 1.0), sinks: torch.Tensor | None = None, peaks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Write the attention of one query per sequence to `out` [T, heads, head_dim].

    `q` [T, heads, head_dim] and `kv` [2, pages, kv_heads, page, head_dim] of one dtype, contiguous but for the strides of
    sides, pages and heads; or `kv` in e4m3, which the `kv_scales` of keys and values multiply; or codes in int8 with `peaks`, see
    `int8_kv.factors`. `tables` int32 [n, pages of the longest], contiguous; `lengths` int32 [n]: tokens of each sequence, its
    query's included. `items` int32 [rows, 2] lists (sequence, row of q) if they are not the same for all. `sinks` [heads],
    contiguous: a logit of each head that takes a share of the softmax and has no value; None for none.

    `pieces` int32 [k, 6], contiguous: the division of the rows' keys, see `key_pieces.PieceRule.cut`. Keys outside all pieces
    of a row are not computed, and a row without any piece is not written. There may be at most as many pieces as `workspace`
    has room for, which is not checked on the device.
    """
    _, heads, dim = q.shape
    _, _, kv_heads, page, _ = kv.shape
    group, tile = heads // kv_heads, tuned(dim, q.dtype, kv.dtype, softcap)
    pad, group_pad = triton.next_power_of_2(dim), triton.next_power_of_2(group)
    if len(pieces) > workspace.pieces:
        raise ValueError(f"{len(pieces)} pieces, and room for {workspace.pieces}")
    key_peaks, value_peaks, key_factor, value_factor = factors(kv, peaks, kv_scales)
    _split_kernel[(kv_heads * len(pieces),)](
        q, kv[0], kv[1], key_peaks, value_peaks, out, workspace.partial, workspace.lse, workspace.arrived, sinks,
        pieces, items, tables, lengths, tables.stride(0), scale * key_factor, value_factor, softcap or 1.0, window or 0,
        KV_HEADS=kv_heads, GROUP=group, ROWS=max(MIN_ROWS, group_pad), DIM=dim, DIM_PAD=pad, PAGE=page,
        TILE=tile.depth, SOFTCAP=softcap is not None, WINDOW=window is not None,
        ITEMS=items is not None, WORDS=pieces.shape[1], GROUP_PAD=group_pad,
        PIECES=max(2, tile.merged // (group_pad * pad)), STRIDE=kv.stride(1), HEAD=kv.stride(2), SINKS=sinks is not None,
        WIDENED=tile.widened == 1, num_warps=tile.warps, num_stages=tile.stages, **options(),
    )  # fmt: skip
    return out
