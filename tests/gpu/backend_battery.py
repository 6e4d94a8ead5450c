"""One battery of paged attention for every backend: `run_one` says how it fares on a device, or why it was not run.

Prompts, chunks and decode steps of sequences of many lengths in one step, then decode steps alone; sliding windows, bounded
scores, head sizes, shared key heads. What no token was written to is NaN.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from executors.llm.attention.backend import AttentionBackend
from executors.llm.attention.check import LIMITS, Problem
from executors.llm.attention.library import Unsuitable
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.kernel_support import kernel_choice
from executors.llm.model.caches import KvSpec

BLOCK_SIZES = {"torch": 16, "triton": 16, "flash-attn": 16, "flash-attn 2": 256, "varlen": 256}
"""Of each backend. flash-attn takes its third version for small blocks and its second for those of 256."""


@dataclass(frozen=True)
class Case:
    heads: tuple[int, int]
    dim: int
    past: tuple[int, ...]
    counts: tuple[int, ...]
    windows: tuple[int | None, ...] = (None,)
    softcap: float | None = None
    sinks: bool = False

    def spec(self, dtype: torch.dtype, device: torch.device) -> KvSpec:
        return KvSpec(
            len(self.windows),
            *self.heads,
            self.dim,
            dtype,
            device,
            self.dim**-0.5,
            self.softcap,
            self.windows,
            sinks=self.sinks,
        )


CASES = {
    "mixed": Case((4, 2), 64, (40, 0, 5, 130, 0), (1, 21, 1, 9, 1)),
    "prompts": Case((2, 2), 32, (0, 0, 0), (40, 3, 17)),
    "decode": Case((4, 1), 64, (257, 16, 0, 15, 255), (1, 1, 1, 1, 1)),
    "windows": Case((2, 1), 64, (50, 0, 3), (1, 20, 2), windows=(8, 1, 500)),
    "bounded": Case((2, 1), 32, (30, 0), (1, 18), softcap=5.0),
    "heads of 80": Case((2, 1), 80, (20, 0, 0), (1, 7, 18)),
    "heads of 128": Case((7, 1), 128, (33, 0), (1, 5)),
    "heads of 256": Case((2, 1), 256, (20, 3), (1, 6)),
    "heads of 512": Case((2, 1), 512, (20, 3), (1, 6)),
    "sinks": Case((16, 2), 64, (50, 0, 3), (1, 20, 2), windows=(8, 1, 500), sinks=True),
}
LONG = {
    "long": Case((16, 8), 128, (4000, 0, 17, 900, 2047, 1), (1, 700, 1, 333, 1, 16)),
    "long, decode": Case((16, 8), 128, (8191, 1, 600, 3000), (1, 1, 1, 1)),
    "one long": Case((32, 4), 128, (9000,), (1,)),
    "many": Case((16, 8), 128, tuple(range(0, 1024, 8)), (1,) * 128),
}
"""For a real device alone."""
ALL = {**CASES, **LONG}


def make(name: str, spec: KvSpec, block_size: int) -> AttentionBackend:
    """A backend by its name in `BLOCK_SIZES`. Raises Unsuitable."""
    if name == "torch":
        return TorchAttention()
    if name == "triton":  # not tried before: what the start would refuse fails here
        return kernel_choice.own_attention(spec)
    wish = kernel_choice.AttentionWish(spec, kernel_choice.device_of(spec.device), block_size)
    return kernel_choice.MAKERS[name.removesuffix(" 2")](wish)


@torch.inference_mode()
def error_of(name: str, case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0) -> float:
    """The largest relative error of a token's head. Raises Unsuitable where the backend refuses the case."""
    spec, block_size = case.spec(dtype, device), BLOCK_SIZES[name]
    backend = make(name, spec, block_size)
    problem = Problem(spec, block_size, case.past, [count + 1 for count in case.counts], seed)
    return max(problem.step(backend, counts) for counts in (case.counts, [1] * len(case.counts)))


def run_one(name: str, device: torch.device, titles: Collection[str] = ()) -> str:
    """Run a backend on a real device over the cases of these titles of `ALL`, over all if none is named: "pass", "pass; refuses
    some: why", "fail: ..." or "not run: why"."""
    ran, refused = 0, set()
    for dtype in (torch.float16, torch.bfloat16):
        for title in titles or ALL:
            try:
                error = error_of(name, ALL[title], dtype, device)
            except Unsuitable as why:
                refused.add(str(why))
                continue
            except Exception as problem:  # the other backends are still to be run
                return f"fail: {title}: {(str(problem).splitlines() or [type(problem).__name__])[0]}"
            ran += 1
            if not error < LIMITS[dtype]:
                return f"fail: {title}, {dtype}: it differs from the reference by {error:.1%}"
    why_not = "; ".join(sorted(refused))
    if not ran:
        return f"not run: {why_not}"
    return f"pass; refuses some: {why_not}" if refused else "pass"
