"""Products of few rows with weights, limited by the time to read the weights. The operations around a product are fused into
it where one launch is faster than several.

    normed_product    of one row, in e4m3 of four: W norm(x) + b, or act(gate) * up of it; the RMS norm before, the activation
                      after
    added_product     of at most 16 rows: residual += s (W x + b)

    a layer, one row          launches            here
    residual += x, norm       _rms_norm_kernel    |
    q, k and v                torch               | 1
    (norm heads, rotate, write KV; attention)
    attention's output        torch               2
    residual += x, norm       _rms_norm_kernel    |
    gate and up               torch               |
    act(gate) * up            _gated_kernel       | 3
    down                      torch               4

One row is multiplied without matrix instructions: a program holds a few rows of the weight and the whole input in registers,
all its loads are under way at once, and many small programs share a multiprocessor. A row's norm factor is known only after
the whole row is read. All products with that row share the factor, so the kernel applies it to the sums at the end and
multiplies x by the norm's weight first. This needs a dtype in which x times the norm's weight does not overflow: bf16 or
float32. On an H200 the four products of a layer of Qwen3-0.6B take 18 us, as separate launches 36 us.

Weights in e4m3 with a scale for each row are multiplied the same way for up to four rows, by x as it is: torch's product needs x
in e4m3, which is a launch of its own for each product. The scale is applied to the sum. Bytes: one for each weight and four for
each output. 4096 x 4096 needs 4.0 us at 4.25 TB/s: 7.9 and, without a norm, 6.7 us on an H200 with one row, 24 and 18 with four.

More rows use the matrix instructions, which take 16. A program computes TILE_N outputs of all rows, so each weight is read
once, 16 bytes per thread along its row, some tiles ahead of the product. Narrow products have fewer tiles than a device has
multiprocessors. Their depth is cut into parts, and the program that finishes a tile last adds up all parts in their order, as
in decode attention (`decode_attention.py`). The cut depends on the weight's shape and on the device: a row's result has the
same bits whatever the other rows are, for 2 to 16 rows. A norm before the product does not pay there: on an H200 it makes the
product of gate and up slower (16 us) than three launches are (9.5 us).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.activation import KINDS, activate
from executors.kernels.triton.early import launch_next, options, prefetch_rows, wait_for_last
from executors.kernels.triton.tuning import E4M3, HALF, PROCESSORS, choose, kind_of, processors

MOST_ROWS = 16
"""Largest number of rows of `added_product`: rows of the smallest matrix instruction."""
MOST_NARROW_ROWS = 4
"""Largest number of rows of products with e4m3: each has its own programs, and all but the first read weights from a cache."""
DTYPES = (torch.bfloat16, torch.float32)
_AHEAD, _SMALL = 2048, 16 << 20
"""Elements of each row of a weight that are brought into the second cache before x is there, and bytes of the largest weight of
which they are: all programs of a larger one would ask for more than that cache holds."""


@triton.jit
def _add_products(
    products, squares, x, weight, norm, at, is_output, depth, start,
    COLUMNS: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr, PAIR: tl.constexpr, WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Add those of a tile of the depth to `products` [PAIR, TILE_N, TILE_K], and the squares of x to `squares`. EARLY: x is what
    the kernel before this one writes, and the weights are read before that has ended."""
    inside = start + depth < COLUMNS
    half = tl.arange(0, PAIR)
    place = (at[None, :] + half[:, None] * WIDTH).to(tl.int64)[:, :, None] * COLUMNS + (start + depth)[
        None, None, :
    ]
    b = tl.load(weight + place, mask=is_output[None, :, None] & inside[None, None, :], other=0.0)
    if NORM:
        factor = tl.load(norm + start + depth, mask=inside, other=0.0).to(tl.float32)
    wait_for_last(EARLY)
    a = tl.load(x + start + depth, mask=inside, other=0.0)
    if NORM:
        wide = a.to(tl.float32)
        squares += wide * wide
        a = (wide * (factor + 1.0 if PLUS_ONE else factor)).to(a.dtype)
    return products + a.to(tl.float32)[None, None, :] * b.to(tl.float32), squares


