"""Seconds of an executor's start by stage, from the reports that its process sends, and of a recovery from the kill on.

kill ... noticed ... starting importing loading ... measuring the pace ... ready ... first token ... all streams
     death           stages that the executor reports                     tokens      others
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.gpu.part import Failed

NEEDED = (
    "starting", "importing", "loading", "opening the device", "dummy weights", "preparing the layers", "KV cache",
    "checking kernels",
)  # fmt: skip
"""Stages of each start of a child process with random weights."""
NEEDED_AT_FIRST = ("warmup", "measuring the pace")
"""Stages of the first start alone; on a device each start has the first of them."""
NEEDED_ON_DEVICE = ("trying the largest steps", "kernels", "graphs")
_GRAPH, GRAPHS = "CUDA graph for ", "graphs"
NOTICED, FIRST, REST = "death noticed", "first token", "all streams"
"""Parts of a recovery before and behind the start."""


class StageLog:
    """When each stage began, by the clock given. `report` is a `ProgressCallback`; a stage that goes on is one entry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.entries: list[tuple[float, str]] = []
        self._clock = clock

    def report(self, stage: str, done: int, total: int) -> None:
        """Take in one report."""
        name = GRAPHS if stage.startswith(_GRAPH) else stage
        if not self.entries or self.entries[-1][1] != name:
            self.entries.append((self._clock(), name))

    def between(self, began: float, ended: float) -> list[tuple[float, str]]:
        """The entries of that time."""
        return [entry for entry in self.entries if began <= entry[0] <= ended]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Moments of one recovery, all of one clock, in seconds: the kill, the death as the engine noticed it, the next life ready,
    the first token of any stream after that, and the last stream's first one."""

    killed: float
    noticed: float
    ready: float
    first_token: float
    all_streams: float


def start_seconds(
    entries: Sequence[tuple[float, str]], began: float, ended: float, before: str = "before the process"
) -> dict[str, float]:
    """Seconds of each stage between two moments; they add up to the whole. `before`: what precedes the first report. A stage
    lasts until the next one begins, and one that comes back is added up."""
    found: dict[str, float] = {}
    marks = [(began, before), *entries]
    for (at, stage), (until, _) in zip(marks, [*marks[1:], (ended, "")], strict=True):
        found[stage] = found.get(stage, 0.0) + until - at
    return found


def recovery_seconds(entries: Sequence[tuple[float, str]], one: Recovery) -> dict[str, float]:
    """Seconds of a recovery by stage, from the kill to the first token of the last stream; they add up to the whole. Raises
    Failed for moments that are out of order: nothing could be said of them."""
    moments = (
        one.killed,
        one.noticed,
        *(at for at, _ in entries),
        one.ready,
        one.first_token,
        one.all_streams,
    )
    if any(later < earlier for earlier, later in pairwise(moments)):
        raise Failed(
            f"the moments of a recovery are out of order: {[round(at - one.killed, 4) for at in moments]}"
        )
    return {
        NOTICED: one.noticed - one.killed,
        **start_seconds(entries, one.noticed, one.ready),
        FIRST: one.first_token - one.ready,
        REST: one.all_streams - one.first_token,
    }


def check_stages(seconds: Iterable[str], on_device: bool, *, first: bool = True) -> None:
    """Raises Failed if a stage is missing: its seconds would count to another one. `first`: of an executor's first start."""
    needed = NEEDED + (NEEDED_AT_FIRST if first else NEEDED_AT_FIRST[:1] if on_device else ())
    needed += NEEDED_ON_DEVICE if on_device else ()
    if missing := [stage for stage in needed if stage not in set(seconds)]:
        raise Failed(f"the executor's start did not report {', '.join(missing)}")
