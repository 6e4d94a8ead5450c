"""Products of 5 to 64 rows with weights that lie in a device's memory as their file holds them, by matrix instructions.

Codes of 4, 5 and 6 bits in words of eight, see `executors/kernels/device_layouts.py`: the same four bits of neighbouring words
are neighbouring columns of a block. A program computes TILE_N outputs of all rows. It loads words, scales and x some tiles
ahead, past the registers, and reads the words back as the left operand of the matrix instruction has them: eight operands of a
word's eight codes, without an exchange among threads. x is the right operand, so that outputs, which are many, fill the
instruction's 64 rows. Where outputs are few, programs share the depth, and the last of a tile adds up, as in `few_rows.py`.

A code is put into the mantissa of a float32 between 1 and 2 and becomes a weight by one multiply-add with the group's scale:
codes 12 and 16 bits up take half of the shifts. Such a weight is within 2^-13 of its scale before it is rounded to the dtype
of x, once.

A code's column is four columns from that of the code beside it in its word, so an operand's x lies in pieces of 8 bytes, each
in another sector of the cache. Copying those took 20 us of 52 with 16 rows and half of 123 with 64 (H200, 24,576 x 4,096). Where
the row of the table says `ordered`, a small kernel before brings x into the order of the words, and copies are whole lines.

Bytes: those of the weight once, and 2 * rows * columns for each tile of outputs, from the cache. Operations: 2 for each pair of
a row and a weight. Floor of 4096 x 4096 in Q4_K (9.4 MB) at 4.25 TB/s: 2.2 us, by operations at 64 rows (2.1 G at 0.7 P/s) 3.1.
Compiled for Hopper a program takes 5.3 instructions a thread and weight (Q4_K; 6.4 with tiles of 128 columns), of which with 8,
12 and 16 warps of a multiprocessor 1.5, 2.2 and, reckoned, 3 are issued a cycle. An H200 took 41, 52 and 123 us for 24,576 x
4,096 with 8, 16 and 64 rows before x was in order; bf16 takes 55, 51 and 52. No GPU has run the ordered way yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton import knobs

from executors.kernels.triton.tuning import HALF, PROCESSORS, choose, processors

if TYPE_CHECKING:
    from executors.kernels.device_layouts import DeviceLayout, DeviceRows

MOST_ROWS = 64
"""Largest number of rows that a program takes."""
DTYPES = (torch.bfloat16, torch.float16)
"""Of activations. float32 has no matrix instruction."""
LEAST_OUTPUTS = 16
"""No tile has fewer: so many counters suffice."""
_LEAST_ROWS = 16
"""Of a tile."""
_EXTRAS = {"": 0, "minimum": 1, "zero": 2}
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def _spread(numbers, TILE_N: tl.constexpr, GROUPS: tl.constexpr, WORDS: tl.constexpr):
    """[TILE_N, GROUPS] -> [TILE_N, WORDS]: a number for each of its group's words."""
    each: tl.constexpr = WORDS // GROUPS
    return tl.reshape(tl.broadcast_to(numbers[:, :, None], (TILE_N, GROUPS, each)), (TILE_N, WORDS))


@triton.jit
def _pair(both, SIGNED: tl.constexpr):
    """float32: the low and the high bytes of int16."""
    wide = both.to(tl.int32)
    if SIGNED:
        return ((wide << 24) >> 24).to(tl.float32), (wide >> 8).to(tl.float32)
    return (wide & 255).to(tl.float32), ((wide >> 8) & 255).to(tl.float32)


