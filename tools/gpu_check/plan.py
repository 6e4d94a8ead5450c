"""What is checked, in order of importance, and how long each part may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 540.0
"""Seconds of one call: a command on a lent machine may take ten minutes, and its transfers are counted."""


FIRST = ("agreement", "agreement-bf16", "kernels", "single-0.6b", "offline-0.6b")
"""Parts, in their order, for a machine on which there is time for one call."""


class NotRun(Exception):
    """Raised by a part that cannot be done here: what it needs is absent. Its text says what."""


class Failed(Exception):
    """Raised by a part that ran and found something wrong. Its text says what, in one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a part is told. `tiny`: the smallest shapes there are, which tells whether it works and nothing of speed."""

    device: str = "cuda"
    tiny: bool = False
    executor: str = "llm"
    mode: str = "process"
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None

    def arguments(self) -> list[str]:
        """As `part_process` reads them."""
        given = ["--device", self.device, "--executor", self.executor, "--mode", self.mode]
        given += ["--tiny"] if self.tiny else []
        given += ["--block-size", str(self.block_size)] if self.block_size else []
        if self.kv_cache_memory_bytes:
            given += ["--kv-cache-memory-bytes", str(self.kv_cache_memory_bytes)]
        return given


@dataclass(frozen=True, slots=True)
class Part:
    """`target` module:function is called with `Options` and a function that takes figures as they are found."""

    name: str
    target: str
    limit: float
    """Seconds after which it is killed and has failed: enough for a machine whose caches of compiled kernels are empty."""
    least: float
    """Seconds with which there is little hope that it ends: it is not begun with less, since what is cut off is lost."""
    what: str


DEVICE = Part("device", "benchmarks.gpu.device:run", 180.0, 5.0, "versions, copy bandwidth, matrix products")
PARTS = (
    DEVICE,
    Part("tests", "tests.gpu.session:run", 340.0, 200.0, "tests/gpu on the device"),
    Part(
        "agreement",
        "tests.gpu.agreement:run",
        160.0,
        50.0,
        "the engine's tokens against the plain way's",
    ),
    Part(
        "agreement-bf16",
        "tests.gpu.agreement_bf16:run",
        160.0,
        50.0,
        "logprobs of bf16 graphs against eager torch's",
    ),
    Part("kernels", "benchmarks.gpu.kernels:run", 160.0, 40.0, "each kernel against the measured limits"),
    Part("offline-0.6b", "benchmarks.gpu.engine:offline_small", 200.0, 60.0, "256 sequences, Qwen3-0.6B"),
    Part("single-0.6b", "benchmarks.gpu.engine:single_small", 100.0, 30.0, "one sequence, Qwen3-0.6B"),
    Part("cohort", "benchmarks.gpu.engine:cohort", 160.0, 45.0, "32 prompts together, Qwen3-0.6B"),
    Part("steps", "benchmarks.gpu.steps:run", 200.0, 55.0, "a step's time, by kernel, at batch 256 and 1"),
    Part(
        "adapters",
        "benchmarks.gpu.adapters:run",
        260.0,
        80.0,
        "eight LoRA adapters against merged models; their cost",
    ),
    Part(
        "drafts",
        "tests.gpu.draft_agreement:run",
        100.0,
        40.0,
        "tokens with drafts from n-grams against without",
    ),
    Part("offline-8b", "benchmarks.gpu.engine:offline_large", 260.0, 90.0, "256 sequences, Qwen3-8B"),
    Part("single-8b", "benchmarks.gpu.engine:single_large", 100.0, 30.0, "one sequence, Qwen3-8B"),
    Part("peer", "benchmarks.gpu.peer:run", 480.0, 300.0, "transformers' continuous batching, Qwen3-0.6B"),
)
