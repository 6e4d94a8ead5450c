"""Progress of what takes long: a bar on a terminal, log lines anywhere else. Neither is silent for two seconds.

report   a stage, and how much of it is done     the bar moves; a log line where the stage is new or `INTERVAL` has passed
(timer)  nothing is reported                     the bar shows the seconds; a log line each `INTERVAL` with the seconds
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import IO, Any, TypeVar

import structlog

from executors.contract import ProgressCallback
from server.state.progress import Progress, after
from server.state.server_state import ServerState
from server.system import log_output

log = structlog.get_logger("server")
T = TypeVar("T")

INTERVAL = 1.6
"""Seconds between log lines of one stage. What is promised is two: the rest is for a machine that is busy loading."""
_TICK = 0.2
_OVERWRITE = "\r\x1b[2K"
"""Return to the beginning of the terminal's line and clear it: the bar stands there."""


class LoadingLog:
    """Progress as log lines. Any thread may call it. `beats`: whether a timer writes lines while nothing is reported; without it
    `beat` does so when it is called."""

    def __init__(self, *, beats: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Progress | None = None
        self._last = 0.0
        self._closed = threading.Event()
        self._beats = beats
        self._timer: threading.Thread | None = None

    def report(self, stage: str, done: int, total: int) -> None:
        """A ProgressCallback."""
        now = self._clock()
        with self._lock:
            before, self._current = self._current, after(self._current, stage, done, total, now)
            if before is None or before.stage != stage or now - self._last >= INTERVAL:
                self._write(now)
            if self._beats and self._timer is None and not self._closed.is_set():
                self._timer = threading.Thread(target=self._tick, name="loading log", daemon=True)
                self._timer.start()

    def beat(self) -> None:
        """Write a line if a stage has been open for `INTERVAL` seconds without one."""
        now = self._clock()
        with self._lock:
            if self._current is not None and now - self._last >= INTERVAL:
                self._write(now)

    def finish(self) -> None:
        """Forget the stage: there is nothing to wait for until the next report."""
        with self._lock:
            self._current = None

    def close(self) -> None:
        """Write no more lines by the timer."""
        self._closed.set()
        self.finish()

    def _write(self, now: float) -> None:
        assert self._current is not None
        self._last = now
        log.info(self._current.text(now))

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            self.beat()


class LoadingBar:
    """Progress as a bar on a terminal. Any thread may call it. Log lines of this process are written above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=Console(stderr=True, markup=False), transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._lock = threading.Lock()
        if (output := log_output.of_process()) is not None:
            output.before_lines = _OVERWRITE
        self._bar.start()

    def report(self, stage: str, done: int, total: int) -> None:
        """A ProgressCallback."""
        with self._lock:
            text = Progress(stage, done, total).label
            self._bar.update(self._task, description=text, completed=done, total=total or None)
            # A stage of unknown length has no share of the one before it, and the end of a stage is not the start's.
            task = self._bar.tasks[0]
            task.total, task.finished_time = total or None, None

    def close(self) -> None:
        """Remove the bar from the screen."""
        with self._lock:
            self._bar.stop()
        if (output := log_output.of_process()) is not None:
            output.before_lines = ""


def loading_display(stream: IO[Any] | None = None, log_format: str = "pretty") -> LoadingLog | LoadingBar:
    """A bar on a terminal; log lines anywhere else, where the log is JSON, and on a terminal that cannot move its cursor."""
    bar = log_format != "json" and (stream or sys.stderr).isatty()
    return LoadingBar() if bar and os.environ.get("TERM", "dumb") not in ("dumb", "unknown") else LoadingLog()


def reporter(display: LoadingLog | LoadingBar | None, state: ServerState) -> ProgressCallback:
    """A callback that reports progress to the terminal or the log, and to /ready, from any thread."""

    def report(stage: str, done: int, total: int) -> None:
        state.progress = after(state.progress, stage, done, total)
        if display is not None:
            display.report(stage, done, total)

    return report


@contextlib.contextmanager
def reporting(state: ServerState, log_format: str) -> Iterator[ProgressCallback]:
    """Such a callback of a display that is shown inside. With the format "json" it is the log."""
    display = loading_display(log_format=log_format)
    try:
        yield reporter(display, state)
    finally:
        display.close()


@contextlib.asynccontextmanager
async def waiting_line(text: Callable[[], str]) -> AsyncIterator[None]:
    """Log what is waited for inside, each `INTERVAL` seconds: `text()` and the seconds so far. Nothing before the first."""

    async def tell() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL)
            log.info(f"{text()}, {time.monotonic() - began:.0f} s so far")

    telling = asyncio.create_task(tell(), name="waiting line")
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """The result of `work`; None if `stop` is set before."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
