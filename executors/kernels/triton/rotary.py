"""Processing of queries, keys and values between their linear layer and attention, in one kernel.

qkv [T, (heads + 2 kv_heads) * head_dim]
    queries    norm, rotate, multiply -> q [T, heads, head_dim]
    keys       norm, rotate           -> their cells of the cache
    values                            -> their cells of the cache
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton import wide_rotary
from executors.kernels.triton.early import launch_next, options, wait_for_last
from executors.kernels.triton.fp8 import to_e4m3
from executors.kernels.triton.int8_kv import factors, hadamard, peak_of, to_codes
from executors.kernels.triton.tuning import choose


@triton.jit
def _normed(
    one,
    two,
    tail,
    weight,
    at_one,
    at_two,
    at_tail,
    is_low,
    is_rest,
    eps,
    DIM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
):
    """RMS norm of heads in three parts, which lie at these places of a head."""
    squares = tl.sum(one * one, 1) + tl.sum(two * two, 1) + tl.sum(tail * tail, 1)
    scale = (1.0 / tl.sqrt(squares / DIM + eps))[:, None]
    w_one = tl.load(weight + at_one[None, :], mask=is_low, other=0.0).to(tl.float32)
    w_two = tl.load(weight + at_two[None, :], mask=is_low, other=0.0).to(tl.float32)
    w_tail = tl.load(weight + at_tail[None, :], mask=is_rest, other=0.0).to(tl.float32)
    if PLUS_ONE:
        w_one, w_two, w_tail = w_one + 1.0, w_two + 1.0, w_tail + 1.0
    return one * scale * w_one, two * scale * w_two, tail * scale * w_tail


@triton.jit
def _store_turned(
    q, keys, values, key_peaks, value_peaks, cell, token, part, heads, at_one, at_two, at_tail, is_low, is_rest, one, two, tail,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, REST: tl.constexpr, PAGE: tl.constexpr,
    STRIDE: tl.constexpr, HEAD: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store heads for KV in int8, see `int8_kv`: queries and keys turned by matrices of TURNED, keys and values as codes. A row
    that has no cell is not kept."""
    dims = tl.arange(0, DIM_PAD)
    place = cell // PAGE * STRIDE + heads[:, None] * HEAD + cell % PAGE * DIM
    peak_at = cell // PAGE * (STRIDE // 4) + heads * (HEAD // 4) + cell % PAGE
    if part < 2:
        whole = tl.dot(one, hadamard(at_one, dims, TURNED), input_precision=PRECISION)
        whole += tl.dot(two, hadamard(at_two, dims, TURNED), input_precision=PRECISION)
        if REST > 0:
            whole += tl.dot(tail, hadamard(at_tail, dims, TURNED), input_precision=PRECISION)
        if part == 0:
            at = q + (token * HEADS + heads[:, None]) * DIM + dims[None, :]
            tl.store(at, whole.to(q.dtype.element_ty), mask=(heads[:, None] < HEADS) & (dims[None, :] < DIM))
        elif cell >= 0:
            peak = peak_of(whole, whole, whole)
            inside = (heads[:, None] < KV_HEADS) & (dims[None, :] < DIM)
            tl.store(keys + place + dims[None, :], to_codes(whole, peak), mask=inside)
            tl.store(key_peaks + peak_at, peak, mask=heads < KV_HEADS)
    elif cell >= 0:
        peak = peak_of(one, two, tail)
        at = values + place
        tl.store(at + at_one[None, :], to_codes(one, peak), mask=is_low)
        tl.store(at + at_two[None, :], to_codes(two, peak), mask=is_low)
        tl.store(at + at_tail[None, :], to_codes(tail, peak), mask=is_rest)
        tl.store(value_peaks + peak_at, peak, mask=heads < KV_HEADS)


