"""Keys and values in int8, a scale for each token and head: the numbers of a head are code * peak / 127, where the peak is the
largest magnitude among them.

    codes  int8     [2, pages, kv_heads, page, head_dim]      sides, pages and heads with strides of their own
    peaks  float32  [2, pages, kv_heads, page]                in the same memory, so that strides are a quarter

Keys are turned before they are rounded, and queries with them: by a Hadamard matrix, which spreads a channel that is larger than
others over all of a head, so that the peak is nearer to what most numbers are. Scores stay what they are, because the matrix is
orthogonal. It is its own inverse. In blocks of the largest power of two that divides the head size.

A peak of zero stands for zeros, and one that is no number for a head with a number that is not finite. Kernels multiply by the
peak where there are fewest numbers: a key's on its scores, a value's on its weights. Of order one, as a weight times a peak
is, float16 keeps more bits than of a weight times a step of 1/127 of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LARGEST = 127.0
"""Largest code."""
LEAST = 1e-30
"""Heads without a larger magnitude are stored as zeros: 127 divided by it might not be finite."""
_LARGEST, _LEAST = tl.constexpr(LARGEST), tl.constexpr(LEAST)
_NEAREST = tl.constexpr(12582912.0)
"""1.5 * 2^23: added and taken away it rounds to the nearest integer, ties to even."""


def factors(
    kv: torch.Tensor, peaks: torch.Tensor | None, scales: tuple[float, float]
) -> tuple[torch.Tensor | None, torch.Tensor | None, float, float]:
    """Return peaks of keys and of values, None if KV is not in int8, and the factors of all keys and of all values.

    Raises ValueError for codes without peaks, and for peaks whose strides are not a quarter of the codes'.
    """
    if (kv.dtype == torch.int8) != (peaks is not None):
        raise ValueError("keys and values in int8 have peaks, and no others do")
    if peaks is None:
        return None, None, *scales
    if any(4 * peaks.stride(i) != kv.stride(i) for i in (1, 2)) or peaks.stride(3) != 1:
        raise ValueError("peaks do not lie in the memory of their codes")
    return peaks[0], peaks[1], scales[0] / LARGEST, scales[1] / LARGEST


@triton.jit
def peak_of(one, two, tail):
    """Return the largest magnitude [heads] of heads in three parts [heads, .], fp32: 0 where it is below LEAST, NaN where a
    number is not finite."""
    peak = tl.maximum(tl.maximum(tl.max(tl.abs(one), 1), tl.max(tl.abs(two), 1)), tl.max(tl.abs(tail), 1))
    # Zero, or NaN: a maximum need not keep what is no number.
    none = tl.sum(one - one, 1) + tl.sum(two - two, 1) + tl.sum(tail - tail, 1)
    return tl.where(peak < _LEAST, 0.0, peak) + none


@triton.jit
def hadamard(rows, columns, SIZE: tl.constexpr):
    """Return the rows `rows` and columns `columns` of Sylvester's matrices of SIZE, a power of two up to 512, which lie along the
    diagonal, divided by sqrt(SIZE): fp32 [rows, columns]."""
    both = (rows[:, None] & columns[None, :]) & (SIZE - 1)
    both ^= both >> 8
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    here = rows[:, None] // SIZE == columns[None, :] // SIZE
    scale: tl.constexpr = SIZE**-0.5
    return tl.where(here, tl.where((both & 1) == 1, -scale, scale), 0.0)


@triton.jit
def to_codes(x, peak):
    """Round fp32 `x` [heads, .] to int8 codes of heads with the peaks `peak` [heads], ties to even."""
    inverse = tl.where(peak > 0.0, _LARGEST / tl.where(peak > 0.0, peak, 1.0), 0.0)
    scaled = x * inverse[:, None]
    # What is no number has no integer. The product may be a little above 127, which rounds to it.
    scaled = tl.where(tl.abs(scaled) < _LARGEST + 0.5, scaled, 0.0)
    return ((scaled + _NEAREST) - _NEAREST).to(tl.int8)
