"""Products with weights that lie in a device's memory as their file holds them: they are dequantized on the way from memory.

    matmul       rows of activations times a weight, plus a bias
    widened      rows of a weight, as an embedding is looked up

`executors/kernels/device_layouts.py` says how codes, scales and minima lie. A weight is rounded once, to the dtype of the
activations, as a weight that was widened at the start is; sums are of float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from executors.kernels.triton.fp8 import SHARING, tile_of

if TYPE_CHECKING:
    from executors.kernels.device_layouts import DeviceRows

_TILE = 128
"""Columns of a weight that are dequantized at once: four blocks of 32."""


@triton.jit
def _numbers(
    scales, factors, output, column, there, COLUMNS: tl.constexpr, GROUP: tl.constexpr, NESTED: tl.constexpr
):
    """float32 [columns, outputs]: scales or minima of the columns."""
    at = output[None, :] * (COLUMNS // GROUP) + (column // GROUP)[:, None]
    found = tl.load(scales + at, mask=there, other=0.0 if not NESTED else 0).to(tl.float32)
    if NESTED:
        at = output[None, :] * (COLUMNS // 256) + (column // 256)[:, None]
        found = tl.load(factors + at, mask=there, other=0.0).to(tl.float32) * found
    return found


@triton.jit
def _values(
    code, scales, factors, extras, extra_factors, table, output, column, there,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, NESTED: tl.constexpr, EXTRA: tl.constexpr,
    TABLE: tl.constexpr,
):  # fmt: skip
    """float32 [columns, outputs] of codes. The products and the difference are those of the format's definition, in its order."""
    if TABLE:
        code = tl.load(table + code).to(tl.int32)
    number = (code - OFFSET).to(tl.float32)
    scale = _numbers(scales, factors, output, column, there, COLUMNS, GROUP, NESTED)
    if EXTRA == 2:
        number -= _numbers(extras, extra_factors, output, column, there, COLUMNS, GROUP, False)
    number = scale * number
    if EXTRA == 1:
        number -= _numbers(extras, extra_factors, output, column, there, COLUMNS, GROUP, NESTED)
    return number


