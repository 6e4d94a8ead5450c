"""FP8 (e4m3: 4 bits of exponent, 3 of mantissa, up to 448; Micikevicius et al., 2022): rounding to it, and block-scaled
products.

    quantize        rows of activations to e4m3 with a scale per row, or per 128 elements of it, in one pass
    block_matmul    such activations times weights with a scale per 128 columns and some rows (DeepSeek-V3 report, 2024, 3.3)
    block_gated     the same of gate and up projections, whose rows are in one weight, and act(gate) * up of the sums
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs

from executors.kernels.triton.activation import KINDS, activate
from executors.kernels.triton.tuning import E4M3, choose

GROUP = 128
"""Number of columns that share a scale in a block format."""
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)
_LARGEST = tl.constexpr(448.0)
SHARING = 8
"""Number of row tiles that read the weights together: what one of them has read, the others find in the cache."""


@triton.jit
def to_e4m3(x):
    """Convert fp32 to e4m3, ties to even. Too large values become the largest number, NaN stays NaN.

    The instruction does all of this. The interpreter's conversion carries a rounded mantissa incorrectly, so the value is
    rounded first there and only its format remains to be converted.
    """
    if _INTERPRETED:
        x = tl.where(x > _LARGEST, _LARGEST, tl.where(x < -_LARGEST, -_LARGEST, x))
        bits = x.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        # Below 2^-6 the spacing is 2^-9: so is that of fp32 between 2^14 and 2^15.
        small = (x + 24576.0) - 24576.0
        x = tl.where(tl.abs(x) < 0.015625, small, normal)
    return x.to(tl.float8e4nv)


@triton.jit
def _quantize_kernel(
    x, out, scales, COLUMNS: tl.constexpr, GROUPS: tl.constexpr, GROUPS_PAD: tl.constexpr, WIDTH: tl.constexpr
):
    """One row, as GROUPS groups of WIDTH columns; the last group may be shorter. A group of zeros has a scale, too."""
    row = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS_PAD)
    columns = groups[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    there = columns < COLUMNS
    values = tl.load(x + row * COLUMNS + columns, mask=there, other=0.0).to(tl.float32)
    peak = tl.maximum(tl.max(tl.abs(values), 1), 1e-10)
    tl.store(out + row * COLUMNS + columns, to_e4m3(values * (448.0 / peak)[:, None]), mask=there)
    tl.store(scales + row * GROUPS + groups, peak / 448.0, mask=groups < GROUPS)


def quantize(x: torch.Tensor, blocks: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert `x` [rows, columns], contiguous, of any float dtype to e4m3 [rows, columns] and scales float32 [rows, 1], or
    with `blocks` [rows, columns / 128]: the largest number that shares a scale becomes 448."""
    rows, columns = x.shape
    groups = triton.cdiv(columns, GROUP) if blocks else 1
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    if rows:
        width = GROUP if blocks else triton.next_power_of_2(columns)
        pad, tile = triton.next_power_of_2(groups), choose("quantize", E4M3, "")
        _quantize_kernel[(rows,)](
            x, out, scales, COLUMNS=columns, GROUPS=groups, GROUPS_PAD=pad, WIDTH=width,
            num_warps=max(1, min(tile.warps, pad * width // tile.depth)),
        )  # fmt: skip
    return out, scales


@triton.jit
def tile_of(program, row_tiles, output_tiles: tl.constexpr, SHARING: tl.constexpr):
    """(tile of rows, tile of outputs) of a program: SHARING tiles of rows, or those that are left, with the first outputs, then
    with the next.

        rows  0 |  0  2  4        SHARING 2, 3 x 3 tiles, by the programs' numbers
              1 |  1  3  5
              2 |  6  7  8
    """
    each = SHARING * output_tiles
    first = program // each * SHARING
    together = tl.minimum(row_tiles - first, SHARING)
    place = program % each
    return first + place % together, place // together


@triton.jit(do_not_specialize=["rows"])  # it takes any value
def _block_kernel(
    x, x_scales, weight, weight_scales, bias, out, rows,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PER_SCALE: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, KIND: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, GROUP: tl.constexpr, SHARING: tl.constexpr,
):  # fmt: skip
    """One tile of the result. The products of a group are summed separately and scaled into fp32: a longer sum would lose
    bits, because the tensor cores keep about 14 bits of a running sum.

    GATED: a tile alternates rows of gate and of up, so that factors are adjacent; OUTPUTS counts both.
    """
    output_tiles: tl.constexpr = (OUTPUTS + TILE_OUTPUTS - 1) // TILE_OUTPUTS
    row_tile, output_tile = tile_of(tl.program_id(0), tl.cdiv(rows, TILE_ROWS), output_tiles, SHARING)
    row = row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = output_tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_row, is_output = row < rows, output < OUTPUTS
    if GATED:
        output = output // 2 + output % 2 * (OUTPUTS // 2)
    inner = tl.arange(0, GROUP)
    x_at = x + row.to(tl.int64)[:, None] * COLUMNS + inner[None, :]
    weight_at = weight + output.to(tl.int64)[None, :] * COLUMNS + inner[:, None]
    groups: tl.constexpr = (COLUMNS + GROUP - 1) // GROUP
    x_scale_at = x_scales + row * groups
    weight_scale_at = weight_scales + output // ROWS_PER_SCALE * groups
    # Where the tile's rows of gate share a scale, and those of up another, two numbers do: a thread has not the room for one of
    # each column.
    half: tl.constexpr = TILE_OUTPUTS // 2
    shared: tl.constexpr = GATED and ROWS_PER_SCALE % half == 0 and (OUTPUTS // 2) % half == 0
    gate_scale_at = weight_scales + output_tile * half // ROWS_PER_SCALE * groups
    up_scale_at = weight_scales + (OUTPUTS // 2 + output_tile * half) // ROWS_PER_SCALE * groups
    total = tl.zeros((TILE_ROWS, TILE_OUTPUTS), tl.float32)
    for group in range(groups):
        is_a, is_b = is_row[:, None], is_output[None, :]
        if COLUMNS % GROUP:
            rest = COLUMNS - group * GROUP
            is_a, is_b = is_a & (inner[None, :] < rest), is_b & (inner[:, None] < rest)
        a = tl.load(x_at + group * GROUP, mask=is_a, other=0.0)
        b = tl.load(weight_at + group * GROUP, mask=is_b, other=0.0)
        a_scale = tl.load(x_scale_at + group, mask=is_row, other=0.0)
        if shared:
            is_gate = tl.arange(0, TILE_OUTPUTS) % 2 == 0
            b_scale = tl.where(is_gate, tl.load(gate_scale_at + group), tl.load(up_scale_at + group))
        else:
            b_scale = tl.load(weight_scale_at + group, mask=is_output, other=0.0)
        total += tl.dot(a, b) * (a_scale[:, None] * b_scale[None, :])
    if BIAS:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(total, (TILE_ROWS, TILE_OUTPUTS // 2, 2)))
        total = activate(gate, KIND) * up
        output = output_tile * (TILE_OUTPUTS // 2) + tl.arange(0, TILE_OUTPUTS // 2)
    width: tl.constexpr = OUTPUTS // 2 if GATED else OUTPUTS
    at = out + row.to(tl.int64)[:, None] * width + output[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=is_row[:, None] & (output < width)[None, :])


def block_matmul(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, rows_per_scale: int,
    dtype: torch.dtype, bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return x W^T + bias in `dtype` [rows, outputs]; groups of 128 columns are summed in order, for any number of rows.

    `x` [rows, columns] and `x_scales` as from `quantize` with blocks; `weight` e4m3 [outputs, columns], contiguous, and
    `weight_scales` float32 [outputs / rows_per_scale, columns / 128], both rounded up.
    """
    return _of_blocks(x, x_scales, weight, weight_scales, rows_per_scale, dtype, bias, None)


def block_gated(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, rows_per_scale: int,
    dtype: torch.dtype, activation: str, bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return act(gate) * up in `dtype` [rows, outputs / 2], where gate and up are the halves of `block_matmul`'s result,
    which is not rounded in between. `activation`: one of `KINDS`; other arguments and the order of sums as in `block_matmul`."""
    return _of_blocks(x, x_scales, weight, weight_scales, rows_per_scale, dtype, bias, activation)


def _of_blocks(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, rows_per_scale: int,
    dtype: torch.dtype, bias: torch.Tensor | None, activation: str | None,
) -> torch.Tensor:  # fmt: skip
    rows, columns = x.shape
    outputs = len(weight)
    out = torch.empty(rows, outputs if activation is None else outputs // 2, dtype=dtype, device=x.device)
    if rows:
        tile_rows = max(16, min(128, triton.next_power_of_2(rows)))
        tile = choose("block_product", E4M3, tile_rows)
        tile_outputs = tile.outputs
        _block_kernel[(triton.cdiv(outputs, tile_outputs) * triton.cdiv(rows, tile_rows),)](
            x, x_scales, weight, weight_scales, bias, out, rows,
            OUTPUTS=outputs, COLUMNS=columns, ROWS_PER_SCALE=rows_per_scale, BIAS=bias is not None,
            GATED=activation is not None, KIND=KINDS[activation] if activation is not None else 0,
            TILE_ROWS=tile_rows, TILE_OUTPUTS=tile_outputs, GROUP=GROUP, SHARING=SHARING,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
