"""Processing of a tile of keys, shared by both attention kernels: look-up through the block table, and one step of online
softmax."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

_INTERPRETED = tl.constexpr(knobs.runtime.interpret)
LOG2_E = tl.constexpr(1.4426950408889634)
"""log2(e): exp(x) is exp2(x * log2(e)), and the hardware computes powers of 2."""


@triton.jit
def in_16_bits(x):
    """Return `x` of 16 bits unchanged, and so that the compiler keeps it as it is: it would move the change of layout before a
    matrix instruction ahead of a conversion from 8 bits, because fewer bytes change places so."""
    if _INTERPRETED:
        return x
    tl.static_assert(x.dtype.primitive_bitwidth == 16, "of 16 bits, that is half-precision queries")
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@triton.jit
def attend_tile(
    query, keys, values, key_peaks, value_peaks, table, head, place, there, visible, best, total, mixed, scale, softcap,
    STRIDE: tl.constexpr, HEAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, SOFTCAP: tl.constexpr,
    WHOLE: tl.constexpr = False, BASE2: tl.constexpr = False, NEAR: tl.constexpr = False, WIDENED: tl.constexpr = False,
):  # fmt: skip
    """Update `best` and `total` [rows] and `mixed` [rows, DIM_PAD], all fp32, with the keys at positions `place` [tile].

    `query` [rows, DIM_PAD]; `table` the sequence's block table; `there` [tile]: which positions have a key; `visible`, which
    broadcasts to [rows, tile]: which of them a row sees. Keys and values are [pages, heads, PAGE, DIM], pages STRIDE and heads
    HEAD elements apart, of the query's dtype or narrower: narrower ones are widened here, and `scale` includes the keys' own
    scale then. `key_peaks` and `value_peaks`, None but for int8: float32, a factor of each key's scores and one of each value,
    [pages, heads, PAGE] in the memory of the codes, so that pages are STRIDE / 4 and heads HEAD / 4 of them apart.

    Online softmax (Milakov and Gimelshein, 2018): the weights of earlier tiles are rescaled to the new maximum.

    WHOLE: all positions have a key that all rows see; `there` and `visible` are not looked at. BASE2: `best` and scores are
    logarithms to the base 2, and without SOFTCAP `scale` includes the factor log2(e). NEAR: numbers of a key or value are
    found by 32-bit offsets from a pointer to it. WIDENED: narrow values lie widened in shared memory before they are multiplied:
    a matrix instruction takes pairs of a column, and transposed loads bring those of 16 bits alone, others come byte by byte.
    """
    dims = tl.arange(0, DIM_PAD)
    if WHOLE:
        page = tl.load(table + place // PAGE)
    else:
        page = tl.load(table + place // PAGE, mask=there, other=0)
    cell = page.to(tl.int64) * STRIDE + head * HEAD + place % PAGE * DIM
    if NEAR:
        key_at = (keys + cell)[None, :] + dims[:, None]
        value_at = (values + cell)[:, None] + dims[None, :]
    else:
        key_at = keys + cell[None, :] + dims[:, None]
        value_at = values + cell[:, None] + dims[None, :]
    if WHOLE and DIM == DIM_PAD:
        key = tl.load(key_at).to(query.dtype)
    elif WHOLE:
        key = tl.load(key_at, mask=dims[:, None] < DIM, other=0.0).to(query.dtype)
    else:
        key = tl.load(key_at, mask=there[None, :] & (dims[:, None] < DIM), other=0.0).to(query.dtype)
    scores = tl.dot(query, key, input_precision="ieee") * scale
    if key_peaks is not None:
        peak_at = page.to(tl.int64) * (STRIDE // 4) + head * (HEAD // 4) + place % PAGE
        if WHOLE:
            scores *= tl.load(key_peaks + peak_at)[None, :]
        else:
            scores *= tl.load(key_peaks + peak_at, mask=there, other=0.0)[None, :]
    if SOFTCAP:
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
        if BASE2:
            scores *= LOG2_E
    if WHOLE:
        peak = tl.maximum(best, tl.max(scores, 1))
        base = peak
    else:
        scores = tl.where(visible, scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        # Where a window hides all keys so far the peak is minus infinity: its difference to itself is no number.
        base = tl.where(peak == float("-inf"), 0.0, peak)
    if BASE2:
        shares = tl.exp2(scores - base[:, None])
        keep = tl.exp2(best - base)
    else:
        shares = tl.exp(scores - base[:, None])
        keep = tl.exp(best - base)
    if WHOLE and DIM == DIM_PAD:
        value = tl.load(value_at).to(query.dtype)
    elif WHOLE:
        value = tl.load(value_at, mask=dims[None, :] < DIM, other=0.0).to(query.dtype)
    else:
        value = tl.load(value_at, mask=there[:, None] & (dims[None, :] < DIM), other=0.0).to(query.dtype)
    if WIDENED:
        value = in_16_bits(value)
    total = total * keep + tl.sum(shares, 1)
    if value_peaks is not None:
        # On the weights, which are fewer than the numbers of the values, and in fp32 still.
        if WHOLE:
            shares *= tl.load(value_peaks + peak_at)[None, :]
        else:
            shares *= tl.load(value_peaks + peak_at, mask=there, other=0.0)[None, :]
    mixed = mixed * keep[:, None] + tl.dot(shares.to(value.dtype), value, input_precision="ieee")
    return peak, total, mixed


@triton.jit
def add_sink(sink, best, total, mixed, BASE2: tl.constexpr = False):
    """Return `total` and `mixed` after a last logit `sink` [rows], fp32, which has no value; see `attend_tile`."""
    if BASE2:
        sink *= LOG2_E
    peak = tl.maximum(best, sink)
    if BASE2:
        share, keep = tl.exp2(sink - peak), tl.exp2(best - peak)
    else:
        share, keep = tl.exp(sink - peak), tl.exp(best - peak)
    return total * keep + share, mixed * keep[:, None]
