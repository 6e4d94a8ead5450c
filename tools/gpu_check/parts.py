"""The parts of `make gpu-check`: which call runs them, in which order, for how long, and why that long.

A command is what follows `python`; the options of the call (`--device`, `--tiny` ...) are added. It writes figures, a JSON object
a line, to the file that the variable GPU_FIGURES names, and ends with 0, with 77 if what it needs is absent, or otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

TESTS = ("tests/gpu", "tests/executors", "tests/engine/harness.py", "tests/conftest.py")


@dataclass(frozen=True, slots=True)
class GpuPart:
    """`limit`: seconds after which it is killed and has failed, enough where no kernel is compiled yet. `expected`: seconds that
    it takes on an H200, and `why` so many; it is not begun with less. `beside`: files and folders with code that it runs and does
    not import the usual way."""

    name: str
    command: tuple[str, ...]
    limit: float
    expected: float
    what: str
    why: str = ""
    beside: tuple[str, ...] = ()


def _part(
    name: str, target: str, limit: float, expected: float, what: str, why: str, *beside: str
) -> GpuPart:
    return GpuPart(name, ("-m", "benchmarks.gpu", target), limit, expected, what, why, beside)


DEVICE = _part(
    "device", "benchmarks.gpu.device:run", 120.0, 4.0, "versions, copy bandwidth, matrix products", "4.1 s on an H200",
)  # fmt: skip
"""Runs first in each call: its figures say what machine this is."""
AGAIN = "again"
"""The place in a call at which parts that failed are run once more."""
CALL_1 = (
    _part(
        "agreement-bf16", "tests.gpu.agreement_bf16:run", 110.0, 72.0, "logprobs of bf16 graphs against eager torch's",
        "72 s on a bare machine, 15 where torch and kernels are in memory; first, for no other figure counts where this fails",
    ),
    _part(
        "churn", "tests.gpu.churn:run", 120.0, 41.0, "a crowd's texts against the same texts alone",
        "41 s on an H200 beside other parts",
    ),
    _part(
        "served-0.6b", "benchmarks.gpu.served:run", 150.0, 62.0, "replays, prompts, offline, HTTP load; 0.6B",
        "59 s on an H200: start 10, offline 3 x 5.5, HTTP 15",
    ),
    _part(
        "served-0.6b-e4m3kv", "benchmarks.gpu.served:e4m3", 70.0, 27.0, "256 sequences with KV in e4m3, 0.6B",
        "start 12, kernels of another dtype 4, offline 2 x 4, ends 3",
    ),
    _part(
        "served-8b", "benchmarks.gpu.served_8b:run", 200.0, 110.0, "start by stage, steps, streams, two kills; 8B",
        "153 s on an H200: the start 72 beside ten other processes, two kills 27, whose lives checked everything",
    ),
    _part(
        "sticky", "tests.gpu.sticky:run", 150.0, 44.0, "streams go on after the device was lost",
        "44 s on an H200 beside other parts",
    ),
    _part(
        "served-8b-e4m3", "benchmarks.gpu.served_8b:run_e4m3", 110.0, 45.0, "8B with weights and KV in e4m3",
        "start 17 with weights made e4m3, single 3 x 1.3, 8,192 1, offline 2 x 9, ends 5",
    ),
    _part(
        "kernels", "benchmarks.gpu.levers:run", 80.0, 48.0, "what decides the next lever: shared keys, PDL, narrow weights, KV",
        "45 s on an H200, compilation included; the layers' chains since",
    ),
    _part(
        "adapters", "benchmarks.gpu.adapters:run", 150.0, 45.0, "what eight LoRA adapters cost, idle and in use",
        "start 12, with adapters more graphs 5; twelve rounds of 1 to 1.5, captures between them",
    ),
)  # fmt: skip
"""By what is least known, behind the one that all others stand on. Of `tests` 1,329 of 1,364 passed on an H200, the others are
mended since: it takes as long as three parts, and runs alone."""
CALL_2 = (
    _part(
        "sanitizer", "tests.gpu.sanitizer:watch", 52.0, 32.0, "twelve launches under compute-sanitizer",
        "22 s on an H200 beside other parts", *TESTS,
    ),
    _part(
        "ncu", "benchmarks.gpu.ncu:count", 45.0, 22.0, "bytes and stalls of three kernels by Nsight Compute",
        "imports and compilation 10, one launch each, replayed for its basic set; never run",
    ),
    GpuPart(AGAIN, (), 35.0, 22.0, "what failed before, once more", "the time that is left, but for 5"),
    _part(
        "turnaround", "benchmarks.gpu.host:run", 30.0, 15.0, "from a result to the second-next launch, on the host",
        "two workloads of 5 s on two cores, and imports",
    ),
)  # fmt: skip
"""Begun at once behind the first call, within 30 seconds."""
ALONE = (
    _part(
        "tests", "tests.gpu.session:run", 200.0, 145.0, "tests/gpu on the device",
        "145 s for 1,364 tests in 14 processes", *TESTS,
    ),
    _part("kernels-all", "benchmarks.gpu.kernels:run", 160.0, 31.0, "each kernel against the limits", "30.9 s on an H200"),
    _part(
        "adapters-agreement", "benchmarks.gpu.adapters:agree", 160.0, 50.0, "eight LoRA adapters against merged models",
        "a start with adapters, and ten eager ones of a small model",
    ),
    _part(
        "started", "benchmarks.gpu.started:run", 120.0, 42.0, "`cohort serve`, and kills without and with a standby child",
        "a start of 14, two kills of 5, and 9 until a child stands by",
    ),
    _part(
        "early", "benchmarks.gpu.early_launches:run", 120.0, 45.0, "a step with early launches and without, by kernel",
        "two starts of 10, replays and a profile of 5 each",
    ),
    _part(
        "long-steps", "benchmarks.gpu.long_steps:run", 90.0, 30.0, "steps of prompts without a graph: by kernel, gap and host",
        "a start of 10, five kinds of steps of 2 to 3 each",
    ),
    _part("agreement", "tests.gpu.agreement:run", 160.0, 38.0, "tokens against the plain way's", "38.1 s on an H200"),
    _part("offline-0.6b", "benchmarks.gpu.engine:offline_small", 200.0, 35.0, "256 sequences, Qwen3-0.6B", "34.9 s on an H200"),
    _part("single-0.6b", "benchmarks.gpu.engine:single_small", 100.0, 22.0, "one sequence, Qwen3-0.6B", "21.7 s on an H200"),
    _part("cohort", "benchmarks.gpu.engine:cohort", 160.0, 54.0, "32 prompts together, Qwen3-0.6B", "54 s on an H200"),
    _part(
        "steps", "benchmarks.gpu.steps:run", 200.0, 41.0, "a step's time, by kernel, at batch 256 and 1", "40.7 s on an H200"
    ),
    _part(
        "drafts", "tests.gpu.draft_agreement:run", 150.0, 60.0, "tokens with drafts (n-grams, a draft model) against without",
        "three starts like agreement's",
    ),
    _part("offline-8b", "benchmarks.gpu.engine:offline_large", 260.0, 80.0, "256 sequences, Qwen3-8B", "4 rounds of 13"),
    _part("single-8b", "benchmarks.gpu.engine:single_large", 100.0, 30.0, "one sequence, Qwen3-8B", "29.8 s on an H200"),
    _part(
        "peer", "benchmarks.gpu.peer:run", 480.0, 300.0, "transformers' continuous batching, Qwen3-0.6B", "never run to its end"
    ),
)  # fmt: skip
"""In no call: `--only` runs them. The parts that start one engine for many measurements took most of their place."""
PARTS = (*CALL_1, *CALL_2, *ALONE)
CALLS = {1: CALL_1, 2: CALL_2}
BUDGETS = {1: 540.0, 2: 105.0}
"""Seconds of a call. A command on a lent machine may take ten minutes; both calls, start, transfers and ends come to less than
twelve of its fifteen."""
MARGIN = 5.0
"""Seconds of a budget that are kept for ending what is over its time, and for the runner itself."""
DROPPED = (
    "adapters", "sticky", "served-8b-e4m3", "kernels", "served-0.6b-e4m3kv", "turnaround", AGAIN, "ncu", "sanitizer",
)  # fmt: skip
"""What a call that is late leaves out, the first one first, until the rest fits the time that is left. What is not named is run
while there is time."""


def plan(call: int) -> str:
    """The table of a call: seconds that each part is expected to take, its limit, what is left then, and the reason."""
    left = BUDGETS[call] - MARGIN
    lines = [
        f"call {call}: {BUDGETS[call]:.0f} s, {MARGIN:.0f} of them for the end",
        f"{'part':20}expected  limit   left",
    ]
    for part in (DEVICE, *CALLS[call]):
        left -= part.expected
        lines.append(f"{part.name:20}{part.expected:8.0f}{part.limit:7.0f}{left:7.0f}  {part.why}")
    late = [name for name in DROPPED if name in {part.name for part in CALLS[call]}]
    return "\n".join((*lines, f"late: drops {', '.join(late)}"))


def fitting(pending: tuple[GpuPart, ...], left: float) -> tuple[GpuPart, ...]:
    """What of the parts that are left is run in `left` seconds: all, or without those of `DROPPED` until the rest fits."""
    for name in DROPPED:
        if sum(part.expected for part in pending) <= left:
            break
        pending = tuple(part for part in pending if part.name != name)
    return pending
