"""RMS norm (Zhang and Sennrich, 2019), fused with the addition to the residual: one pass over memory instead of three."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.early import launch_next, options, wait_for_last
from executors.kernels.triton.tuning import choose


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, eps,
    SIZE: tl.constexpr, PAD: tl.constexpr, ADD: tl.constexpr, PLUS_ONE: tl.constexpr, WIDE_WEIGHT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One row. With ADD `residual` becomes x + residual, rounded, and the norm is that of the rounded sum."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PAD)
    there = columns < SIZE
    at = row * SIZE + columns
    launch_next(EARLY)
    factor = tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    wait_for_last(EARLY)
    values = tl.load(x + at, mask=there, other=0.0)
    if ADD:
        values = (values.to(tl.float32) + tl.load(residual + at, mask=there, other=0.0).to(tl.float32)).to(
            residual.dtype.element_ty
        )
        tl.store(residual + at, values, mask=there)
    wide = values.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    if PLUS_ONE:
        factor += 1.0
    normed = wide * scale
    if not WIDE_WEIGHT:  # as transformers: rounded before the weight
        normed = normed.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + at, (normed * factor).to(out.dtype.element_ty), mask=there)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, residual: torch.Tensor | None = None, plus_one: bool = False
) -> torch.Tensor:  # fmt: skip
    """Return the norm of the rows of `x` [T, size], contiguous, with `weight` [size]; the sums are fp32.

    With `residual` [T, size] return the norm of x + residual, which `residual` holds afterwards. `plus_one`: the factor is 1
    + weight, applied before rounding, as in Gemma.
    """
    rows, size = x.shape
    out = torch.empty_like(x)
    if rows:
        pad, tile = triton.next_power_of_2(size), choose("rms_norm", "", "")
        _rms_norm_kernel[(rows,)](
            x, residual, weight, out, eps, SIZE=size, PAD=pad, ADD=residual is not None, PLUS_ONE=plus_one,
            WIDE_WEIGHT=plus_one, num_warps=max(1, min(tile.warps, pad // tile.depth)), **options(),
        )  # fmt: skip
    return out
