"""LoRA (Hu et al., 2021) for rows of many adapters: result += scale * B (A x), each row with its own adapter's A and B.

    shrink    sums = A x of a tile's rows, float32; several programs share the depth, and each writes a part of its own
    expand    result += scale * B sums, of the parts added up in their order

Rows lie in tiles of one adapter each, see `lora_tiles.py`. The parts of a merged matrix (q, k and v; gate and up) have an A and
a B each, which the same two launches compute. Grids depend on the number of tiles alone: programs of a tile that is not used, or
of an adapter without this part, exit at once, so launches can be captured in a graph. There are no atomics: the same inputs give
the same bits.

One launch for rows of all adapters is the idea of Punica (Chen et al., 2023) and S-LoRA (Sheng et al., 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.lora_tiles import FEW_ROWS, LoraMatrix, LoraTiles
from executors.kernels.triton.tuning import HALF, PROCESSORS, choose, kind_of, processors


@triton.jit
def _shrink_kernel(
    x, a, ranks, rows, owners, sums,
    COLUMNS: tl.constexpr, STRIDE: tl.constexpr, WORDS: tl.constexpr, MOST: tl.constexpr, PADDED: tl.constexpr,
    PARTS: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_RANKS: tl.constexpr,
    TILE_K: tl.constexpr,
):  # fmt: skip
    """TILE_RANKS sums of a tile's rows, of STEPS tiles of the depth; WHOLE: no tile ends beyond it. `sums` [splits, rows of all
    tiles, PARTS * PADDED]."""
    tile, split = tl.program_id(0), tl.program_id(1)
    part = tl.program_id(2) // (PADDED // TILE_RANKS)
    first = tl.program_id(2) % (PADDED // TILE_RANKS) * TILE_RANKS
    owner = tl.load(owners + tile)
    if owner < 0:
        return
    rank = tl.load(ranks + owner * WORDS + part)
    if first >= rank:
        return
    lane, ranked, depth = tl.arange(0, TILE_ROWS), first + tl.arange(0, TILE_RANKS), tl.arange(0, TILE_K)
    row = tl.load(rows + tile * TILE_ROWS + lane)
    is_row, is_rank = row >= 0, ranked < rank
    of_part = a + owner.to(tl.int64) * STRIDE + part * (MOST * COLUMNS)
    x_at = x + row.to(tl.int64)[:, None] * COLUMNS + depth[None, :]
    a_at = of_part + ranked[None, :] * COLUMNS + depth[:, None]
    begin = split * (STEPS * TILE_K)
    total = tl.zeros((TILE_ROWS, TILE_RANKS), tl.float32)
    for step in range(STEPS):
        start = begin + step * TILE_K
        if WHOLE:
            left = tl.load(x_at + start, mask=is_row[:, None], other=0.0)
            right = tl.load(a_at + start, mask=is_rank[None, :], other=0.0)
        else:
            inside = start + depth < COLUMNS
            left = tl.load(x_at + start, mask=is_row[:, None] & inside[None, :], other=0.0)
            right = tl.load(a_at + start, mask=is_rank[None, :] & inside[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    place = (split * tl.num_programs(0) + tile) * TILE_ROWS + lane
    at = sums + place.to(tl.int64)[:, None] * (PARTS * PADDED) + (part * PADDED + ranked)[None, :]
    tl.store(at, total)


@triton.jit
def _expand_kernel(
    sums, b, ranks, scales, rows, owners, out,
    OUTPUTS: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, STRIDE: tl.constexpr, WORDS: tl.constexpr,
    MOST: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_N: tl.constexpr, TILE_RANKS: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs of a tile's rows. SECOND and THIRD: where these parts begin, OUTPUTS if there are none."""
    tile, number = tl.program_id(0), tl.program_id(1)
    owner = tl.load(owners + tile)
    if owner < 0:
        return
    # A program's outputs are of one part: each begins at a tile of its own.
    tiles_1: tl.constexpr = (SECOND + TILE_N - 1) // TILE_N
    tiles_2: tl.constexpr = tiles_1 + (THIRD - SECOND + TILE_N - 1) // TILE_N
    part = (number >= tiles_1).to(tl.int32) + (number >= tiles_2).to(tl.int32)
    begin = tl.where(part == 0, 0, tl.where(part == 1, SECOND, THIRD))
    end = tl.where(part == 0, SECOND, tl.where(part == 1, THIRD, OUTPUTS))
    before = tl.where(part == 0, 0, tl.where(part == 1, tiles_1, tiles_2))
    rank = tl.load(ranks + owner * WORDS + part)
    if rank == 0:
        return
    lane, ranked = tl.arange(0, TILE_ROWS), tl.arange(0, TILE_RANKS)
    output = (number - before) * TILE_N + tl.arange(0, TILE_N)
    is_output = output < end - begin
    row = tl.load(rows + tile * TILE_ROWS + lane)
    of_part = b + owner.to(tl.int64) * STRIDE + begin * MOST
    b_at = of_part + ranked[:, None] * (end - begin) + output[None, :]
    place = (tile * TILE_ROWS + lane).to(tl.int64)[:, None] * (PARTS * PADDED)
    sums_at = sums + place + (part * PADDED + ranked)[None, :]
    split_words = tl.num_programs(0).to(tl.int64) * (TILE_ROWS * PARTS * PADDED)
    total = tl.zeros((TILE_ROWS, TILE_N), tl.float32)
    for first in range(0, rank, TILE_RANKS):
        left = tl.zeros((TILE_ROWS, TILE_RANKS), tl.float32)
        for split in tl.static_range(SPLITS):
            left += tl.load(sums_at + split * split_words + first)
        is_rank = first + ranked < rank
        right = tl.load(b_at + first * (end - begin), mask=is_rank[:, None] & is_output[None, :], other=0.0)
        total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")
    scale = tl.load(scales + owner * WORDS + part)
    at = out + row.to(tl.int64)[:, None] * OUTPUTS + (begin + output)[None, :]
    there = (row >= 0)[:, None] & is_output[None, :]
    result = tl.load(at, mask=there, other=0.0).to(tl.float32) + scale * total
    tl.store(at, result.to(out.dtype.element_ty), mask=there)


