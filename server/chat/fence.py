"""Work of unknown length on a few threads, each piece under a deadline.

Python threads cannot be killed, but an exception can be planted in one: it surfaces at the next bytecode, and whatever a
chat template does, it does in bytecode. So a template that loops costs its own request an answer and nothing else.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
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

        def expire() -> None:
            # Work that still waits behind other work has had no time yet.
            if not working.done() and not fenced.stop():
                loop.call_later(seconds, expire)

        timer = loop.call_later(seconds, expire)
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
        self._begun = False

    def run(self) -> Result:
        self._thread = threading.get_ident()
        self._begun = True
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread = None

    def stop(self) -> bool:
        """False if the work has not begun."""
        with self._lock:
            if self._thread is not None:
                target = ctypes.c_ulong(self._thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(DeadlineExceeded))
        return self._begun
