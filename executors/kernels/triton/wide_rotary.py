"""`rotary.rotate_and_store` for KV in int8 whose heads are wider than 256.

As one product the matrix that turns a head of 512 takes a megabyte of fp32, four times the memory that a program shares, and the
heads more registers than there are. It is a product of two, of 32 and of 16 (Sylvester): a head, seen as 32 rows of 16
numbers, is turned along its rows and then along its columns, with a tenth of the multiplications and matrices of 5 KiB. To be
seen so a head lies in a tile in its own order, and each number is loaded with the one that it is rotated with.

A program takes `outputs` heads of a token, of queries, keys or values: all heads of a token would not fit into registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.early import launch_next, options, wait_for_last
from executors.kernels.triton.int8_kv import hadamard, peak_of, to_codes
from executors.kernels.triton.tuning import choose

FROM = 257
"""Smallest head size in elements that is computed here."""
_LEAST = tl.constexpr(16)
"""Rows and columns of a matrix instruction."""


@triton.jit
def turned(x, ROWS: tl.constexpr, DIM_PAD: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """Return `x` [ROWS, DIM_PAD], fp32, each block of SIZE numbers multiplied by Sylvester's matrix divided by sqrt(SIZE).
    DIM_PAD is 256 or more."""
    COUNT: tl.constexpr = DIM_PAD // _LEAST
    near, far = tl.arange(0, _LEAST), tl.arange(0, COUNT)
    parts = tl.reshape(x, (ROWS * COUNT, _LEAST))
    parts = tl.dot(parts, hadamard(near, near, min(SIZE, _LEAST)), input_precision=PRECISION)
    if SIZE > _LEAST:
        parts = tl.permute(tl.reshape(parts, (ROWS, COUNT, _LEAST)), (0, 2, 1))
        parts = tl.reshape(parts, (ROWS * _LEAST, COUNT))
        parts = tl.dot(parts, hadamard(far, far, SIZE // _LEAST), input_precision=PRECISION)
        parts = tl.permute(tl.reshape(parts, (ROWS, _LEAST, COUNT)), (0, 2, 1))
    return tl.reshape(parts, (ROWS, DIM_PAD))


@triton.jit
def _wide_rotary_kernel(
    qkv, q, keys, values, key_peaks, value_peaks, cells, positions, table, norms, query_factors, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr, ROTATE: tl.constexpr,
    STRIDE: tl.constexpr, HEAD: tl.constexpr, NEIGHBOURS: tl.constexpr, NORM_LAST: tl.constexpr, GROW: tl.constexpr,
    TURNED: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token and ROWS of its heads: programs of queries first, then of keys, then of values."""
    token = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    OF_QUERIES: tl.constexpr = (HEADS + ROWS - 1) // ROWS
    OF_KEYS: tl.constexpr = (KV_HEADS + ROWS - 1) // ROWS
    part = (number >= OF_QUERIES).to(tl.int32) + (number >= OF_QUERIES + OF_KEYS).to(tl.int32)
    count = tl.where(part == 0, HEADS, KV_HEADS)
    first = tl.where(part == 0, 0, tl.where(part == 1, HEADS, HEADS + KV_HEADS))
    before = tl.where(part == 0, 0, tl.where(part == 1, OF_QUERIES, OF_QUERIES + OF_KEYS))
    heads = (number - before) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    inside = (heads[:, None] < count) & (dims[None, :] < DIM)
    # The number that each is rotated with, the angle of both, and which of the two it is.
    rotated = dims < 2 * HALF
    if NEIGHBOURS:
        other, angle_at, is_second = dims ^ 1, dims // 2, dims % 2 == 1
    else:
        other = tl.where(dims < HALF, dims + HALF, dims - HALF)
        angle_at, is_second = tl.where(dims < HALF, dims, dims - HALF), dims >= HALF
    other = tl.where(rotated, other, dims)
    source = qkv + (token * (HEADS + 2 * KV_HEADS) + first + heads[:, None]) * DIM
    weight = norms + (first + heads[:, None]) * DIM if NORM else source
    launch_next(EARLY)
    cell = tl.load(cells + token).to(tl.int64)
    if ROTATE:
        angle = table + tl.load(positions + token).to(tl.int64) * (2 * HALF) + angle_at
        cos = tl.load(angle, mask=rotated, other=1.0)[None, :]
        sin = tl.load(angle + HALF, mask=rotated, other=0.0)
        sin = tl.where(is_second, sin, -sin)[None, :]
    wait_for_last(EARLY)
    x = tl.load(source + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    if part < 2:
        if NORM:
            factor = tl.load(weight + dims[None, :], mask=inside, other=0.0).to(tl.float32)
            if PLUS_ONE:
                factor += 1.0
        if NORM and not NORM_LAST:
            scale = (1.0 / tl.sqrt(tl.sum(x * x, 1) / DIM + eps))[:, None]
            x = x * scale * factor
        if ROTATE:
            y = tl.load(source + other[None, :], mask=inside, other=0.0).to(tl.float32)
            if NORM and not NORM_LAST:
                others = tl.load(weight + other[None, :], mask=inside, other=0.0).to(tl.float32)
                if PLUS_ONE:
                    others += 1.0
                y = y * scale * others
            x = x * cos + y * sin
        if NORM and NORM_LAST:
            x = x * (1.0 / tl.sqrt(tl.sum(x * x, 1) / DIM + eps))[:, None] * factor
        if GROW:  # noqa: SIM102 - decided when it is compiled, the inner one when it runs
            if part == 0:
                x *= tl.load(query_factors + tl.load(positions + token).to(tl.int64))
        x = turned(x, ROWS, DIM_PAD, TURNED, PRECISION)
    if part == 0:
        at = q + (token * HEADS + heads[:, None]) * DIM + dims[None, :]
        tl.store(at, x.to(q.dtype.element_ty), mask=inside)
    elif cell >= 0:  # a padded row of a graph has no cell
        peak = peak_of(x, x, x)
        place = cell // PAGE * STRIDE + heads[:, None] * HEAD + cell % PAGE * DIM + dims[None, :]
        peak_at = cell // PAGE * (STRIDE // 4) + heads * (HEAD // 4) + cell % PAGE
        if part == 1:
            tl.store(keys + place, to_codes(x, peak), mask=inside)
            tl.store(key_peaks + peak_at, peak, mask=heads < KV_HEADS)
        else:
            tl.store(values + place, to_codes(x, peak), mask=inside)
            tl.store(value_peaks + peak_at, peak, mask=heads < KV_HEADS)


def store_wide(
    qkv: torch.Tensor, q: torch.Tensor, kv: torch.Tensor, peaks: torch.Tensor, cells: torch.Tensor,
    positions: torch.Tensor | None, table: torch.Tensor | None, norms: torch.Tensor | None, eps: float,
    query_factors: torch.Tensor | None, half: int, *, plus_one: bool, neighbours: bool, norm_last: bool,
) -> None:  # fmt: skip
    """Write queries to `q` [T, num_heads, head_dim], and keys and values to the codes `kv` and their `peaks`; see
    `rotary.rotate_and_store`, whose arguments have the same meaning. `half`: pairs of a head that are rotated."""
    _, num_heads, dim = q.shape
    _, _, kv_heads, page, _ = kv.shape
    row = choose("rotary", "", "wide")
    rows = min(row.outputs, triton.next_power_of_2(max(num_heads, kv_heads)))
    programs = triton.cdiv(num_heads, rows) + 2 * triton.cdiv(kv_heads, rows)
    _wide_rotary_kernel[(len(qkv), programs)](
        qkv, q, kv[0], kv[1], peaks[0], peaks[1], cells, positions, table, norms, query_factors, eps,
        HEADS=num_heads, KV_HEADS=kv_heads, DIM=dim, DIM_PAD=triton.next_power_of_2(dim), HALF=half, ROWS=rows, PAGE=page,
        NORM=norms is not None, PLUS_ONE=plus_one, ROTATE=table is not None, STRIDE=kv.stride(1), HEAD=kv.stride(2),
        NEIGHBOURS=neighbours, NORM_LAST=norm_last, GROW=query_factors is not None, TURNED=dim & -dim,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32", num_warps=row.warps, **options(),
    )  # fmt: skip