def splits_of(tiles: int, parts: int, columns: int, few: bool, processors: int = PROCESSORS) -> int:
    """Return how many programs share the depth of `shrink`: a power of two, with which there are enough programs on the device's
    `processors` to read A. `few`: tiles are small. It is the same for all dtypes."""
    tile = choose("lora_shrink", HALF, "few" if few else "many")
    splits = min(tile.parts, columns // tile.least, triton.cdiv(processors, tiles * parts))
    return 1 << max(0, splits.bit_length() - 1)


def add_lora(matrix: LoraMatrix, tiles: LoraTiles, x: torch.Tensor, out: torch.Tensor) -> None:
    """Add scale * B (A x) to the rows of `out` [T, outputs] that have an adapter, in place.

    `x` [T, inputs] in the dtype of the adapters; `out` in that dtype or float32; both contiguous. The sums A x are rounded to the
    dtype of B; results are added in float32 and rounded once.
    """
    count, parts, columns = tiles.count, len(matrix.begins), matrix.inputs
    if not count or not len(x):
        return
    kind, few = kind_of(x.dtype), tiles.tile_rows == FEW_ROWS
    shrink = choose("lora_shrink", kind, "few" if few else "many")
    expand = choose("lora_expand", kind, "")
    ranks = min(shrink.outputs, max(16, triton.next_power_of_2(matrix.most)))
    padded = triton.cdiv(matrix.most, ranks) * ranks
    splits = splits_of(count, parts, columns, few, processors(x.device))
    steps = triton.cdiv(triton.cdiv(columns, splits), shrink.depth)
    room = splits, count * tiles.tile_rows, parts * padded
    sums = torch.empty(room, dtype=torch.float32, device=x.device)
    shared = {
        "STRIDE": matrix.stride, "WORDS": matrix.words, "MOST": matrix.most, "PADDED": padded, "PARTS": parts,
        "TILE_ROWS": tiles.tile_rows, "TILE_RANKS": ranks,
    }  # fmt: skip
    _shrink_kernel[(count, splits, parts * (padded // ranks))](
        x, matrix.a, matrix.ranks, tiles.rows, tiles.owners, sums,
        COLUMNS=columns, STEPS=steps, WHOLE=columns == splits * steps * shrink.depth, TILE_K=shrink.depth,
        num_warps=shrink.warps, num_stages=shrink.stages, **shared,
    )  # fmt: skip
    second, third = (*matrix.ends[:-1], matrix.outputs, matrix.outputs)[:2]
    blocks = sum(
        triton.cdiv(end - begin, expand.outputs)
        for begin, end in zip(matrix.begins, matrix.ends, strict=True)
    )
    _expand_kernel[(count, blocks)](
        sums, matrix.b, matrix.ranks, matrix.scales, tiles.rows, tiles.owners, out,
        OUTPUTS=matrix.outputs, SECOND=second, THIRD=third, SPLITS=splits, TILE_N=expand.outputs,
        num_warps=expand.warps, num_stages=expand.stages, **{**shared, "TILE_RANKS": min(ranks, expand.depth)},
    )  # fmt: skip
