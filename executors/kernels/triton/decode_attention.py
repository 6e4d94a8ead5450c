"""Attention of one query token per sequence over paged KV, keys split among programs.

Flash-Decoding (Dao et al., 2023): each split computes its keys' weighted sum and log-sum-exp by online softmax (Milakov and
Gimelshein, 2018), a second kernel merges the splits in order. All query heads of a key head share a program, and so each key
is read once; they are filled up to the rows that a matrix product needs.

Bounds come from the device: a captured graph serves sequences of any length. How the keys are split decides the order of
sums: with `split_tokens` it depends on the sequence alone, and a token's result is bitwise the same in any batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.tile import attend_tile

MIN_ROWS = 16
"""Rows of the smallest matrix product."""


@triton.jit
def _split_range(
    length, split, num_splits, window,
    TILE: tl.constexpr, SPLIT_TOKENS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Positions of the keys that a split reads, begin and end: empty where it has none. `split` may be a number or a block."""
    first_tile = (tl.maximum(length - window, 0) if WINDOW else 0) // TILE
    if SPLIT_TOKENS > 0:  # splits begin where they begin whatever the window hides
        begin = tl.maximum(split * SPLIT_TOKENS, first_tile * TILE)
        end = tl.minimum(split * SPLIT_TOKENS + SPLIT_TOKENS, length)
    else:
        per_split = tl.cdiv(tl.cdiv(length, TILE) - first_tile, num_splits)
        begin = (first_tile + split * per_split) * TILE
        end = tl.minimum(begin + per_split * TILE, length)
    return begin, end


