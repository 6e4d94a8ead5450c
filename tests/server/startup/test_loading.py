"""Progress as lines: none is missing for two seconds, few are written, and each says how far it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.startup import loading
from server.state.progress import Progress, after


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    class Log:
        def info(self, event: str, **_: Any) -> None:
            found.append(event)

    monkeypatch.setattr(loading, "log", Log())
    return found


def test_a_stage_that_reports_often_gets_few_lines(lines: list[str], clock: Clock) -> None:
    display = loading.LoadingLog(beats=False, clock=clock)
    for done in range(1000):
        display.report("weights", done * 10**7, 10**10)
        clock.now += 0.01
    assert len(lines) == 7
    assert lines[0] == "loading weights 0% of 10.0 GB"
    assert lines[1] == "loading weights 16% of 10.0 GB, 2 s so far"
    display.report("warmup", 0, 2)
    assert lines[-1] == "warming up 0%", "a new stage is told at once"


def test_a_stage_that_reports_nothing_is_told_again(lines: list[str], clock: Clock) -> None:
    display = loading.LoadingLog(beats=False, clock=clock)
    display.beat()
    assert not lines, "nothing has begun"
    display.report("compiling the kernels", 0, 0)
    for _ in range(100):
        clock.now += 0.1
        display.beat()
    assert lines[0] == "compiling the kernels"
    assert lines[1:3] == ["compiling the kernels, 2 s so far", "compiling the kernels, 3 s so far"]
    assert len(lines) - 1 in (5, 6)
    display.finish()
    clock.now += 10
    display.beat()
    assert len(lines) <= 7, "nothing is open"


def test_the_timer_ends_with_the_display(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "INTERVAL", 0.0)
    monkeypatch.setattr(loading, "_TICK", 0.001)
    display = loading.LoadingLog()
    display.report("importing", 0, 0)
    timer = display._timer
    assert timer is not None
    while len(lines) < 3:
        timer.join(0.001)
    display.close()
    timer.join(5)
    assert not timer.is_alive()
    assert set(lines) == {"importing the executor"}


async def test_what_is_waited_for_is_told_until_it_comes(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "INTERVAL", 0.001)
    async with loading.waiting_line(lambda: "draining: 3 running"):
        while len(lines) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    count = len(lines)
    await asyncio.sleep(0.01)
    assert len(lines) == count
    assert set(lines) == {"draining: 3 running, 0 s so far"}


@pytest.mark.parametrize(
    ("progress", "phase", "text"),
    [
        (Progress("starting", 0, 0, 5.0), "starting", "starting the executor's process, 7 s so far"),
        (Progress("importing", 0, 0, 5.0), "importing", "importing the executor, 7 s so far"),
        (Progress("weights", 50_000_000, 100_000_000, 11.5), "weights", "loading weights 50% of 100 MB"),
        (Progress("dummy weights", 1, 4, 12.0), "dummy weights", "loading dummy weights 25%"),
        (Progress("downloading a/b", 0, 0, 10.0), "downloading", "downloading a/b, 2 s so far"),
        (Progress("draft model: weights", 1, 2, 12.0), "draft", "draft model: weights 50%"),
    ],
)
def test_texts(progress: Progress, phase: str, text: str) -> None:
    assert (progress.phase, progress.text(12.0)) == (phase, text)


def test_a_stage_that_goes_on_keeps_its_beginning() -> None:
    first = after(None, "weights", 0, 10, now=3.0)
    second = after(first, "weights", 5, 10, now=9.0)
    third = after(second, "warmup", 0, 1, now=9.5)
    assert (first.since, second.since, third.since) == (3.0, 3.0, 9.5)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(loading.loading_display(Terminal()), loading.LoadingLog)  # type: ignore[arg-type]
    monkeypatch.setenv("TERM", "xterm")
    display = loading.loading_display(Terminal())  # type: ignore[arg-type]
    assert isinstance(display, loading.LoadingBar)
    display.close()
    assert isinstance(loading.loading_display(Terminal(), "json"), loading.LoadingLog)  # type: ignore[arg-type]
