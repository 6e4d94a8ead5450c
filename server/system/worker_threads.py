"""Work of unknown length on a few threads, each piece under a deadline.

Python threads cannot be killed, but an exception can be raised in one from outside: it surfaces at the next bytecode, and a
chat template runs as bytecode. So a template that loops fails its own request and no other.
Single calls that would not return to bytecode are limited beforehand (`server/templates/sandbox.py`); the memory that many small
ones accumulate is found by watching the process's memory while the work runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class DeadlineExceeded(Exception):
    """Raised in a worker thread whose work took too long, and to the caller that waits for it."""


class MemoryExceeded(DeadlineExceeded):
    """Raised in a worker thread when the process grows too much during its work."""


MAX_GROWTH = 384 * 2**20
"""Growth of the process that is allowed during watched work, in bytes."""
_LOOK_EVERY = 0.02
"""Interval of the watch in seconds. Copying fills about 5 GB a second, so the watch misses up to 100 MB."""
_here = threading.local()


@contextlib.contextmanager
def watched_memory() -> Iterator[None]:
    """Code inside, on a fenced thread, gets MemoryExceeded raised when the process grows by MAX_GROWTH. Another thread may have
    caused the growth; then a request that ran for 20 ms or more is refused, which is better than an ended process."""
    fenced: _Fenced[Any] | None = getattr(_here, "fenced", None)
    if fenced is None:
        yield
        return
    fenced.watched = True
    try:
        yield
    finally:
        fenced.watched = False


def _resident_bytes() -> int:
    """Resident bytes of this process; 0 if the system does not report them."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class FencedThreads:
    """A small thread pool; `run` submits work to it from the event loop."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cohort-text")

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """The result of `work`, a pure function. Raises what `work` raises, or DeadlineExceeded `seconds` after it began."""
        loop = asyncio.get_running_loop()
        fenced = _Fenced(work)
        watch = _Watch(loop, fenced, seconds)
        try:
            # The future has no name here: an error's traceback leads to this frame, and the future holds the error. In such a
            # circle the work and its input, megabytes perhaps, would stay until the garbage collector comes round.
            return await loop.run_in_executor(self._pool, fenced.run)
        except asyncio.CancelledError:
            fenced.stop(DeadlineExceeded)  # the caller no longer waits: other work needs the thread
            raise
        finally:
            watch.end()

    def close(self) -> None:
        """Accept no more work; running work ends by its deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Watch:
    """Checks a piece of work at intervals until `end`, and stops it if it takes too much time or memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fenced: _Fenced[Any], seconds: float) -> None:
        self._loop, self._fenced, self._seconds = loop, fenced, seconds
        self._timer = loop.call_later(min(seconds, _LOOK_EVERY), self._look)

    def end(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look(self) -> None:
        # Work that waited behind other work began later than this timer.
        seconds = self._seconds - self._fenced.running_for()
        if seconds <= 0:
            self._fenced.stop(DeadlineExceeded)
        elif self._fenced.has_grown():
            self._fenced.stop(MemoryExceeded)
        else:
            self._timer = self._loop.call_later(min(seconds, _LOOK_EVERY), self._look)


class _Fenced(Generic[Result]):
    """One piece of work. The lock orders the end of the work against the exception: none is raised in a thread that already
    does other work."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._start: float | None = None
        self._stopped = False
        """Whether the caller no longer waits. Read and written under the lock: the work may be about to begin."""
        self.watched = False
        """Whether memory is watched. Written by the working thread."""
        self._may_reach: int | None = None
        """Limit on the resident bytes of the process. Set at the first check, so that short work does not pay for it."""

    def running_for(self) -> float:
        """Seconds since the work began, 0 while it waits."""
        return 0.0 if self._start is None else time.monotonic() - self._start

    def has_grown(self) -> bool:
        """Whether the process has grown beyond the limit for watched work."""
        if not self.watched:
            return False
        now = _resident_bytes()
        if self._may_reach is None:
            self._may_reach = now + MAX_GROWTH
        return now > self._may_reach

    def run(self) -> Result:
        with self._lock:
            if self._stopped:
                raise DeadlineExceeded
            self._thread = threading.get_ident()
        _here.fenced = self
        self._start = time.monotonic()
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread = None
            _here.fenced = None

    def stop(self, reason: type[DeadlineExceeded]) -> None:
        with self._lock:
            self._stopped = True
            if self._thread is not None:
                target = ctypes.c_ulong(self._thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(reason))