@triton.jit
def _tile(
    codes, high, scales, factors, extras, extra_factors, table, output, is_output, tile, second: tl.constexpr,
    COLUMNS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, NESTED: tl.constexpr,
    EXTRA: tl.constexpr, TABLE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Half of a tile of 128 columns: those in the low halves of bytes, or the `second` ones; of 8 bits its first or last 64.

    Returns the columns [64] and the weights, float32 [64, outputs].
    """
    inner = tl.arange(0, TILE // 2)
    output = output.to(tl.int64)
    if BITS == 8:
        column = tile * TILE + inner + (TILE // 2 if second else 0)
        there = (column < COLUMNS)[:, None] & is_output[None, :]
        code = tl.load(codes + output[None, :] * COLUMNS + column[:, None], mask=there, other=0).to(tl.int32)
    else:
        block, place = tile * (TILE // 32) + inner // 16, inner % 16
        column = block * 32 + place + (16 if second else 0)
        there = (column < COLUMNS)[:, None] & is_output[None, :]
        byte = tile * (TILE // 2) + inner
        code = tl.load(codes + output[None, :] * (COLUMNS // 2) + byte[:, None], mask=there, other=0).to(
            tl.int32
        )
        code = (code >> 4) if second else (code & 15)
        if BITS == 5:
            word = tl.load(high + output[None, :] * (COLUMNS // 32) + block[:, None], mask=there, other=0)
            code |= ((word >> (place + (16 if second else 0))[:, None]) & 1) << 4
        if BITS == 6:
            word = tl.load(
                high + output[None, :] * (COLUMNS // 16) + (2 * block + (1 if second else 0))[:, None],
                mask=there,
                other=0,
            )
            code |= ((word >> (2 * place)[:, None]) & 3) << 4
    values = _values(
        code, scales, factors, extras, extra_factors, table, output, column, there,
        COLUMNS, GROUP, OFFSET, NESTED, EXTRA, TABLE,
    )  # fmt: skip
    return column, values


@triton.jit(do_not_specialize=["rows"])  # it takes any value
def _matmul_kernel(
    x, codes, high, scales, factors, extras, extra_factors, table, bias, out, rows,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, OUT_STRIDE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, NESTED: tl.constexpr, EXTRA: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE: tl.constexpr, SHARING: tl.constexpr,
):  # fmt: skip
    """One tile of the result; columns are summed in order, whatever the number of rows."""
    output_tiles: tl.constexpr = (OUTPUTS + TILE_OUTPUTS - 1) // TILE_OUTPUTS
    row_tile, output_tile = tile_of(tl.program_id(0), tl.cdiv(rows, TILE_ROWS), output_tiles, SHARING)
    row = row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = output_tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_row, is_output = row < rows, output < OUTPUTS
    x_at = x + row.to(tl.int64)[:, None] * COLUMNS
    total = tl.zeros((TILE_ROWS, TILE_OUTPUTS), tl.float32)
    tiles: tl.constexpr = (COLUMNS + TILE - 1) // TILE
    for tile in range(tiles):
        for second in tl.static_range(2):
            column, weights = _tile(
                codes, high, scales, factors, extras, extra_factors, table, output, is_output, tile, second,
                COLUMNS, BITS, GROUP, OFFSET, NESTED, EXTRA, TABLE, TILE,
            )  # fmt: skip
            a = tl.load(x_at + column[None, :], mask=is_row[:, None] & (column < COLUMNS)[None, :], other=0.0)
            total = tl.dot(a, weights.to(a.dtype), total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    at = out + row.to(tl.int64)[:, None] * OUT_STRIDE + output[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit
def _widen_kernel(
    ids, codes, high, scales, factors, extras, extra_factors, table, out, count,
    COLUMNS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, NESTED: tl.constexpr,
    EXTRA: tl.constexpr, TABLE: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """128 columns of some rows."""
    place = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_output = place < count
    output = tl.load(ids + place, mask=is_output, other=0)
    for second in tl.static_range(2):
        column, weights = _tile(
            codes, high, scales, factors, extras, extra_factors, table, output, is_output, tl.program_id(1), second,
            COLUMNS, BITS, GROUP, OFFSET, NESTED, EXTRA, TABLE, TILE,
        )  # fmt: skip
        at = out + place.to(tl.int64)[None, :] * COLUMNS + column[:, None]
        there = (column < COLUMNS)[:, None] & is_output[None, :]
        tl.store(at, weights.to(out.dtype.element_ty), mask=there)


_EXTRAS = {"": 0, "minimum": 1, "zero": 2}


def _arguments(
    weight: DeviceRows, table: torch.Tensor | None
) -> tuple[tuple[torch.Tensor | None, ...], dict[str, object]]:
    how = weight.layout
    tensors = (
        weight.codes,
        weight.high,
        weight.scales,
        weight.factors,
        weight.extras,
        weight.extra_factors,
        table,
    )
    return tensors, {
        "COLUMNS": weight.columns, "BITS": how.bits, "GROUP": how.group, "OFFSET": how.offset, "NESTED": how.nested,
        "EXTRA": _EXTRAS[how.extra], "TABLE": bool(how.table), "TILE": _TILE,
    }  # fmt: skip


def matmul(
    x: torch.Tensor,
    weight: DeviceRows,
    table: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write x W^T + bias to `out` [rows, outputs], whose rows may be parts of longer ones.

    `x` [rows, columns], contiguous, in float32, bfloat16 or float16; `table`: int8 [16], of formats that have one; `bias`
    [outputs] or None.
    """
    rows, outputs = len(x), weight.rows
    if not rows:
        return
    tensors, how = _arguments(weight, table)
    # No instruction multiplies float32 exactly: threads hold what they multiply, and have room for little.
    exact = x.dtype is torch.float32
    tile_rows = max(16, min(32 if exact else 128, triton.next_power_of_2(rows)))
    # Few rows: the weights' bytes count, and narrow tiles keep more processors reading.
    tile_outputs = 32 if tile_rows <= 32 else 64
    _matmul_kernel[(triton.cdiv(outputs, tile_outputs) * triton.cdiv(rows, tile_rows),)](
        x, *tensors, bias, out, rows,
        OUTPUTS=outputs, OUT_STRIDE=out.stride(0), BIAS=bias is not None, **how,
        TILE_ROWS=tile_rows, TILE_OUTPUTS=tile_outputs, SHARING=SHARING,
        num_warps=8 if tile_rows >= 64 or exact else 4, num_stages=2 if exact else 4 if tile_rows <= 64 else 3,
    )  # fmt: skip


def widened(
    weight: DeviceRows, table: torch.Tensor | None, ids: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the rows `ids`, int64 [count], of a weight in `dtype`: [count, columns]."""
    out = torch.empty(len(ids), weight.columns, dtype=dtype, device=weight.codes.device)
    if len(ids):
        tensors, how = _arguments(weight, table)
        tile_outputs = min(32, triton.next_power_of_2(len(ids)))
        _widen_kernel[(triton.cdiv(len(ids), tile_outputs), triton.cdiv(weight.columns, _TILE))](
            ids, *tensors, out, len(ids), **how, TILE_OUTPUTS=tile_outputs, num_warps=4
        )
    return out
