"""Processing of queries, keys and values between their linear layer and attention, in one kernel.

qkv [T, (heads + 2 kv_heads) * head_dim]
    queries    norm, rotate -> q [T, heads, head_dim]
    keys       norm, rotate -> their cells of the cache
    values                  -> their cells of the cache
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.fp8 import to_e4m3
from executors.kernels.triton.tuning import choose


@triton.jit
def _rotary_kernel(
    qkv, q, keys, values, cells, positions, table, norms, eps, key_factor, value_factor,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr,
    ROTATE: tl.constexpr, HEADS_PAD: tl.constexpr, E4M3: tl.constexpr, STRIDE: tl.constexpr, HEAD: tl.constexpr,
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
    source = qkv + (token * (HEADS + 2 * KV_HEADS) + first + heads[:, None]) * DIM
    one = tl.load(source + low[None, :], mask=is_low, other=0.0).to(tl.float32)
    two = tl.load(source + HALF + low[None, :], mask=is_low, other=0.0).to(tl.float32)
    tail = tl.load(source + 2 * HALF + rest[None, :], mask=is_rest, other=0.0).to(tl.float32)
    if NORM:  # noqa: SIM102 - decided when it is compiled, the inner one when it runs
        if part < 2:
            squares = tl.sum(one * one, 1) + tl.sum(two * two, 1) + tl.sum(tail * tail, 1)
            scale = (1.0 / tl.sqrt(squares / DIM + eps))[:, None]
            weight = norms + (first + heads[:, None]) * DIM
            w_one = tl.load(weight + low[None, :], mask=is_low, other=0.0).to(tl.float32)
            w_two = tl.load(weight + HALF + low[None, :], mask=is_low, other=0.0).to(tl.float32)
            w_tail = tl.load(weight + 2 * HALF + rest[None, :], mask=is_rest, other=0.0).to(tl.float32)
            if PLUS_ONE:
                one, two, tail = (
                    one * scale * (w_one + 1.0),
                    two * scale * (w_two + 1.0),
                    tail * scale * (w_tail + 1.0),
                )
            else:
                one, two, tail = one * scale * w_one, two * scale * w_two, tail * scale * w_tail
    if ROTATE:  # noqa: SIM102 - as above
        if part < 2:
            angle = table + tl.load(positions + token).to(tl.int64) * (2 * HALF)
            cos = tl.load(angle + low, mask=low < HALF, other=0.0)[None, :]
            sin = tl.load(angle + HALF + low, mask=low < HALF, other=0.0)[None, :]
            turned = one * cos - two * sin
            two = two * cos + one * sin
            one = turned
    cell = tl.load(cells + token).to(tl.int64)
    if part == 0:
        at = q + (token * HEADS + heads[:, None]) * DIM
        tl.store(at + low[None, :], one.to(q.dtype.element_ty), mask=is_low)
        tl.store(at + HALF + low[None, :], two.to(q.dtype.element_ty), mask=is_low)
        tl.store(at + 2 * HALF + rest[None, :], tail.to(q.dtype.element_ty), mask=is_rest)
    elif cell >= 0:  # a padded row of a graph has no cell
        place = cell // PAGE * STRIDE + heads[:, None] * HEAD + cell % PAGE * DIM
        if part == 1:
            at = keys + place
        else:
            at = values + place
        if E4M3:
            factor = tl.where(part == 1, key_factor, value_factor)
            tl.store(at + low[None, :], to_e4m3(one * factor), mask=is_low)
            tl.store(at + HALF + low[None, :], to_e4m3(two * factor), mask=is_low)
            tl.store(at + 2 * HALF + rest[None, :], to_e4m3(tail * factor), mask=is_rest)
        else:
            kind = keys.dtype.element_ty
            tl.store(at + low[None, :], one.to(kind), mask=is_low)
            tl.store(at + HALF + low[None, :], two.to(kind), mask=is_low)
            tl.store(at + 2 * HALF + rest[None, :], tail.to(kind), mask=is_rest)


def rotate_and_store(
    qkv: torch.Tensor, kv: torch.Tensor, cells: torch.Tensor, num_heads: int, *,
    positions: torch.Tensor | None = None, table: torch.Tensor | None = None, norms: torch.Tensor | None = None,
    eps: float = 0.0, plus_one: bool = False, kv_scales: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:  # fmt: skip
    """Return queries [T, num_heads, head_dim], ready for attention; write keys and values to the cache.

    `qkv` [T, (num_heads + 2 kv_heads) * head_dim] and `kv` [2, pages, kv_heads, page, head_dim] of one dtype, contiguous
    but for the strides of sides, pages and heads; `cells` int [T]: page * page size + place in it, negative for rows that are not
    stored. `positions` int [T] into `table` float32 [positions, 2, rotated / 2] of cosines and sines, None if nothing is
    rotated; elements after the rotated ones are unchanged. `norms` [num_heads + kv_heads, head_dim]: an RMS norm of each head
    applied first, with the factor 1 + norms if `plus_one`. A `kv` in e4m3 receives keys and values divided by `kv_scales` and
    rounded; too large values become the largest number.
    """
    _, _, kv_heads, page, dim = kv.shape
    q = torch.empty(len(qkv), num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    if not len(qkv):
        return q
    half = dim // 2 if table is None else table.shape[-1]
    rest = dim - 2 * half
    _rotary_kernel[(len(qkv), 3)](
        qkv, q, kv[0], kv[1], cells, positions, table, norms, eps, 1.0 / kv_scales[0], 1.0 / kv_scales[1],
        HEADS=num_heads, KV_HEADS=kv_heads, DIM=dim, HALF=half, HALF_PAD=triton.next_power_of_2(half),
        REST=rest, REST_PAD=triton.next_power_of_2(max(rest, 1)), PAGE=page, NORM=norms is not None, PLUS_ONE=plus_one,
        ROTATE=table is not None, HEADS_PAD=triton.next_power_of_2(max(num_heads, kv_heads)),
        E4M3=kv.dtype == torch.float8_e4m3fn, STRIDE=kv.stride(1), HEAD=kv.stride(2), num_warps=choose("rotary", "", "").warps,
    )  # fmt: skip
    return q
