"""`LlmExecutor` that times its own steps and profiles its own device when asked: for `steps`, in the executor's process,
by its registry's dotted name. The asking goes through files, so that the executor is otherwise what it always is."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from executors.contract import ExecutorConfig
from executors.llm.assembly.parts import Assembly
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.runtime import ExecutorRuntime
from executors.llm.step.launched.steps import LaunchedSteps

NAME = f"{__name__}:ProfiledFactory"
FOLDER = "GPU_CHECK_PROFILE"
"""The environment's variable with the folder where `ASK` is looked for and what was found is put."""
ASK, STEPS, TRACE, PROBLEM, DONE = "ask", "steps.json", "trace.json", "problem.txt", "done"
"""`STEPS`: pairs of `Marks`. `PROBLEM`: why one of them, or `TRACE`, is missing. `DONE`: nothing more will come."""
_WINDOW = 0.6
"""Seconds of either: some eighty steps of a full batch, a trace of some ten megabytes."""


class Marks:
    """Events around steps, which need no library that is let near the device: one before a step's copy to the device is queued,
    one behind its copy of results.

    Where the host is late, the device idles between the second event of a step and the first of the next one. Where it is not,
    the latter lies in the queue behind the former, and they follow each other within microseconds. That is all they see: what
    the device idles within a step counts as the step's, and so do its copies, and the moment between the first event and the
    first copy reaching the device. A step that the host takes part in has no events, and looks like idling.

    `step` is for the thread that queues steps, `watched` for another one. `event` makes what `torch.cuda.Event` is with
    `enable_timing`.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._pairs: list[tuple[Any, Any]] | None = None
        """Of those who watch; None while nobody does."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """To be entered around what a step queues. One that fails is none."""
        pairs = self._pairs
        if pairs is None:
            yield
            return
        began, ended = self._event(), self._event()
        began.record()
        yield
        ended.record()
        pairs.append((began, ended))

    def watched(
        self, seconds: float, wait: Callable[[float], object] = time.sleep
    ) -> list[tuple[float, float]]:
        """(begin, end) of each step that is queued meanwhile: seconds since the first one began."""
        pairs: list[tuple[Any, Any]] = []
        self._pairs = pairs
        wait(seconds)
        self._pairs = None
        steps = [*pairs]  # one may still be on its way into the other list
        if not steps:
            return []
        steps[-1][1].synchronize()
        first = steps[0][0]
        return [(first.elapsed_time(began) / 1e3, first.elapsed_time(ended) / 1e3) for began, ended in steps]


class ProfiledFactory(LlmFactory):
    """Makes `ProfiledExecutor`s."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return ProfiledExecutor

    def create_executor(self, config: ExecutorConfig) -> LlmExecutor:
        """See `LlmFactory`. Said before CUDA starts: the profiler's library must not be set up anew over captured graphs."""
        os.environ.update(TEARDOWN_CUPTI="0", DISABLE_CUPTI_LAZY_REINIT="1")
        return super().create_executor(config)


class ProfiledExecutor(LlmExecutor):
    """Its steps are timed and its device is profiled once, when the file appears."""

    name = "llm"
    _marks: Marks
    _over: threading.Event
    """Ends `_measuring`, the thread that waits for the file; None before the start."""
    _measuring: threading.Thread | None = None

    async def warmup(self) -> None:
        """As `LlmExecutor`'s. The profiler is started once before graphs are captured, whose kernels it may not see else."""
        if self._runtime is None:
            self._marks = Marks(self._event)
            if torch.cuda.is_available():
                with _profile():
                    torch.ones(1, device="cuda").add_(1)
                    torch.cuda.synchronize()
        await super().warmup()
        self._over = threading.Event()
        self._measuring = threading.Thread(
            target=_wait_and_measure, args=(self._marks, self._over), name="profile", daemon=True
        )
        self._measuring.start()

    async def shutdown(self) -> None:
        """As `LlmExecutor`'s. The thread ends with it: one that frees a device's events while the interpreter ends aborts the
        process."""
        if self._measuring is not None:
            self._over.set()
            self._measuring.join()
            self._measuring = None
        await super().shutdown()

    def _assemble(self, assembly: Assembly, plan: KvPlan) -> ExecutorRuntime:
        loaded = super()._assemble(assembly, plan)
        if isinstance(loaded.unified.launched, LaunchedSteps):
            loaded.unified.launched.queue.queueing = self._marks.step
        return loaded

    def _event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)


def _profile() -> Any:
    kinds = torch.profiler.ProfilerActivity
    wanted = [kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]
    return torch.profiler.profile(activities=wanted)


def _wait_and_measure(marks: Marks, over: threading.Event) -> None:
    folder = Path(os.environ[FOLDER])
    while not (folder / ASK).exists():
        if over.wait(0.05):
            return

    def time_steps() -> None:
        (folder / STEPS).write_text(json.dumps(marks.watched(_WINDOW, over.wait)), "utf-8")

    def profile() -> None:
        with _profile() as seen:
            over.wait(_WINDOW)
        written = folder / f"{TRACE}.part"
        seen.export_chrome_trace(str(written))
        written.replace(folder / TRACE)

    problems = []
    # Steps first, while nothing slows them down. One that fails takes nothing from the other.
    for measure in (time_steps, profile):
        try:
            measure()
        except Exception:
            problems.append(traceback.format_exc())
    if not folder.exists():
        return  # nobody waits any more
    if problems:
        (folder / PROBLEM).write_text("\n".join(problems), "utf-8")
    (folder / DONE).touch()