@triton.jit
def _one_row_kernel(
    x, weight, scales, bias, norm, out, eps, scale,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr, GATED: tl.constexpr,
    KIND: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """TILE_N results of one row. GATED: of each, its rows of gate and of up. SCALED: a weight times its row's scale counts."""
    width: tl.constexpr = OUTPUTS // 2 if GATED else OUTPUTS
    pair: tl.constexpr = 2 if GATED else 1
    row = tl.program_id(1).to(tl.int64)
    x += row * COLUMNS
    out += row * width
    at = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    is_output = at < width
    depth = tl.arange(0, TILE_K)
    products = tl.zeros((pair, TILE_N, TILE_K), tl.float32)
    squares = tl.zeros((TILE_K,), tl.float32)
    launch_next(EARLY)
    if COLUMNS <= TILE_K:
        products, squares = _add_products(
            products, squares, x, weight, norm, at, is_output, depth, 0, COLUMNS, NORM, PLUS_ONE, pair, width, EARLY
        )  # fmt: skip
    else:
        for half in tl.static_range(pair):
            prefetch_rows(weight, (at + half * width).to(tl.int64), OUTPUTS - 1, 0, COLUMNS, AHEAD, EARLY)
        wait_for_last(EARLY)
        for start in tl.range(0, COLUMNS, TILE_K, num_stages=STAGES):
            products, squares = _add_products(
                products, squares, x, weight, norm, at, is_output, depth, start, COLUMNS, NORM, PLUS_ONE, pair, width, False
            )  # fmt: skip
    total = tl.sum(products, 2)
    if SCALED:
        part = tl.arange(0, pair)
        total *= tl.load(scales + at[None, :] + part[:, None] * width, mask=is_output[None, :], other=0.0)
    if NORM:
        total *= 1.0 / tl.sqrt(tl.sum(squares, 0) / COLUMNS + eps)
    if BIAS:
        half = tl.arange(0, pair)
        total += tl.load(bias + at[None, :] + half[:, None] * width, mask=is_output[None, :], other=0.0).to(
            tl.float32
        )
    if GATED:
        gate, up = tl.split(tl.trans(total))
        result = activate(gate, KIND) * up
    else:
        result = tl.sum(total, 0)
    if ADD:
        result = tl.load(out + at, mask=is_output, other=0.0).to(tl.float32) + scale * result
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_output)


