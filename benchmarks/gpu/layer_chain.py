"""The products of a decoder's layers, with what is between them but attention, as a chain in a graph, launched one after the
other, or early. Microseconds of a layer of Qwen3-0.6B.

    residual | norm, qkv | residual += o | norm, gate and up, act(gate) * up | residual += down

One row has the fused products. A product alone says little here: what counts is how soon the next kernel reads its weights.
"""

from __future__ import annotations

import contextlib
import functools

import torch
import torch.nn.functional as F

from benchmarks.gpu.kernels import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, Bench
from benchmarks.gpu.part import Failed
from executors.kernels.triton import early
from executors.kernels.triton.activation import gated
from executors.kernels.triton.few_rows import FewRowsWorkspace, added_product, normed_product
from executors.kernels.triton.norms import rms_norm

ROWS = (1, 2, 4, 8, 16)
_LAYERS = 28
_EPS = 1e-6
_SIZES, _TINY = (HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM), (64, 96, 4, 2, 16)
_DIFFERENCE = 2e-2


class Layers:
    """Weights of all layers, and what their products share."""

    def __init__(self, bench: Bench) -> None:
        layers = 1 if bench.tiny else _LAYERS
        self.hidden, inner, heads, kv_heads, dim = _TINY if bench.tiny else _SIZES
        shapes = [((heads + 2 * kv_heads) * dim, self.hidden), (self.hidden, heads * dim)]
        shapes += [(2 * inner, self.hidden), (self.hidden, inner)]
        drawn = torch.Generator(bench.device).manual_seed(0)

        def weight(shape: tuple[int, int]) -> torch.Tensor:
            wide = torch.randn(*shape, generator=drawn, device=bench.device)
            return wide.mul_(0.5 * shape[1] ** -0.5).to(bench.dtype)

        self.weights = [tuple(map(weight, shapes)) for _ in range(layers)]
        self.norm = torch.ones(self.hidden, dtype=bench.dtype, device=bench.device)
        self.workspace = FewRowsWorkspace(shapes, bench.device)

    def run(self, residual: torch.Tensor) -> torch.Tensor:
        """Add all layers to `residual` [rows, hidden], and return it. Attention gives back the queries."""
        norm, workspace = self.norm, self.workspace
        for qkv, o, up, down in self.weights:
            if len(residual) == 1:
                heads = normed_product(residual, norm, _EPS, qkv)
                added_product(heads[:, : o.shape[1]], o, residual, workspace)
                inner = normed_product(residual, norm, _EPS, up, activation="silu")
            else:
                heads = F.linear(rms_norm(residual, norm, _EPS), qkv)
                added_product(heads[:, : o.shape[1]].contiguous(), o, residual, workspace)
                inner = gated(F.linear(rms_norm(residual, norm, _EPS), up), "silu")
            added_product(inner, down, residual, workspace)
        return residual


def measure(bench: Bench) -> None:
    """A row for each number of rows and each way; Failed where ways differ by more than rounding."""
    layers = Layers(bench)
    num_bytes = sum(weight.nbytes for weight in layers.weights[0])
    for rows in ROWS[1:2] if bench.tiny else ROWS:
        start = torch.randn(rows, layers.hidden, generator=torch.Generator().manual_seed(rows)).to(
            bench.device, bench.dtype
        )
        expected: torch.Tensor | None = None
        for soon in (False, True):
            name = f"layers, {rows} rows, {'early' if soon else 'one after the other'}"
            with contextlib.nullcontext() if soon else early.one_after_the_other():
                found = layers.run(start.clone()).double()
                expected = found if expected is None else expected
                off = float((found - expected).norm() / expected.norm())
                if not off < _DIFFERENCE:
                    bench.put(name, {"failed": f"differs by {off:.3g}"})
                    raise Failed(f"{name}: differs by {off:.3g}")
                call = functools.partial(layers.run, start.clone())
                bench.add(name, [call], num_bytes * len(layers.weights))
            bench.put(
                name,
                bench.rows[name] | {"us_a_layer": bench.rows[name]["us"] / len(layers.weights), "off": off},
            )
