"""Work of unknown length on a few threads, each piece under a deadline.

Python threads cannot be killed, but an exception can be planted in one: it surfaces at the next bytecode, and whatever a
chat template does, it does in bytecode. So a template that loops costs its own request an answer and nothing else.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Result = TypeVar("Result")


class DeadlineExceeded(Exception):
    """Planted in a thread whose work took too long, and raised to whoever waits for it."""


class FencedThreads:
    """A small pool; `run` gives work to it from the event loop."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cohort-text")

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """The result of `work`, a pure function. Raises what it raises, or DeadlineExceeded `seconds` after it began."""
        loop = asyncio.get_running_loop()
        fenced = _Fenced(work)
        working = loop.run_in_executor(self._pool, fenced.run)

        def look() -> None:
            # Work that waited behind other work began later than this timer.
            if not working.done() and (left := seconds - fenced.running_for()) > 0:
                loop.call_later(left, look)
            else:
                fenced.stop()

        timer = loop.call_later(seconds, look)
        try:
            return await working
        finally:
            timer.cancel()

    def close(self) -> None:
        """Take no more work; what runs ends by its deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Fenced(Generic[Result]):
    """One piece of work. The lock orders "it ended" against "plant the exception": none is planted in a thread that has
    gone on to other work."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._begun: float | None = None

    def running_for(self) -> float:
        """Seconds since it began, 0 while it waits."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    def run(self) -> Result:
        self._thread = threading.get_ident()
        self._begun = time.monotonic()
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread = None

    def stop(self) -> None:
        with self._lock:
            if self._thread is not None:
                target = ctypes.c_ulong(self._thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(DeadlineExceeded))
