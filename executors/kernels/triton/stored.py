"""Products with weights that lie in a device's memory as their file holds them: they are dequantized on the way from memory.

    matmul       rows of activations times a weight, plus a bias
    widened      rows of a weight, as an embedding is looked up

`executors/kernels/device_layouts.py` says how codes, scales and minima lie. Sums are of float32.

Up to 4 rows are multiplied without matrix instructions, a row at a time: the weight's bytes count, and small programs that
each read a few of its rows keep all multiprocessors reading. A block of 16 columns is summed before its scale and minimum are
applied to the sum, so a weight is not rounded. On an H200 a 4096 x 4096 weight in Q4_0 took 8.4 us for a row, in bf16 10.6: that
was before codes lay in words, which take 0.73 to 0.83 of the instructions and have not run on a GPU.

Up to 64 rows in half precision are multiplied by matrix instructions as codes are read, where those lie in words: see
`stored_tiles.py`. For more rows, for float32 and for the other codes the weight is widened to the dtype of the activations, a
part at a time, and the library multiplies. A weight is rounded once then, as one that was widened at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from executors.kernels.triton.stored_tiles import takes, tile_matmul
from executors.kernels.triton.tuning import choose

if TYPE_CHECKING:
    from executors.kernels.device_layouts import DeviceRows

MOST_ROWS = 4
"""Largest number of rows that are multiplied as the weight is read: each further row reads it from a cache."""
PART_BYTES = 64 << 20
"""Bytes of a widened part of a weight. A part that stays in the device's cache (50 MB on an H100) is read from there."""