@triton.jit
def _scaled(
    scale, extra, GROUPS: tl.constexpr, EXTRA: tl.constexpr, OFFSET: tl.constexpr, TILE_N: tl.constexpr, WORDS: tl.constexpr
):  # fmt: skip
    """Factors and addends [TILE_N, WORDS] for codes that lie 12 bits up in a mantissa, and for those 16 bits up: 1 + code /
    2^11, and 1 + code / 2^7, times the factor, plus the addend, is the weight."""
    if EXTRA == 2:
        far, near = -scale * (extra + (2048.0 + OFFSET)), -scale * (extra + (128.0 + OFFSET))
    elif EXTRA == 1:
        far, near = -scale * (2048.0 + OFFSET) - extra, -scale * (128.0 + OFFSET) - extra
    else:
        far, near = -scale * (2048.0 + OFFSET), -scale * (128.0 + OFFSET)
    return (
        _spread(2048.0 * scale, TILE_N, GROUPS, WORDS),
        _spread(far, TILE_N, GROUPS, WORDS),
        _spread(128.0 * scale, TILE_N, GROUPS, WORDS),
        _spread(near, TILE_N, GROUPS, WORDS),
    )


@triton.jit
def _all_scaled(
    scale, extra, times, extra_times, HALVED: tl.constexpr, NESTED: tl.constexpr, GROUPS: tl.constexpr, EXTRA: tl.constexpr,
    OFFSET: tl.constexpr, TILE_N: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """`_scaled` of a word's first four codes, and of its last four. HALVED: those are of two groups. `times`: what nested scales
    are multiplied by, and extras by `extra_times`."""
    if HALVED:
        s, e = _pair(scale, EXTRA == 0), _pair(extra, EXTRA == 0)
        f12, a12, f16, a16 = _scaled(times * s[0], extra_times * e[0], GROUPS, EXTRA, OFFSET, TILE_N, WORDS)
        g12, b12, g16, b16 = _scaled(times * s[1], extra_times * e[1], GROUPS, EXTRA, OFFSET, TILE_N, WORDS)
    else:
        scale, extra = scale.to(tl.float32), extra.to(tl.float32)
        if NESTED:
            scale, extra = times * scale, extra_times * extra
        f12, a12, f16, a16 = _scaled(scale, extra, GROUPS, EXTRA, OFFSET, TILE_N, WORDS)
        g12, b12, g16, b16 = f12, a12, f16, a16
    return f12, a12, f16, a16, g12, b12, g16, b16


@triton.jit
def _in_mantissa(word, PLACE: tl.constexpr):
    """int32: bits PLACE .. PLACE + 3 of a word, with the sign and exponent of 1.0: one instruction, for which the compiler
    takes two if it reads the same as an expression."""
    if _INTERPRETED:
        bits = (word & (15 << PLACE)) | 0x3F800000
    elif PLACE == 12:
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF000, 0x3F800000, 0xEA;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0xF0000, 0x3F800000, 0xEA;",
            "=r,r",
            [word],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return bits


@triton.jit
def _weights(word, high, n: tl.constexpr, factor12, addend12, factor16, addend16, BITS: tl.constexpr):
    """float32 [TILE_N, WORDS]: the weights of each word's code `n`. `high` int32: what the codes of BITS 5 and 6 have above
    their lowest four bits."""
    even: tl.constexpr = n == 2 or n == 4 or n == 6
    place: tl.constexpr = 16 if even else 12
    if 4 * n < place:
        moved = word << (place - 4 * n)
    else:
        moved = word >> (4 * n - place)
    bits = _in_mantissa(moved, place)
    if BITS > 4:
        each: tl.constexpr = BITS - 4
        bits |= (high << (place + 4 - n * each)) & (((1 << each) - 1) << (place + 4))
    number = bits.to(tl.float32, bitcast=True)
    return number * factor16 + addend16 if even else number * factor12 + addend12


@triton.jit
def _add(
    total, at, row, bias, out, rows, OUTPUTS: tl.constexpr, OUT_STRIDE: tl.constexpr, BIAS: tl.constexpr
):
    """Write `total` [TILE_N, ROWS]."""
    if BIAS:
        total += tl.load(bias + at, mask=at < OUTPUTS, other=0.0).to(tl.float32)[:, None]
    there = (at < OUTPUTS)[:, None] & (row < rows)[None, :]
    place = out + row.to(tl.int64)[None, :] * OUT_STRIDE + at[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _sum(partial, place, row, rows, PARTS: tl.constexpr, ROWS: tl.constexpr, TILE_N: tl.constexpr):
    """float32 [TILE_N, ROWS]: the sum of a tile's parts, which other programs wrote: past the first cache, which is a
    multiprocessor's own."""
    total = tl.zeros((TILE_N, ROWS), tl.float32)
    for number in tl.static_range(PARTS):
        total += tl.load(
            partial + number * (ROWS * TILE_N) + place,
            mask=row[None, :] < rows,
            other=0.0,
            cache_modifier=".cg",
        )
    return total


@triton.jit
def _load_factors(factors, extra_factors, output, start, COLUMNS: tl.constexpr, EXTRA: tl.constexpr):
    """Factors [TILE_N] of the scales and extras around column `start`, or the last ones."""
    at = output * (COLUMNS // 256) + tl.minimum(start // 256, COLUMNS // 256 - 1)
    factor = tl.load(factors + at)
    extra_factor = tl.load(extra_factors + at) if EXTRA == 1 else factor
    return factor, extra_factor


@triton.jit
def _load_tile(
    word_at, scale_at, extra_at, high_at, start, COLUMNS: tl.constexpr, SPAN: tl.constexpr, WORDS: tl.constexpr,
    GROUPS: tl.constexpr, EXTRA: tl.constexpr, BITS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Words [TILE_N, WORDS], scales and extras [TILE_N, GROUPS] and high bits, int32 [TILE_N, WORDS], of the columns from `start`
    on. What a layout has not is another of them. WHOLE: all of them are there."""
    if WHOLE:
        word, scale = tl.load(word_at + start // 8), tl.load(scale_at + start // SPAN)
        extra = tl.load(extra_at + start // SPAN) if EXTRA else scale
        above = tl.load(high_at + start // 8).to(tl.int32) if BITS > 4 else word
    else:
        is_word = (start // 8 + tl.arange(0, WORDS) < COLUMNS // 8)[None, :]
        is_group = (start // SPAN + tl.arange(0, GROUPS) < COLUMNS // SPAN)[None, :]
        word = tl.load(word_at + start // 8, mask=is_word, other=0)
        scale = tl.load(scale_at + start // SPAN, mask=is_group, other=0)
        extra = tl.load(extra_at + start // SPAN, mask=is_group, other=0) if EXTRA else scale
        above = tl.load(high_at + start // 8, mask=is_word, other=0).to(tl.int32) if BITS > 4 else word
    return word, scale, extra, above


@triton.jit(do_not_specialize=["rows"])  # one kernel for any number of them
def _stored_tile_kernel(
    x, codes, high, scales, factors, extras, extra_factors, bias, out, partial, arrived, rows,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, OUT_STRIDE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, NESTED: tl.constexpr, EXTRA: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr,
    STEPS: tl.constexpr, ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs, of STEPS tiles of the depth. PARTS share the depth: `partial` receives their results, and `arrived`
    counts them."""
    tl.static_assert(TILE_K == 128 or TILE_K == 256)  # a nested scale has one factor in a tile
    WORDS: tl.constexpr = TILE_K // 8
    # Two groups of 16 columns, which nested scales of a byte have, are loaded as one number.
    HALVED: tl.constexpr = GROUP == 16
    SPAN: tl.constexpr = 32 if HALVED else GROUP
    GROUPS: tl.constexpr = TILE_K // SPAN
    PER_ROW: tl.constexpr = COLUMNS // SPAN
    whole: tl.constexpr = COLUMNS == PARTS * STEPS * TILE_K
    tile, part = tl.program_id(0), tl.program_id(1)
    at = tile * TILE_N + tl.arange(0, TILE_N)
    row = tl.arange(0, ROWS)
    # Outputs beyond the last are computed as the last, and are not written.
    output = tl.minimum(at, OUTPUTS - 1).to(tl.int64)
    inner, group = tl.arange(0, WORDS), tl.arange(0, GROUPS)
    column = inner // 4 * 32 + inner % 4
    word_at = codes + output[:, None] * (COLUMNS // 8) + inner[None, :]
    scale_at = scales + output[:, None] * PER_ROW + group[None, :]
    x_at = x + (
        row[None, :] * WORDS + inner[:, None] if ORDERED else row[None, :] * COLUMNS + column[:, None]
    )
    extra_at = extras + output[:, None] * PER_ROW + group[None, :] if EXTRA else scale_at
    high_at = high + output[:, None] * (COLUMNS // 8) + inner[None, :] if BITS > 4 else word_at
    total = tl.zeros((TILE_N, ROWS), tl.float32)
    begin = part * STEPS
    if NESTED and not ORDERED:
        # Loaded a step before they are needed: a number for each row is not copied past the registers.
        factor, extra_factor = _load_factors(factors, extra_factors, output, begin * TILE_K, COLUMNS, EXTRA)
    for step in range(STEPS):
        start = (begin + step) * TILE_K
        # Columns beyond the last count nothing: x is 0 there, and a weight some number.
        is_row = row[None, :] < rows if whole else (row[None, :] < rows) & (start + column < COLUMNS)[:, None]
        word, scale, extra, above = _load_tile(
            word_at, scale_at, extra_at, high_at, start, COLUMNS, SPAN, WORDS, GROUPS, EXTRA, BITS, whole
        )
        times, extra_times = scale, extra
        if NESTED:
            if ORDERED:
                factor, extra_factor = _load_factors(factors, extra_factors, output, start, COLUMNS, EXTRA)
            times = factor.to(tl.float32)[:, None]
            extra_times = extra_factor.to(tl.float32)[:, None] if EXTRA == 1 else times
            if not ORDERED:
                factor, extra_factor = _load_factors(
                    factors, extra_factors, output, start + TILE_K, COLUMNS, EXTRA
                )
        f12, a12, f16, a16, g12, b12, g16, b16 = _all_scaled(
            scale, extra, times, extra_times, HALVED, NESTED, GROUPS, EXTRA, OFFSET, TILE_N, WORDS
        )
        for n in tl.static_range(8):
            if ORDERED:
                a = tl.load(x_at + start * ROWS + n * (ROWS * WORDS))
            else:
                a = tl.load(x_at + start + 4 * n, mask=is_row, other=0.0)
            if n < 4:
                w = _weights(word, above, n, f12, a12, f16, a16, BITS)
            else:
                w = _weights(word, above, n, g12, b12, g16, b16, BITS)
            total = tl.dot(w.to(x.dtype.element_ty), a, total)
    if PARTS == 1:
        _add(total, at, row, bias, out, rows, OUTPUTS, OUT_STRIDE, BIAS)
    else:
        place = row[None, :] * TILE_N + tl.arange(0, TILE_N)[:, None]
        of_tile = partial + tile * (PARTS * ROWS * TILE_N)
        tl.store(of_tile + part * (ROWS * TILE_N) + place, total, mask=row[None, :] < rows)
        # All threads write before one of them counts; the program that counts last sees what all others wrote.
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
            tl.store(arrived + tile, 0)  # for the next product
            total = _sum(of_tile, place, row, rows, PARTS, ROWS, TILE_N)
            _add(total, at, row, bias, out, rows, OUTPUTS, OUT_STRIDE, BIAS)


@triton.jit(do_not_specialize=["rows"])
def _order_kernel(
    x, out, rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr, TILE_K: tl.constexpr, TILE_ROWS: tl.constexpr
):  # fmt: skip
    """TILE_ROWS rows of a tile of TILE_K columns, in the order in which `_stored_tile_kernel` multiplies them: [tiles, 8, ROWS,
    TILE_K / 8]. Rows and columns beyond the last are 0."""
    WORDS: tl.constexpr = TILE_K // 8
    tile = tl.program_id(0)
    row = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    place = tl.arange(0, TILE_K)
    n, word = place // WORDS, place % WORDS
    column = tile * TILE_K + word // 4 * 32 + 4 * n + word % 4
    a = tl.load(
        x + row[:, None] * COLUMNS + column[None, :],
        mask=(row < rows)[:, None] & (column < COLUMNS)[None, :],
        other=0.0,
    )
    tl.store(out + tile * (ROWS * TILE_K) + (n * (ROWS * WORDS) + word)[None, :] + row[:, None] * WORDS, a)


def takes(rows: int, layout: DeviceLayout, dtype: torch.dtype) -> bool:
    """Return whether products of so many rows in `dtype` are computed here: of codes in words, at most `MOST_ROWS` rows."""
    return 0 < rows <= MOST_ROWS and layout.by_words and dtype in DTYPES


def cut(outputs: int, columns: int, tile_rows: int, programs: int = PROCESSORS) -> tuple[int, int, int]:
    """Return (tiles of the outputs, parts of the depth, tiles of the depth of a part) of a product with a weight [outputs,
    columns] in tiles of so many rows. `programs`: how many are to run at once, if the depth allows it. No part is empty."""
    tile = choose("stored_tile", HALF, tile_rows)
    tiles, steps = triton.cdiv(outputs, tile.outputs), triton.cdiv(columns, tile.depth)
    parts = max(1, min(triton.cdiv(programs, tiles), columns // tile.least))
    share = triton.cdiv(steps, parts)
    return tiles, triton.cdiv(steps, share), share


def tile_matmul(x: torch.Tensor, weight: DeviceRows, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """Write x W^T + bias to `out` [rows, outputs], whose rows may be parts of longer ones; see `takes`.

    `x` [rows, columns], contiguous; `bias` [outputs] or None. A weight without counters is computed by programs that share no
    depth. Products that share a weight must run one after the other.
    """
    rows, columns = x.shape
    tile_rows = max(_LEAST_ROWS, triton.next_power_of_2(rows))
    tile = choose("stored_tile", HALF, tile_rows)
    programs = tile.programs * processors(x.device) if weight.arrived is not None else 1
    tiles, parts, steps = cut(weight.rows, columns, tile_rows, programs)
    partial = None
    if parts > 1:
        partial = torch.empty(tiles * parts * tile_rows * tile.outputs, dtype=torch.float32, device=x.device)
    if tile.ordered:
        x = _in_order(x, tile_rows, tile.depth, parts * steps)
    how = weight.layout
    scales, extras = weight.scales, weight.extras
    if how.group == 16:
        scales, extras = scales.view(torch.int16), None if extras is None else extras.view(torch.int16)
    _stored_tile_kernel[(tiles, parts)](
        x, weight.codes.view(torch.int32), weight.high, scales, weight.factors, extras, weight.extra_factors, bias,
        out, partial, weight.arrived if parts > 1 else None, rows,
        OUTPUTS=weight.rows, COLUMNS=columns, OUT_STRIDE=out.stride(0), BITS=how.bits, GROUP=how.group, OFFSET=how.offset,
        NESTED=how.nested, EXTRA=_EXTRAS[how.extra], BIAS=bias is not None, PARTS=parts, STEPS=steps,
        ROWS=tile_rows, TILE_N=tile.outputs, TILE_K=tile.depth, ORDERED=tile.ordered,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _in_order(x: torch.Tensor, tile_rows: int, depth: int, tiles: int) -> torch.Tensor:
    """Return `x` [rows, columns] in the order of so many tiles of words: [tiles, 8, tile_rows, depth / 8]."""
    out = torch.empty(tiles, 8, tile_rows, depth // 8, dtype=x.dtype, device=x.device)
    _order_kernel[(tiles, tile_rows // LEAST_OUTPUTS)](
        x, out, len(x), COLUMNS=x.shape[1], ROWS=tile_rows, TILE_K=depth, TILE_ROWS=_LEAST_ROWS, num_warps=4
    )
    return out
