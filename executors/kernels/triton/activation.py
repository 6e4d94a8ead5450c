"""act(gate) * up of a merged projection, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executors.kernels.triton.early import launch_next, options, wait_for_last
from executors.kernels.triton.tuning import choose

KINDS = {"silu": 0, "gelu_pytorch_tanh": 1, "gelu_new": 1, "gelu": 2, "relu": 3}
"""Activations by their names in config.json."""
CLAMPED = 4
EXPERT_KINDS = {**KINDS, "clamped_swiglu": CLAMPED}
"""Those that the product of experts computes: one of gate and up together as well, see `clamped`."""


@triton.jit
def activate(gate, KIND: tl.constexpr):
    """act(gate) of float32 values; `KIND` is one of the numbers of `KINDS`."""
    if KIND == 0:
        act = gate / (1.0 + tl.exp(-gate))
    elif KIND == 1:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        act = 0.5 * gate * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    elif KIND == 2:
        act = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        act = tl.maximum(gate, 0.0)
    return act


@triton.jit
def clamped(gate, up, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    """(u + 1) g sigmoid(ALPHA g) of float32 values, of g = min(gate, LIMIT) and u = up within -LIMIT and LIMIT."""
    # Comparisons keep a NaN, which a minimum may lose.
    g = tl.where(gate > LIMIT, LIMIT, gate)
    u = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    return (u + 1.0) * (g / (1.0 + tl.exp(-ALPHA * g)))


@triton.jit
def _gated_kernel(x, out, INNER: tl.constexpr, TILE: tl.constexpr, KIND: tl.constexpr, EARLY: tl.constexpr):
    """TILE elements of one row."""
    launch_next(EARLY)
    wait_for_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = columns < INNER
    gate = tl.load(x + row * 2 * INNER + columns, mask=there, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * INNER + INNER + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * INNER + columns, (activate(gate, KIND) * up).to(out.dtype.element_ty), mask=there)


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """`x` [T, 2 * inner], gate and up side by side, contiguous -> act(gate) * up [T, inner]. `activation`: one of `KINDS`."""
    inner = x.shape[1] // 2
    out = torch.empty(len(x), inner, dtype=x.dtype, device=x.device)
    if len(x):
        choice = choose("gated", "", "")
        tile = min(choice.outputs, triton.next_power_of_2(inner))
        _gated_kernel[(len(x), triton.cdiv(inner, tile))](
            x, out, INNER=inner, TILE=tile, KIND=KINDS[activation], num_warps=choice.warps, **options()
        )
    return out