@triton.jit
def _add(
    total, at, row, bias, residual, rows, scale, OUTPUTS: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """Add the sums `total` [ROWS, TILE_N] of the outputs `at` to the residual."""
    if BIAS:
        total += tl.load(bias + at, mask=at < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    place = residual + row[:, None] * OUTPUTS + at[None, :]
    there = (row < rows)[:, None] & (at < OUTPUTS)[None, :]
    total = tl.load(place, mask=there, other=0.0).to(tl.float32) + scale * total
    tl.store(place, total.to(residual.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])  # one kernel for any number of them
def _few_rows_kernel(
    x, weight, bias, residual, partial, arrived, rows, scale,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs, of STEPS tiles of the depth. PARTS share the depth: `partial` receives their results, and `arrived`
    counts them."""
    tile, part = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    at = tile * TILE_N + tl.arange(0, TILE_N)
    is_row, is_output = row < rows, at < OUTPUTS
    depth = tl.arange(0, TILE_K)
    x_at = x + row[:, None] * COLUMNS + depth[None, :]
    weight_at = weight + at.to(tl.int64)[None, :] * COLUMNS + depth[:, None]
    total = tl.zeros((ROWS, TILE_N), tl.float32)
    begin = part * (STEPS * TILE_K)
    launch_next(EARLY)
    prefetch_rows(weight, at.to(tl.int64), OUTPUTS - 1, begin, COLUMNS, AHEAD, EARLY)
    wait_for_last(EARLY)
    whole: tl.constexpr = COLUMNS == PARTS * STEPS * TILE_K
    for step in range(STEPS):
        start = begin + step * TILE_K
        if whole:
            x_mask = is_row[:, None]
        else:
            inside = start + depth < COLUMNS
            x_mask = is_row[:, None] & inside[None, :]
        a = tl.load(x_at + start, mask=x_mask, other=0.0)
        if whole and OUTPUTS % TILE_N == 0:
            b = tl.load(weight_at + start)
        elif whole:
            b = tl.load(weight_at + start, mask=is_output[None, :], other=0.0)
        else:
            b = tl.load(weight_at + start, mask=is_output[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if PARTS == 1:
        _add(total, at, row, bias, residual, rows, scale, OUTPUTS, BIAS)
    else:
        inner = row[:, None] * TILE_N + tl.arange(0, TILE_N)[None, :]
        of_tile = partial + tile * (PARTS * ROWS * TILE_N)
        tl.store(of_tile + part * (ROWS * TILE_N) + inner, total, mask=is_row[:, None])
        # All threads write before one of them counts; the program that counts last sees what all others wrote.
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
            tl.store(arrived + tile, 0)  # for the next product
            total = tl.zeros((ROWS, TILE_N), tl.float32)
            for number in tl.static_range(PARTS):
                # Others wrote these: past the first cache, which is a multiprocessor's own.
                total += tl.load(
                    of_tile + number * (ROWS * TILE_N) + inner, mask=is_row[:, None], other=0.0, cache_modifier=".cg"
                )  # fmt: skip
            _add(total, at, row, bias, residual, rows, scale, OUTPUTS, BIAS)


def cut(outputs: int, columns: int, processors: int = PROCESSORS) -> tuple[int, int, int]:
    """Return (tiles of the outputs, parts of the depth, elements of a part) of a product that adds to a residual with a
    weight [outputs, columns]. There are enough programs for each of the device's `processors` to read weights, if the depth
    allows it. No part is empty. The parts are the same for all dtypes."""
    tile = choose("few_rows", HALF, "")
    tiles = triton.cdiv(outputs, tile.outputs)
    parts = max(1, min(triton.cdiv(processors, tiles), columns // tile.least))
    share = triton.cdiv(triton.cdiv(columns, parts), tile.depth) * tile.depth
    return tiles, triton.cdiv(columns, share), share


class FewRowsWorkspace:
    """Memory for parts of products, allocated once for the widest, so that captured graphs find it at the same address.

    `partial` float32: contents are meaningless between launches. `arrived` int32 [tiles]: how many parts of a tile are done,
    0 between launches. Launches that share the workspace must run one after the other.
    """

    def __init__(self, shapes: list[tuple[int, int]], device: torch.device) -> None:
        """`shapes`: (outputs, columns) of the weights of all products."""
        self.cuts = {shape: cut(*shape, processors(device)) for shape in shapes}
        """By shape: see `cut`."""
        cuts = self.cuts.values()
        room = (
            max(tiles * parts for tiles, parts, _ in cuts) * MOST_ROWS * choose("few_rows", HALF, "").outputs
        )
        self.partial = torch.empty(room, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(max(tiles for tiles, _, _ in cuts), dtype=torch.int32, device=device)


def normed_product(
    x: torch.Tensor, norm: torch.Tensor, eps: float, weight: torch.Tensor, *, bias: torch.Tensor | None = None,
    activation: str | None = None, plus_one: bool = False, scales: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return W norm(x) + bias [rows, outputs]; with `activation` (one of `KINDS`) act(gate) * up [rows, outputs / 2] of its
    halves.

    `x` [1, columns]; `norm` [columns]: the weight of an RMS norm, minus one with `plus_one`; `weight` [outputs, columns];
    `bias` [outputs]. All are contiguous and in one of DTYPES. x times the norm's weight is rounded once, and so is the
    result. With `scales` float32 [outputs, 1] the weight is e4m3 times its row's scale, and x has at most MOST_NARROW_ROWS
    rows. Raises ValueError for another number of rows.
    """
    if scales is None and len(x) != 1:
        raise ValueError(f"{len(x)} rows, and a product behind a norm takes one")
    _check_narrow(len(x), scales)
    outputs = len(weight)
    gated = activation is not None
    out = torch.empty(len(x), outputs // 2 if gated else outputs, dtype=x.dtype, device=x.device)
    _launch_one_row(
        x, weight, scales, bias, norm, out, eps, 1.0,
        NORM=True, PLUS_ONE=plus_one, GATED=gated, KIND=KINDS[activation] if activation is not None else 0, ADD=False,
    )  # fmt: skip
    return out


def added_product(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, workspace: FewRowsWorkspace, *,
    bias: torch.Tensor | None = None, scale: float = 1.0, scales: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Add scale * (W x + bias) to `residual` [rows, outputs]; rounded once.

    `x` [rows, columns], at most MOST_ROWS; `weight` [outputs, columns], whose shape `workspace` is made for; `bias`
    [outputs]. All are contiguous and in one of DTYPES. `scales`: see `normed_product`. Raises ValueError for more rows.
    """
    rows, columns = x.shape
    if rows > MOST_ROWS:
        raise ValueError(f"{rows} rows, and a product takes {MOST_ROWS}")
    _check_narrow(rows, scales)
    if rows == 1 or (rows and scales is not None):
        _launch_one_row(
            x,
            weight,
            scales,
            bias,
            None,
            residual,
            0.0,
            scale,
            NORM=False,
            PLUS_ONE=False,
            GATED=False,
            KIND=0,
            ADD=True,
        )
    elif rows:
        tiles, parts, share = workspace.cuts[weight.shape[0], weight.shape[1]]
        tile = choose("few_rows", kind_of(x.dtype), "")
        shared = workspace if parts > 1 else None
        _few_rows_kernel[(tiles, parts)](
            x, weight, bias, residual, shared and shared.partial, shared and shared.arrived, rows, scale,
            OUTPUTS=len(weight), COLUMNS=columns, BIAS=bias is not None, PARTS=parts, STEPS=share // tile.depth,
            ROWS=MOST_ROWS, TILE_N=tile.outputs, TILE_K=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
            AHEAD=_ahead(weight, share), **options(),
        )  # fmt: skip


def _ahead(weight: torch.Tensor, columns: int) -> int:
    """Return how many elements of its `columns` a program brings into the cache of each row, before x is there."""
    return min(columns, _AHEAD) if weight.nbytes <= _SMALL else 0


def _check_narrow(rows: int, scales: torch.Tensor | None) -> None:
    if scales is not None and rows > MOST_NARROW_ROWS:
        raise ValueError(f"{rows} rows, and a product with e4m3 takes {MOST_NARROW_ROWS}")


def _launch_one_row(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    norm: torch.Tensor | None, out: torch.Tensor, eps: float, scale: float, **fixed: bool | int,
) -> None:  # fmt: skip
    rows, columns = x.shape
    gated, kind = " gated" if fixed["GATED"] else "", "" if scales is None else E4M3
    tile = choose("one_row", kind, f"short{gated}")
    if not (short := columns <= tile.most):
        tile = choose("one_row", kind, f"long{gated}")
    _one_row_kernel[(triton.cdiv(out.shape[1], tile.outputs), rows)](
        x, weight, scales, bias, norm, out, eps, scale,
        OUTPUTS=len(weight), COLUMNS=columns, BIAS=bias is not None, SCALED=scales is not None, TILE_N=tile.outputs,
        TILE_K=max(32, triton.next_power_of_2(columns)) if short else tile.depth, STAGES=tile.stages, **fixed,
        num_warps=tile.warps, AHEAD=_ahead(weight, columns), **options(),
    )  # fmt: skip