# Numbers that change from step to step take any value: a kernel compiled for some would be compiled while somebody waits.
@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def _split_kernel(
    q, keys, values, out, partial, lse, items, tables, lengths,
    table_stride, num_splits, scale, value_scale, softcap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SPLIT_TOKENS: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    ITEMS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One (sequence, key head, split), heads first: programs that begin together read one page's heads, which lie side by side.
    `partial` and `lse` take what it finds, nothing where it has no keys; with WHOLE there is one split, and `out` takes it,
    zeros where there are no keys."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    item = tl.load(items + 2 * row) if ITEMS else row
    q_row = (tl.load(items + 2 * row + 1) if ITEMS else row).to(tl.int64)
    length = tl.load(lengths + item)
    begin, end = _split_range(length, split, num_splits, window, TILE, SPLIT_TOKENS, WINDOW)
    if not WHOLE:  # noqa: SIM102 - decided when it is compiled, the inner one when it runs
        # In a graph there are as many splits as the longest sequence may need, and rows that are padding.
        if begin >= end:
            return
    first = tl.maximum(length - window, 0) if WINDOW else 0

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    real = (rows[:, None] < GROUP) & (dims[None, :] < DIM)
    q_at = (q_row * KV_HEADS + head) * GROUP * DIM + rows[:, None] * DIM + dims[None, :]
    query = tl.load(q + q_at, mask=real, other=0.0)

    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, DIM_PAD), tl.float32)
    table = tables + item.to(tl.int64) * table_stride
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        there = place < end
        seen = there & (place >= first) if WINDOW else there
        best, total, found = attend_tile(
            query, keys, values, table, head, place, there, seen[None, :], best, total, found, scale, softcap,
            KV_HEADS, DIM, DIM_PAD, PAGE, SOFTCAP,
        )  # fmt: skip
    safe = tl.where(total > 0.0, total, 1.0)
    found = found / safe[:, None] * value_scale
    heads = (row.to(tl.int64) * KV_HEADS + head) * GROUP + rows
    if WHOLE:
        tl.store(out + q_at, found.to(out.dtype.element_ty), mask=real)
    else:
        at = heads * num_splits + split
        tl.store(partial + at[:, None] * DIM + dims[None, :], found, mask=real)
        tl.store(lse + at, tl.where(total > 0.0, best + tl.log(safe), float("-inf")), mask=rows < GROUP)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    partial, lse, out, items, lengths, num_splits, window,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, TILE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, WINDOW: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """One (sequence, query head): the splits' results, weighed by how much of the softmax each holds. Of splits without keys,
    which wrote nothing, nothing is read."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, SPLITS_PAD)
    dims = tl.arange(0, DIM_PAD)
    at = (row * HEADS + head) * num_splits + splits
    length = tl.load(lengths + (tl.load(items + 2 * row) if ITEMS else row))
    begin, end = _split_range(length, splits, num_splits, window, TILE, SPLIT_TOKENS, WINDOW)
    there = (splits < num_splits) & (begin < end)
    sizes = tl.load(lse + at, mask=there, other=float("-inf"))
    peak = tl.max(sizes, 0)
    weights = tl.exp(sizes - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights, 0)
    parts = tl.load(
        partial + at[:, None] * DIM + dims[None, :], mask=there[:, None] & (dims[None, :] < DIM), other=0.0
    )
    merged = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    q_row = tl.load(items + 2 * row + 1).to(tl.int64) if ITEMS else row
    tl.store(out + (q_row * HEADS + head) * DIM + dims, merged.to(out.dtype.element_ty), mask=dims < DIM)


class DecodeWorkspace:
    """Memory for the splits' results: made once for the largest batch, so that a captured graph finds it where it was.

    `partial` float32 [rows, heads, splits, head_dim], `lse` float32 [rows, heads, splits]. What stands there of splits
    without keys means nothing: it may be of any step before.
    """

    def __init__(self, rows: int, heads: int, splits: int, head_dim: int, device: torch.device) -> None:
        self.partial = torch.empty(rows * heads * splits * head_dim, dtype=torch.float32, device=device)
        self.lse = torch.empty(rows * heads * splits, dtype=torch.float32, device=device)


def decode_attention(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor,
    scale: float, num_splits: int, workspace: DecodeWorkspace, *,
    window: int | None = None, softcap: float | None = None, items: torch.Tensor | None = None, rows: int | None = None,
    split_tokens: int = 0, kv_scales: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:  # fmt: skip
    """Write to `out` [T, heads, head_dim] the attention of one query per sequence.

    `q` [T, heads, head_dim] and `kv` [2, pages, kv_heads, page, head_dim] of one dtype, contiguous; or `kv` in e4m3, which the
    `kv_scales` of keys and values multiply. `tables` int32 [n, pages of the longest], contiguous; `lengths`
    int32 [n]: tokens of each sequence, its query's included. `items` int32 [rows, 2] names (sequence, row of q) where they are
    not the same for all; `rows` how many. A length of 0 gives zeros (padding of a graph).

    `num_splits` programs share a sequence's keys; with `split_tokens` each takes so many, and num_splits x split_tokens must
    cover the longest sequence.
    """
    _, heads, dim = q.shape
    _, _, kv_heads, page, _ = kv.shape
    group, count = heads // kv_heads, len(q) if rows is None else rows
    narrow, wide = kv.dtype == torch.float8_e4m3fn, q.dtype == torch.float32
    # A step that finds its pages first gets half of the stages as buffers: of five two, so that the next keys and values are on
    # their way while these are multiplied, in tiles of which three programs fit a multiprocessor. Widening takes registers,
    # and so do products of float32, which no matrix instruction computes: with the larger tile they spill.
    pad = triton.next_power_of_2(dim)
    tile = max(16, min(64, 16384 // pad) if narrow or wide else min(128, 8192 // pad))
    if split_tokens % tile:
        raise ValueError(f"split_tokens {split_tokens} is no multiple of {tile}")
    whole = num_splits == 1
    _split_kernel[(kv_heads, count, num_splits)](
        q, kv[0], kv[1], out, workspace.partial, workspace.lse, items, tables, lengths,
        tables.stride(0), num_splits, scale * kv_scales[0], kv_scales[1], softcap or 1.0, window or 0,
        KV_HEADS=kv_heads, GROUP=group, ROWS=max(MIN_ROWS, triton.next_power_of_2(group)), DIM=dim,
        DIM_PAD=pad, PAGE=page, TILE=tile, SPLIT_TOKENS=split_tokens,
        SOFTCAP=softcap is not None, WINDOW=window is not None, ITEMS=items is not None, WHOLE=whole,
        num_warps=8 if wide else 4, num_stages=3 if wide else 5,
    )  # fmt: skip
    if not whole:
        splits_pad = triton.next_power_of_2(num_splits)
        _merge_kernel[(count, heads)](
            workspace.partial, workspace.lse, out, items, lengths, num_splits, window or 0,
            HEADS=heads, DIM=dim, DIM_PAD=pad, SPLITS_PAD=splits_pad, TILE=tile, SPLIT_TOKENS=split_tokens,
            WINDOW=window is not None, ITEMS=items is not None,
            # All parts of a head are in registers at once: 32 of a thread's at most, up to 64 parts of 256.
            num_warps=max(2, min(16, pad * splits_pad // 1024)),
        )  # fmt: skip
    return out
