"""Steps on their way, on a clock that only moves when somebody sleeps: how soon the end of one is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from executors.contract.batch import UnifiedOutput
from executors.llm.step.pending_steps import PendingSteps

TURN_S = 1e-6
OUTPUT = UnifiedOutput.from_items([])


class Clock:
    """Time passes by sleeping, and by a microsecond for each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0

        async def nap(seconds: float) -> None:
            self.sleep(max(seconds, TURN_S))

        monkeypatch.setattr(asyncio, "sleep", nap)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


class Step:
    """Done after `seconds`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.end = clock, clock.now + seconds

    def ready(self) -> bool:
        return self.clock.now >= self.end

    def result(self) -> UnifiedOutput:
        return OUTPUT


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Milliseconds from the end of each step until it is noticed."""

    def play(*milliseconds: float) -> list[float]:
        clock = Clock(monkeypatch)
        steps = PendingSteps(clock)

        async def each() -> list[float]:
            late = []
            for duration in milliseconds:
                end = clock.now + duration / 1e3
                await steps.run(lambda duration=duration: Step(clock, duration / 1e3), lambda: None)  # type: ignore[misc]
                late.append(1e3 * (clock.now - end))
            return late

        return asyncio.run(each())

    return play


def test_the_end_of_usual_steps_is_noticed_at_once(noticed: Callable[..., list[float]]) -> None:
    for duration in (0.3, 1.0, 5.0, 40.0):
        assert max(noticed(*[duration] * 80)[60:]) < 0.1


def test_a_slow_step_does_not_send_those_after_it_to_sleep(noticed: Callable[..., list[float]]) -> None:
    late = noticed(*[1.0] * 30, 200.0, *[1.0] * 10)
    assert max(late[31:]) < 0.1


def test_steps_that_have_become_short_are_noticed_soon(noticed: Callable[..., list[float]]) -> None:
    late = noticed(*[50.0] * 80, *[5.0] * 12)
    assert max(late[90:]) < 0.1
    assert sum(late[80:]) < 120
