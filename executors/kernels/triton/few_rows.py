"""Products of at most 16 rows with weights, limited by the time to read the weights. The operations before and after a
product are fused into it and need no launch of their own.

    normed_product    W norm(x) + b, or act(gate) * up of it: the RMS norm before, the activation after
    added_product     residual += s (W x + b)

    a layer                   launches            here
    residual += x, norm       _rms_norm_kernel    |
    q, k and v                torch               | 1
    (norm heads, rotate, write KV; attention)
    attention's output        torch               2
    residual += x, norm       _rms_norm_kernel    |
    gate and up               torch               |
    act(gate) * up            _gated_kernel       | 3
    down                      torch               4

A row's norm factor is known only after the whole row is read. All products with that row share the factor, so the kernel
applies it to the sums at the end and multiplies x by the norm's weight first. x is therefore read along with W, and no
operation waits for the norm. This needs a dtype in which x times the norm's weight does not overflow: bf16 or float32.

A program computes TILE_N outputs of all rows, so each weight is read once, 16 bytes per thread along its row, some tiles
ahead of the product. All rows use the matrix instructions, which take 16: at one row 15 of them multiply zeros, and even that
is a tenth of the instructions that fit into the time of reading the weights. Sums of single products would need a kernel for
each number of rows, and at 16 rows they would take as long as reading the weights does.

Narrow products have fewer tiles than a device has multiprocessors. Their depth is cut into parts, and the program that
finishes a tile last adds up all parts in their order, as in decode attention (`decode_attention.py`). The cut depends only on
the weight's shape: a row's result has the same bits whatever the other rows are, for up to 16 rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.activation import KINDS, activate

MOST_ROWS = 16
"""Largest number of rows of a product: rows of the smallest matrix instruction."""
DTYPES = (torch.bfloat16, torch.float32)
_COLUMNS, _DEPTH, _STAGES = 32, 128, 5
"""Outputs of a program, elements of x per step, and number of buffers plus one: 24 KiB of weights are being loaded while 8
KiB are multiplied. At 3 TB/s and 0.7 us per load, 16 KiB for each of 132 multiprocessors are enough."""
_WIDE_DEPTH, _WIDE_STAGES = 32, 2
"""The same for float32, which no matrix instruction computes: threads hold the operands of products in registers."""
_PROCESSORS = 132
"""Smallest number of programs of a product: the multiprocessors of an H100 or H200."""
_LEAST_DEPTH = 512
"""Smallest number of elements of a part: below it, adding up costs more than the device gains."""


@triton.jit
def _finish(
    total, at, row, column, bias, out, rows, scale,
    OUTPUTS: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """Write the results for the sums `total` [ROWS, TILE_N]. `at`: rows of the weight; `column`: those of the result."""
    if BIAS:
        total += tl.load(bias + at, mask=at < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(total, (ROWS, TILE_N // 2, 2)))
        total = activate(gate, KIND) * up
    width: tl.constexpr = OUTPUTS // 2 if GATED else OUTPUTS
    place = out + row[:, None] * width + column[None, :]
    there = (row < rows)[:, None] & (column < width)[None, :]
    if ADD:
        total = tl.load(place, mask=there, other=0.0).to(tl.float32) + scale * total
    tl.store(place, total.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])  # one kernel for any number of them
def _few_rows_kernel(
    x, weight, bias, norm, out, partial, arrived, rows, eps, scale,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr, GATED: tl.constexpr,
    KIND: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs, of STEPS tiles of the depth. GATED: rows of gate and of up alternate, so that factors are adjacent.
    PARTS share the depth: `partial` receives their results, and `arrived` counts them."""
    tile, part = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    at = tile * TILE_N + tl.arange(0, TILE_N)
    is_row, is_output = row < rows, at < OUTPUTS
    column = at
    if GATED:
        at = at // 2 + at % 2 * (OUTPUTS // 2)
        column = tile * (TILE_N // 2) + tl.arange(0, TILE_N // 2)
    depth = tl.arange(0, TILE_K)
    x_at = x + row[:, None] * COLUMNS + depth[None, :]
    weight_at = weight + at.to(tl.int64)[None, :] * COLUMNS + depth[:, None]
    total = tl.zeros((ROWS, TILE_N), tl.float32)
    squares = tl.zeros((ROWS, TILE_K), tl.float32)
    begin = part * (STEPS * TILE_K)
    whole: tl.constexpr = COLUMNS == PARTS * STEPS * TILE_K
    if NORM:
        own = tl.load(norm + begin + depth, mask=begin + depth < COLUMNS, other=0.0)
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
        if NORM:
            # Of 2 bytes a thread: nothing copies that past the registers, and a tile must not wait for it.
            behind = start + TILE_K + depth
            coming = tl.load(norm + behind, mask=behind < COLUMNS, other=0.0)
            wide = a.to(tl.float32)
            squares += wide * wide
            factor = own.to(tl.float32) + 1.0 if PLUS_ONE else own.to(tl.float32)
            a = (wide * factor[None, :]).to(a.dtype)
            own = coming
        total = tl.dot(a, b, total, input_precision="ieee")
    if NORM:
        total *= (1.0 / tl.sqrt(tl.sum(squares, 1) / COLUMNS + eps))[:, None]
    if PARTS == 1:
        _finish(total, at, row, column, bias, out, rows, scale, OUTPUTS, GATED, KIND, ADD, BIAS, ROWS, TILE_N)
    else:
        inner = row[:, None] * TILE_N + tl.arange(0, TILE_N)[None, :]
        of_tile = partial + tile * (PARTS * ROWS * TILE_N)
        tl.store(of_tile + part * (ROWS * TILE_N) + inner, total, mask=is_row[:, None])
        # All threads have written before one of them says so; who counts last sees what all others wrote.
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
            tl.store(arrived + tile, 0)  # for the next product
            total = tl.zeros((ROWS, TILE_N), tl.float32)
            for number in tl.static_range(PARTS):
                # Others wrote these: past the first cache, which is a multiprocessor's own.
                total += tl.load(
                    of_tile + number * (ROWS * TILE_N) + inner, mask=is_row[:, None], other=0.0, cache_modifier=".cg"
                )  # fmt: skip
            _finish(
                total, at, row, column, bias, out, rows, scale, OUTPUTS, GATED, KIND, ADD, BIAS, ROWS, TILE_N
            )


def cut(outputs: int, columns: int) -> tuple[int, int, int]:
    """Return (tiles of the outputs, parts of the depth, elements of a part) of a product that adds to a residual with a
    weight [outputs, columns]. There are enough programs for every multiprocessor to read weights, if the depth allows it. No
    part is empty."""
    tiles = triton.cdiv(outputs, _COLUMNS)
    parts = max(1, min(triton.cdiv(_PROCESSORS, tiles), columns // _LEAST_DEPTH))
    share = triton.cdiv(triton.cdiv(columns, parts), _DEPTH) * _DEPTH
    return tiles, triton.cdiv(columns, share), share


class FewRowsWorkspace:
    """Memory for parts of products, allocated once for the widest, so that captured graphs find it at the same address.

    `partial` float32: contents are meaningless between launches. `arrived` int32 [tiles]: how many parts of a tile are done,
    0 between launches. Launches that share the workspace must run one after the other.
    """

    def __init__(self, shapes: list[tuple[int, int]], device: torch.device) -> None:
        """`shapes`: (outputs, columns) of the weights of all products."""
        cuts = [cut(*shape) for shape in shapes]
        room = max(tiles * parts for tiles, parts, _ in cuts) * MOST_ROWS * _COLUMNS
        self.partial = torch.empty(room, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(max(tiles for tiles, _, _ in cuts), dtype=torch.int32, device=device)


def normed_product(
    x: torch.Tensor, norm: torch.Tensor, eps: float, weight: torch.Tensor, *, bias: torch.Tensor | None = None,
    activation: str | None = None, plus_one: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return W norm(x) + bias [rows, outputs]; with `activation` (one of `KINDS`) act(gate) * up [rows, outputs / 2] of its
    halves.

    `x` [rows, columns], at most MOST_ROWS; `norm` [columns]: the weight of an RMS norm, minus one with `plus_one`; `weight`
    [outputs, columns]; `bias` [outputs]. All are contiguous and in one of DTYPES. x times the norm's weight is rounded once,
    and so is the result.
    """
    outputs = len(weight)
    gated = activation is not None
    out = torch.empty(len(x), outputs // 2 if gated else outputs, dtype=x.dtype, device=x.device)
    if len(x):
        whole = triton.cdiv(outputs, _COLUMNS), 1, triton.cdiv(x.shape[1], _DEPTH) * _DEPTH
        _launch(
            whole, x, weight, bias, norm, out, None, eps, 1.0,
            NORM=True, PLUS_ONE=plus_one, GATED=gated, KIND=KINDS[activation] if activation is not None else 0, ADD=False,
        )  # fmt: skip
    return out


def added_product(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, workspace: FewRowsWorkspace, *,
    bias: torch.Tensor | None = None, scale: float = 1.0,
) -> None:  # fmt: skip
    """Add scale * (W x + bias) to `residual` [rows, outputs]; rounded once.

    `x` [rows, columns], at most MOST_ROWS; `weight` [outputs, columns], whose shape `workspace` is made for; `bias`
    [outputs]. All are contiguous and in one of DTYPES.
    """
    if len(x):
        _launch(
            cut(*weight.shape), x, weight, bias, None, residual, workspace, 0.0, scale,
            NORM=False, PLUS_ONE=False, GATED=False, KIND=0, ADD=True,
        )  # fmt: skip


def _launch(
    how: tuple[int, int, int], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: torch.Tensor | None,
    out: torch.Tensor, workspace: FewRowsWorkspace | None, eps: float, scale: float, **fixed: bool | int,
) -> None:  # fmt: skip
    """`how`: see `cut`."""
    rows, columns = x.shape
    if rows > MOST_ROWS:
        raise ValueError(f"{rows} rows, and a product takes {MOST_ROWS}")
    tiles, parts, share = how
    wide = x.dtype == torch.float32
    deep = _WIDE_DEPTH if wide else _DEPTH
    shared = workspace if parts > 1 else None
    _few_rows_kernel[(tiles, parts)](
        x, weight, bias, norm, out, shared and shared.partial, shared and shared.arrived, rows, eps, scale,
        OUTPUTS=len(weight), COLUMNS=columns, BIAS=bias is not None, PARTS=parts, STEPS=share // deep,
        ROWS=MOST_ROWS, TILE_N=_COLUMNS, TILE_K=deep, **fixed, num_warps=4, num_stages=_WIDE_STAGES if wide else _STAGES,
    )  # fmt: skip
