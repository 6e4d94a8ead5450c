"""Processing of a tile of keys, shared by both attention kernels: look-up through the block table, and one step of online
softmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_tile(
    query, keys, values, table, head, place, there, visible, best, total, mixed, scale, softcap,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Update `best` and `total` [rows] and `mixed` [rows, DIM_PAD], all fp32, with the keys at positions `place` [tile].

    `query` [rows, DIM_PAD]; `table` the sequence's block table; `there` [tile]: which positions have a key; `visible`, which
    broadcasts to [rows, tile]: which of them a row sees. Keys and values are [pages, KV_HEADS, PAGE, DIM], of the query's
    dtype or narrower: narrower ones are widened here, and `scale` includes the keys' own scale then.

    Online softmax (Milakov and Gimelshein, 2018): the weights of earlier tiles are rescaled to the new maximum.
    """
    dims = tl.arange(0, DIM_PAD)
    page = tl.load(table + place // PAGE, mask=there, other=0)
    cell = ((page.to(tl.int64) * KV_HEADS + head) * PAGE + place % PAGE) * DIM
    key = tl.load(
        keys + cell[None, :] + dims[:, None], mask=there[None, :] & (dims[:, None] < DIM), other=0.0
    ).to(query.dtype)
    scores = tl.dot(query, key, input_precision="ieee") * scale
    if SOFTCAP:
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
    scores = tl.where(visible, scores, float("-inf"))
    peak = tl.maximum(best, tl.max(scores, 1))
    # Where a window hides all keys so far the peak is minus infinity: its difference to itself is no number.
    base = tl.where(peak == float("-inf"), 0.0, peak)
    shares = tl.exp(scores - base[:, None])
    keep = tl.exp(best - base)
    value = tl.load(
        values + cell[:, None] + dims[None, :], mask=there[:, None] & (dims[None, :] < DIM), other=0.0
    ).to(query.dtype)
    mixed = mixed * keep[:, None] + tl.dot(shares.to(value.dtype), value, input_precision="ieee")
    total = total * keep + tl.sum(shares, 1)
    return peak, total, mixed
