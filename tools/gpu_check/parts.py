"""The parts of `make gpu-check`, in order of importance: a row is a name, a command and how long it may take.

A command is what follows `python`; the options of the call (`--device`, `--tiny` ...) are added. It writes figures, a JSON object
a line, to the file that the variable GPU_FIGURES names, and ends with 0, with 77 if what it needs is absent, or otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = ("engine", "executors", "benchmarks/gpu", "benchmarks/shapes.py")
TESTS = ("tests/gpu", "tests/executors", "tests/engine/harness.py", "tests/conftest.py")


@dataclass(frozen=True, slots=True)
class GpuPart:
    """`limit`: seconds after which it is killed and has failed, enough where no kernel is compiled yet. `least`: seconds with
    which there is hope that it ends; it is not begun with less. `sources`: files and folders whose code it runs."""

    name: str
    command: tuple[str, ...]
    limit: float
    least: float
    what: str
    sources: tuple[str, ...] = SOURCES


def _part(name: str, target: str, limit: float, least: float, what: str, *sources: str) -> GpuPart:
    command = ("-m", "benchmarks.gpu", target)
    return GpuPart(name, command, limit, least, what, (*SOURCES, *sources))


DEVICE = _part("device", "benchmarks.gpu.device:run", 180.0, 5.0, "versions, copy bandwidth, matrix products")
"""Runs first in each call: its figures say what machine this is."""
PARTS = (
    _part("tests", "tests.gpu.session:run", 340.0, 200.0, "tests/gpu on the device", *TESTS),
    _part(
        "agreement", "tests.gpu.agreement:run", 160.0, 50.0, "the engine's tokens against the plain way's",
        "tests/gpu/agreement.py",
    ),
    _part(
        "agreement-bf16", "tests.gpu.agreement_bf16:run", 160.0, 50.0, "logprobs of bf16 graphs against eager torch's",
        "tests/gpu/agreement_bf16.py",
    ),
    _part("kernels", "benchmarks.gpu.kernels:run", 160.0, 40.0, "each kernel against the measured limits"),
    _part("offline-0.6b", "benchmarks.gpu.engine:offline_small", 200.0, 60.0, "256 sequences, Qwen3-0.6B"),
    _part("single-0.6b", "benchmarks.gpu.engine:single_small", 100.0, 30.0, "one sequence, Qwen3-0.6B"),
    _part("cohort", "benchmarks.gpu.engine:cohort", 160.0, 45.0, "32 prompts together, Qwen3-0.6B"),
    _part("steps", "benchmarks.gpu.steps:run", 200.0, 55.0, "a step's time, by kernel, at batch 256 and 1"),
    _part("adapters", "benchmarks.gpu.adapters:run", 260.0, 80.0, "eight LoRA adapters against merged models; their cost"),
    _part(
        "drafts", "tests.gpu.draft_agreement:run", 100.0, 40.0, "tokens with drafts from n-grams against without",
        "tests/gpu/draft_agreement.py", "tests/gpu/agreement.py",
    ),
    _part("offline-8b", "benchmarks.gpu.engine:offline_large", 260.0, 90.0, "256 sequences, Qwen3-8B"),
    _part("single-8b", "benchmarks.gpu.engine:single_large", 100.0, 30.0, "one sequence, Qwen3-8B"),
    _part("peer", "benchmarks.gpu.peer:run", 480.0, 300.0, "transformers' continuous batching, Qwen3-0.6B"),
)  # fmt: skip
FIRST = ("agreement", "agreement-bf16", "kernels", "single-0.6b", "offline-0.6b")
"""Parts, in their order, for a machine on which there is time for one call."""
