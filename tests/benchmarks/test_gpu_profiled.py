"""What gpu-check's executor sees of its own steps."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import profiled
from executors.llm.step.launched.inputs import StepBuffer
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDeviceExecutor
from tests.gpu.workloads import SMALL


class Clock:
    """Of a device: a second passes with each thing that is recorded; `said` in order."""

    def __init__(self) -> None:
        self.said: list[str] = []


class Timed:
    """A `torch.cuda.Event` with a time."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.at, self.waited = clock, -1, False

    def record(self) -> None:
        self.at = len(self.clock.said)
        self.clock.said.append("event")

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, later: Timed) -> float:
        assert self.at >= 0 and later.at >= 0, "not recorded"
        return 1e3 * (later.at - self.at)


def test_steps_are_marked_while_somebody_watches() -> None:
    clock, made = Clock(), []

    def event() -> Timed:
        made.append(Timed(clock))
        return made[-1]

    marks = profiled.Marks(event)

    def steps(seconds: float) -> None:
        for _ in range(3):
            with marks.step():
                clock.said.append("work")
        with pytest.raises(RuntimeError), marks.step():
            raise RuntimeError("no memory")

    steps(0.0)
    assert not made, "nobody watches"
    assert marks.watched(1.0, steps) == [(0.0, 2.0), (3.0, 5.0), (6.0, 8.0)]
    assert made[5].waited, "the last must have happened"
    count = len(made)
    steps(0.0)
    assert len(made) == count
    assert marks.watched(1.0, lambda seconds: None) == []


class Executor(FakeDeviceExecutor, profiled.ProfiledExecutor):
    """A CPU that takes itself for a GPU, with events that have times."""

    clock = Clock()

    def _event(self) -> Any:
        return Timed(self.clock)


class NoProfile:
    """torch's profiler, whose library sees nothing."""

    def __enter__(self) -> NoProfile:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text('{"traceEvents": []}')


async def test_a_step_is_what_lies_between_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first event behind what the host packs, for the device may idle meanwhile; the second behind the results."""
    clock, seen, done = Executor.clock, threading.Event(), threading.Event()
    copy, fit, watch = torch.Tensor.copy_, StepBuffer.fit, profiled.Marks.watched

    def watched(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking:
            clock.said.append("copy")
        return copy(self, source, non_blocking)

    def fitted(self: StepBuffer, words: int) -> None:
        clock.said.append("packs")
        fit(self, words)

    def wait(seconds: float) -> None:
        seen.set()
        done.wait(10.0)

    monkeypatch.setenv(profiled.FOLDER, str(tmp_path))
    monkeypatch.setattr(profiled, "_profile", NoProfile)
    monkeypatch.setattr(profiled, "_WINDOW", 0.0)
    monkeypatch.setattr(profiled.Marks, "watched", lambda self, seconds, *_: watch(self, seconds, wait))
    executor = Executor.from_config(config(write_checkpoint(tmp_path, SMALL)))
    await executor.warmup()
    await executor.begin_epoch(1)
    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    monkeypatch.setattr(StepBuffer, "fit", fitted)
    driver = Driver(executor)
    sequence = driver.add([1, 2, 3])
    (tmp_path / profiled.ASK).touch()
    assert seen.wait(10.0)
    clock.said.clear()
    await driver.step([(sequence, [1, 2, 3], True, 0)])
    sequence.computed = 3
    await driver.step([(sequence, [-1], True, 0)], pending=np.array([True]))
    assert clock.said == 2 * ["packs", "event", "copy", "copy", "event"]
    done.set()
    [thread] = [one for one in threading.enumerate() if one.name == "profile"]
    thread.join(10.0)
    assert (tmp_path / profiled.DONE).exists() and not (tmp_path / profiled.PROBLEM).exists()
    assert json.loads((tmp_path / profiled.STEPS).read_text()) == [[0.0, 3.0], [5.0, 8.0]]
    assert json.loads((tmp_path / profiled.TRACE).read_text()) == {"traceEvents": []}
    await executor.shutdown()