@triton.jit
def _numbers(
    scales, factors, output, block, half: tl.constexpr, there,
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, NESTED: tl.constexpr,
):  # fmt: skip
    """float32 [outputs, blocks]: scales or minima of the half blocks."""
    column = block * 32 + 16 * half
    at = output[:, None] * (COLUMNS // GROUP) + (column // GROUP)[None, :]
    numbers = tl.load(scales + at, mask=there, other=0.0 if not NESTED else 0).to(tl.float32)
    if NESTED:
        at = output[:, None] * (COLUMNS // 256) + (column // 256)[None, :]
        numbers = tl.load(factors + at, mask=there, other=0.0).to(tl.float32) * numbers
    return numbers


@triton.jit
def _codes(
    codes, high, table, output, block, half: tl.constexpr, there,
    COLUMNS: tl.constexpr, BITS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """float32 [outputs, blocks, 16]: codes, or their values by the table, of the first or last 16 columns of a block."""
    inner = tl.arange(0, 16)
    if BITS == 8:
        place = (block * 32 + 16 * half)[None, :, None] + inner[None, None, :]
        code = tl.load(codes + output[:, None, None] * COLUMNS + place, mask=there[:, :, None], other=0)
    elif not TABLE:
        nibble = tl.arange(0, 4)
        at = output[:, None, None] * (COLUMNS // 8) + (block * 4)[None, :, None] + nibble[None, None, :]
        word = tl.load(codes + at, mask=there[:, :, None], other=0)
        place = (4 * half + nibble)[None, None, :, None]
        code = (word[:, :, None, :] >> (4 * place)) & 15
        if BITS > 4:
            above = tl.load(high + at, mask=there[:, :, None], other=0).to(tl.int32)
            code |= ((above[:, :, None, :] >> (place * (BITS - 4))) & ((1 << (BITS - 4)) - 1)) << 4
        code = tl.reshape(code, (output.shape[0], block.shape[0], 16))
    else:
        place = (block * 16)[None, :, None] + inner[None, None, :]
        byte = tl.load(
            codes + output[:, None, None] * (COLUMNS // 2) + place, mask=there[:, :, None], other=0
        ).to(tl.int32)
        code = tl.load(table + ((byte >> 4) if half else (byte & 15)))
    return code.to(tl.float32)


@triton.jit
def _row_kernel(
    x, codes, high, scales, factors, extras, extra_factors, table, bias, out,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, OUT_STRIDE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, NESTED: tl.constexpr, EXTRA: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """TILE_OUTPUTS results of a row; its blocks are summed in an order that no other row changes."""
    row = tl.program_id(1).to(tl.int64)
    output = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_output = output < OUTPUTS
    output = output.to(tl.int64)
    inner = tl.arange(0, 16)
    total = tl.zeros((TILE_OUTPUTS, BLOCKS), tl.float32)
    for start in range(0, COLUMNS // 32, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        is_block = block < COLUMNS // 32
        there = is_output[:, None] & is_block[None, :]
        for half in tl.static_range(2):
            code = _codes(codes, high, table, output, block, half, there, COLUMNS, BITS, TABLE)
            place = (block * 32 + 16 * half)[:, None] + inner[None, :]
            a = tl.load(x + row * COLUMNS + place, mask=is_block[:, None], other=0.0).to(tl.float32)
            product, plain = tl.sum(code * a[None, :, :], 2), tl.sum(a, 1)[None, :]
            if OFFSET:
                product -= OFFSET * plain
            if EXTRA == 2:
                product -= (
                    _numbers(extras, extra_factors, output, block, half, there, COLUMNS, GROUP, False) * plain
                )
            total += _numbers(scales, factors, output, block, half, there, COLUMNS, GROUP, NESTED) * product
            if EXTRA == 1:
                total -= (
                    _numbers(extras, extra_factors, output, block, half, there, COLUMNS, GROUP, NESTED)
                    * plain
                )
    sums = tl.sum(total, 1)
    if BIAS:
        sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out + row * OUT_STRIDE + output, sums.to(out.dtype.element_ty), mask=is_output)


@triton.jit
def _word_row_kernel(
    x, codes, high, scales, factors, extras, extra_factors, table, bias, out,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, OUT_STRIDE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, NESTED: tl.constexpr, EXTRA: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `_row_kernel`, of codes in words. The four columns of a word in each half of its block are summed alone."""
    row = tl.program_id(1).to(tl.int64)
    output = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_output = output < OUTPUTS
    output = output.to(tl.int64)
    WORDS: tl.constexpr = 4 * BLOCKS
    EACH: tl.constexpr = BITS - 4
    inner = tl.arange(0, WORDS)
    total = tl.zeros((TILE_OUTPUTS, WORDS), tl.float32)
    for start in tl.range(0, COLUMNS // 32, BLOCKS, num_stages=STAGES):
        block = start + tl.arange(0, BLOCKS)
        is_word = 4 * start + inner < COLUMNS // 8
        there = is_output[:, None] & (block < COLUMNS // 32)[None, :]
        at = output[:, None] * (COLUMNS // 8) + (4 * start + inner)[None, :]
        word = tl.load(codes + at, mask=is_output[:, None] & is_word[None, :], other=0)
        if BITS > 4:
            above = tl.load(high + at, mask=is_output[:, None] & is_word[None, :], other=0).to(tl.int32)
        place = 32 * start + inner // 4 * 32 + inner % 4
        for half in tl.static_range(2):
            product = tl.zeros((TILE_OUTPUTS, WORDS), tl.float32)
            plain = tl.zeros((WORDS,), tl.float32)
            for step in tl.static_range(4):
                a_at = x + row * COLUMNS + place + (16 * half + 4 * step)
                a = tl.load(a_at, mask=is_word, other=0.0).to(tl.float32)
                plain += a
                if BITS == 4 and 4 * half + step < 7:
                    # The code stays where it is in its word, and x is divided by that for all outputs: a shift less for each.
                    code = word & (15 << (16 * half + 4 * step))
                    a *= 1.0 / (1 << (16 * half + 4 * step))
                else:
                    code = (word >> (16 * half + 4 * step)) & 15
                if BITS > 4:
                    code |= ((above >> ((4 * half + step) * EACH)) & ((1 << EACH) - 1)) << 4
                product += code.to(tl.float32) * a[None, :]
            if OFFSET:
                product -= OFFSET * plain[None, :]
            if EXTRA:
                extra = _numbers(
                    extras, extra_factors, output, block, half, there, COLUMNS, GROUP, NESTED and EXTRA == 1
                )
                extra = _of_words(extra, TILE_OUTPUTS, BLOCKS)
            if EXTRA == 2:
                product -= extra * plain[None, :]
            scale = _numbers(scales, factors, output, block, half, there, COLUMNS, GROUP, NESTED)
            total += _of_words(scale, TILE_OUTPUTS, BLOCKS) * product
            if EXTRA == 1:
                total -= extra * plain[None, :]
    sums = tl.sum(total, 1)
    if BIAS:
        sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out + row * OUT_STRIDE + output, sums.to(out.dtype.element_ty), mask=is_output)


@triton.jit
def _of_words(numbers, OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr):
    """[outputs, blocks] -> [outputs, 4 * blocks]."""
    return tl.reshape(tl.broadcast_to(numbers[:, :, None], (OUTPUTS, BLOCKS, 4)), (OUTPUTS, 4 * BLOCKS))


@triton.jit(do_not_specialize=["begin", "count"])  # they take any value
def _widen_kernel(
    ids, codes, high, scales, factors, extras, extra_factors, table, out, begin, count,
    COLUMNS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, NESTED: tl.constexpr,
    EXTRA: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """BLOCKS of some rows: those of `ids`, or `count` from row `begin` on. The products and the difference are those of the
    format's definition, in its order."""
    place = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_output = place < count
    output = tl.load(ids + place, mask=is_output, other=0) if IDS else (begin + place).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    there = is_output[:, None] & (block < COLUMNS // 32)[None, :]
    inner = tl.arange(0, 16)
    for half in tl.static_range(2):
        number = _codes(codes, high, table, output, block, half, there, COLUMNS, BITS, TABLE) - OFFSET
        if EXTRA == 2:
            number -= _numbers(extras, extra_factors, output, block, half, there, COLUMNS, GROUP, False)[
                :, :, None
            ]
        number = (
            _numbers(scales, factors, output, block, half, there, COLUMNS, GROUP, NESTED)[:, :, None] * number
        )
        if EXTRA == 1:
            number -= _numbers(extras, extra_factors, output, block, half, there, COLUMNS, GROUP, NESTED)[
                :, :, None
            ]
        column = (block * 32 + 16 * half)[None, :, None] + inner[None, None, :]
        at = out + place.to(tl.int64)[:, None, None] * COLUMNS + column
        tl.store(at, number.to(out.dtype.element_ty), mask=there[:, :, None])


_EXTRAS = {"": 0, "minimum": 1, "zero": 2}


def _arguments(
    weight: DeviceRows, table: torch.Tensor | None
) -> tuple[tuple[torch.Tensor | None, ...], dict[str, object]]:
    how = weight.layout
    tensors = (
        weight.codes.view(torch.int32) if how.by_words else weight.codes,
        weight.high,
        weight.scales,
        weight.factors,
        weight.extras,
        weight.extra_factors,
        table,
    )
    return tensors, {
        "COLUMNS": weight.columns, "BITS": how.bits, "GROUP": how.group, "OFFSET": how.offset, "NESTED": how.nested,
        "EXTRA": _EXTRAS[how.extra], "TABLE": bool(how.table),
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
    if rows > MOST_ROWS and takes(rows, weight.layout, x.dtype):
        tile_matmul(x, weight, bias, out)
    elif rows > MOST_ROWS:
        _matmul_in_parts(x, weight, table, bias, out)
    elif rows:
        tensors, how = _arguments(weight, table)
        by_words = weight.layout.by_words
        tile = choose("stored_row", "", "words" if by_words else "table" if how["TABLE"] else "plain")
        kernel = _word_row_kernel if by_words else _row_kernel
        kernel[(triton.cdiv(outputs, tile.outputs), rows)](
            x, *tensors, bias, out,
            OUTPUTS=outputs, OUT_STRIDE=out.stride(0), BIAS=bias is not None, **how,
            TILE_OUTPUTS=tile.outputs, BLOCKS=tile.depth, STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip


def _matmul_in_parts(
    x: torch.Tensor,
    weight: DeviceRows,
    table: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """As `matmul`, with a part of the weight widened at a time."""
    outputs, columns = weight.rows, weight.columns
    most = max(1, PART_BYTES // (columns * x.dtype.itemsize))
    room = torch.empty(min(outputs, most), columns, dtype=x.dtype, device=x.device)
    for begin in range(0, outputs, most):
        end = min(begin + most, outputs)
        part, into = room[: end - begin], out[:, begin:end]
        _widen(weight, table, None, begin, part)
        if bias is None:
            torch.mm(x, part.T, out=into)
        else:
            torch.addmm(bias[begin:end], x, part.T, out=into)


def _widen(
    weight: DeviceRows, table: torch.Tensor | None, ids: torch.Tensor | None, begin: int, out: torch.Tensor
) -> None:
    tensors, how = _arguments(weight, table)
    tile = choose("stored_widen", "", "")
    outputs = min(tile.outputs, triton.next_power_of_2(len(out)))
    grid = triton.cdiv(len(out), outputs), triton.cdiv(weight.columns, 32 * tile.depth)
    _widen_kernel[grid](
        ids, *tensors, out, begin, len(out), **how,
        IDS=ids is not None, TILE_OUTPUTS=outputs, BLOCKS=tile.depth, num_warps=tile.warps,
    )  # fmt: skip


def widened(
    weight: DeviceRows, table: torch.Tensor | None, ids: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the rows `ids`, int64 [count], of a weight in `dtype`: [count, columns]."""
    out = torch.empty(len(ids), weight.columns, dtype=dtype, device=weight.codes.device)
    if len(ids):
        _widen(weight, table, ids, 0, out)
    return out
