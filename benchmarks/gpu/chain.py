"""What programmatic dependent launch saves: a chain of small kernels in a graph, each of which needs the one before.

A decode step of Qwen3-0.6B is a graph of some 190 nodes, and the device idles between two of them. With the launch attribute a
node's programs start while those before it end; `griddepcontrol.wait` holds them until all that was written is visible. What a
node reads that no node writes, as weights are, may be read before the wait.

    plain             x[i] = x[i + 1] + 1 of the node before
    reading weights   the same, and the sum of 2 MB of a node's own weights: before the wait, or, without the attribute, behind it

A node reads what another program of the node before it wrote: a wait that does not hold gives a wrong sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.gpu.extend import compile_all, processors_of
from benchmarks.gpu.kernels import Bench
from benchmarks.gpu.part import Failed

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton before 3.4: `why_not` says so, and nothing is compiled with the attribute
    gdc_launch_dependents = gdc_wait = None

NODES = 190
"""Of a decode step of Qwen3-0.6B with one row."""
SIZE = 128
"""Numbers of a program."""
WEIGHTS = 8192
"""bf16 numbers that a program reads: 16 KiB, 2 MB for all programs of an H200."""


@triton.jit
def _link_kernel(
    source, target, weights, PROGRAMS: tl.constexpr, SIZE: tl.constexpr, WEIGHTS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program of a node: `target` = `source`, one place on, plus 1, plus the weights' sum."""
    inner = tl.arange(0, SIZE)
    at = tl.program_id(0) * SIZE + inner
    if PDL:
        gdc_launch_dependents()
    added = 1.0
    if WEIGHTS > 0:
        own = tl.load(weights + tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS))
        added += tl.sum(own.to(tl.float32), 0)
    if PDL:
        gdc_wait()
    values = tl.load(source + (at + 1) % (PROGRAMS * SIZE), cache_modifier=".cg")
    tl.store(target + at, values + added)


def why_not(device: torch.device) -> str | None:
    """Why kernels cannot be launched so here, None if they can."""
    if device.type != "cuda":
        return "interpreted kernels are launched one after the other"
    if gdc_wait is None:
        return f"Triton {triton.__version__} has no launch attribute for it"
    major, _ = torch.cuda.get_device_capability(device)
    return None if major >= 9 else f"compute capability {major}: 9 is needed"


class Chain:
    """`nodes` launches between two buffers. `weights` bf16 [nodes, programs * WEIGHTS], or None: none are read."""

    def __init__(self, nodes: int, programs: int, device: torch.device, weights: torch.Tensor | None) -> None:
        self.nodes, self.programs, self._weights = nodes, programs, weights
        self._buffers = torch.zeros(2, programs * SIZE, device=device)

    def run(self, early: bool) -> torch.Tensor:
        """Launch all nodes; float32 [programs * SIZE] of the last one. `early`: with the launch attribute."""
        more: dict[str, Any] = {"launch_pdl": True} if early else {}
        for node in range(self.nodes):
            source, target = self._buffers[node % 2], self._buffers[1 - node % 2]
            _link_kernel[(self.programs,)](
                source, target, self._weights if self._weights is None else self._weights[node],
                PROGRAMS=self.programs, SIZE=SIZE, WEIGHTS=0 if self._weights is None else WEIGHTS, PDL=early,
                num_warps=4, **more,
            )  # fmt: skip
        return self._buffers[self.nodes % 2]

    def error(self, early: bool) -> float:
        """Largest relative error of a run from random numbers."""
        start = torch.randn(self.programs * SIZE, generator=torch.Generator().manual_seed(0)).to(
            self._buffers
        )
        self._buffers[0].copy_(start)
        found = self.run(early).double()
        expected = start.double().roll(-self.nodes)
        for node in range(self.nodes):
            own = (
                0.0 if self._weights is None else self._weights[node].double().view(self.programs, -1).sum(1)
            )
            added = (
                torch.as_tensor(own, device=found.device).expand(self.programs).repeat_interleave(SIZE) + 1.0
            )
            expected += added.roll(-(self.nodes - 1 - node))
        return float(((found - expected).abs() / expected.abs().clamp_min(1.0)).max())


def measure(bench: Bench) -> None:
    """A row for each chain and each way; Failed if a node did not wait."""
    nodes, programs = (5, 3) if bench.tiny else (NODES, processors_of(bench.device))
    lacking = why_not(bench.device)
    drawn = torch.Generator(bench.device).manual_seed(0)
    weights = torch.randn(nodes, programs * WEIGHTS, device=bench.device, generator=drawn)
    weights = weights.mul_(WEIGHTS**-0.5).bfloat16()
    chains = {
        name: Chain(nodes, programs, bench.device, own)
        for name, own in (("tiny", None), ("reading weights", weights))
    }
    if lacking is None:
        calls: list[Callable[[], Any]] = [
            functools.partial(chain.run, early) for chain in chains.values() for early in (False, True)
        ]
        compile_all(calls, bench.device)
    for name, chain in chains.items():
        for early in (False, True):
            title = f"chain of {nodes} {name} nodes, {'PDL' if early else 'one after the other'}"
            if early and lacking is not None:
                bench.put(title, {"not run": lacking})
                continue
            if not (error := chain.error(early)) < 1e-3:
                bench.put(title, {"failed": f"a node did not wait: the sum is wrong by {error:.3g}"})
                raise Failed(f"{title}: the sum is wrong by {error:.3g}")
            num_bytes = 0 if name == "tiny" else weights.nbytes
            bench.add(title, [functools.partial(chain.run, early)], num_bytes)
            bench.put(title, bench.rows[title] | {"us_a_node": bench.rows[title]["us"] / nodes})