@triton.jit
def _rotary_kernel(
    qkv, q, keys, values, key_peaks, value_peaks, cells, positions, table, norms, query_factors, eps, key_factor, value_factor,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr,
    ROTATE: tl.constexpr, HEADS_PAD: tl.constexpr, E4M3: tl.constexpr, STRIDE: tl.constexpr, HEAD: tl.constexpr,
    NEIGHBOURS: tl.constexpr, NORM_LAST: tl.constexpr, GROW: tl.constexpr, TURNED: tl.constexpr, DIM_PAD: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token and a third of its heads: queries (0), keys (1) or values (2)."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    count = tl.where(part == 0, HEADS, KV_HEADS)
    first = tl.where(part == 0, 0, tl.where(part == 1, HEADS, HEADS + KV_HEADS))
    heads = tl.arange(0, HEADS_PAD)
    low = tl.arange(0, HALF_PAD)
    rest = tl.arange(0, REST_PAD)
    is_low = (heads[:, None] < count) & (low[None, :] < HALF)
    is_rest = (heads[:, None] < count) & (rest[None, :] < REST)
    # The places in a head of the elements that are rotated together, and of those behind them.
    at_one = 2 * low if NEIGHBOURS else low
    at_two = 2 * low + 1 if NEIGHBOURS else HALF + low
    at_tail = 2 * HALF + rest
    source = qkv + (token * (HEADS + 2 * KV_HEADS) + first + heads[:, None]) * DIM
    weight = norms + (first + heads[:, None]) * DIM if NORM else source
    launch_next(EARLY)
    cell = tl.load(cells + token).to(tl.int64)
    if ROTATE:
        angle = table + tl.load(positions + token).to(tl.int64) * (2 * HALF)
        cos = tl.load(angle + low, mask=low < HALF, other=0.0)[None, :]
        sin = tl.load(angle + HALF + low, mask=low < HALF, other=0.0)[None, :]
    wait_for_last(EARLY)
    one = tl.load(source + at_one[None, :], mask=is_low, other=0.0).to(tl.float32)
    two = tl.load(source + at_two[None, :], mask=is_low, other=0.0).to(tl.float32)
    tail = tl.load(source + at_tail[None, :], mask=is_rest, other=0.0).to(tl.float32)
    if NORM and not NORM_LAST:  # noqa: SIM102 - decided when it is compiled, the inner one when it runs
        if part < 2:
            one, two, tail = _normed(
                one, two, tail, weight, at_one, at_two, at_tail, is_low, is_rest, eps, DIM, PLUS_ONE
            )
    if ROTATE:  # noqa: SIM102 - as above
        if part < 2:
            turned = one * cos - two * sin
            two = two * cos + one * sin
            one = turned
    if NORM and NORM_LAST:  # noqa: SIM102 - as above
        if part < 2:
            one, two, tail = _normed(
                one, two, tail, weight, at_one, at_two, at_tail, is_low, is_rest, eps, DIM, PLUS_ONE
            )
    if GROW:  # noqa: SIM102 - as above
        if part == 0:
            factor = tl.load(query_factors + tl.load(positions + token).to(tl.int64))
            one, two, tail = one * factor, two * factor, tail * factor
    if TURNED:
        _store_turned(
            q, keys, values, key_peaks, value_peaks, cell, token, part, heads, at_one, at_two, at_tail, is_low, is_rest, one, two,
            tail, HEADS, KV_HEADS, DIM, DIM_PAD, REST, PAGE, STRIDE, HEAD, TURNED, PRECISION,
        )  # fmt: skip
    elif part == 0:
        at = q + (token * HEADS + heads[:, None]) * DIM
        tl.store(at + at_one[None, :], one.to(q.dtype.element_ty), mask=is_low)
        tl.store(at + at_two[None, :], two.to(q.dtype.element_ty), mask=is_low)
        tl.store(at + at_tail[None, :], tail.to(q.dtype.element_ty), mask=is_rest)
    elif cell >= 0:  # a padded row of a graph has no cell
        place = cell // PAGE * STRIDE + heads[:, None] * HEAD + cell % PAGE * DIM
        if part == 1:
            at = keys + place
        else:
            at = values + place
        if E4M3:
            narrowing = tl.where(part == 1, key_factor, value_factor)
            tl.store(at + at_one[None, :], to_e4m3(one * narrowing), mask=is_low)
            tl.store(at + at_two[None, :], to_e4m3(two * narrowing), mask=is_low)
            tl.store(at + at_tail[None, :], to_e4m3(tail * narrowing), mask=is_rest)
        else:
            kind = keys.dtype.element_ty
            tl.store(at + at_one[None, :], one.to(kind), mask=is_low)
            tl.store(at + at_two[None, :], two.to(kind), mask=is_low)
            tl.store(at + at_tail[None, :], tail.to(kind), mask=is_rest)


def rotate_and_store(
    qkv: torch.Tensor, kv: torch.Tensor, cells: torch.Tensor, num_heads: int, *,
    positions: torch.Tensor | None = None, table: torch.Tensor | None = None, norms: torch.Tensor | None = None,
    eps: float = 0.0, plus_one: bool = False, kv_scales: tuple[float, float] = (1.0, 1.0), neighbours: bool = False,
    norm_last: bool = False, query_factors: torch.Tensor | None = None, peaks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return queries [T, num_heads, head_dim], ready for attention; write keys and values to the cache.

    `qkv` [T, (num_heads + 2 kv_heads) * head_dim] and `kv` [2, pages, kv_heads, page, head_dim] of one dtype, contiguous
    but for the strides of sides, pages and heads; `cells` int [T]: page * page size + place in it, negative for rows that are not
    stored. `positions` int [T] into `table` float32 [positions, 2, rotated / 2] of cosines and sines, None if nothing is
    rotated; elements after the rotated ones are unchanged. `neighbours`: elements 2 j and 2 j + 1 are rotated together, not j
    and j + rotated / 2. `norms` [num_heads + kv_heads, head_dim]: an RMS norm of each head applied first, or after rotation if
    `norm_last`, with the factor 1 + norms if `plus_one`. `query_factors` float32 [positions] multiply the queries in the end.
    A `kv` in e4m3 receives keys and values divided by `kv_scales` and rounded; too large values become the largest number.
    One in int8 receives codes, and `peaks` what they are multiples of; queries and keys are turned then, see `int8_kv`.
    """
    _, _, kv_heads, page, dim = kv.shape
    q = torch.empty(len(qkv), num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    if not len(qkv):
        return q
    half = dim // 2 if table is None else table.shape[-1]
    rest = dim - 2 * half
    key_peaks, value_peaks, *_ = factors(kv, peaks, kv_scales)
    turned = peaks is not None
    if peaks is not None and dim >= wide_rotary.FROM:
        wide_rotary.store_wide(
            qkv, q, kv, peaks, cells, positions, table, norms, eps, query_factors, half,
            plus_one=plus_one, neighbours=neighbours, norm_last=norm_last,
        )  # fmt: skip
        return q
    # A matrix instruction takes 16 rows, and as many numbers of them.
    least = 16 if turned else 1
    pads = [max(least, triton.next_power_of_2(max(size, 1))) for size in (half, rest, num_heads, kv_heads)]
    warps = choose("rotary", "", "").warps
    _rotary_kernel[(len(qkv), 3)](
        qkv, q, kv[0], kv[1], key_peaks, value_peaks, cells, positions, table, norms, query_factors, eps,
        1.0 / kv_scales[0], 1.0 / kv_scales[1],
        HEADS=num_heads, KV_HEADS=kv_heads, DIM=dim, HALF=half, HALF_PAD=pads[0],
        REST=rest, REST_PAD=pads[1], PAGE=page, NORM=norms is not None, PLUS_ONE=plus_one,
        ROTATE=table is not None, HEADS_PAD=max(pads[2:]),
        E4M3=kv.dtype == torch.float8_e4m3fn, STRIDE=kv.stride(1), HEAD=kv.stride(2),
        NEIGHBOURS=neighbours, NORM_LAST=norm_last, GROW=query_factors is not None, TURNED=dim & -dim if turned else 0,
        DIM_PAD=max(16, triton.next_power_of_2(dim)), PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=2 * warps if turned else warps, **options(),
    )  # fmt: skip
    return q
