"""Work of unknown length on a few threads, each piece under a deadline.

Python threads cannot be killed, but an exception can be planted in one: it surfaces at the next bytecode, and whatever a
chat template does, it does in bytecode. So a template that loops costs its own request an answer and nothing else.
Single calls that would never come back to bytecode are measured beforehand (`server/templates/sandbox.py`); what many small ones
pile up is seen by looking at the process's memory while the work runs.
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
    """Planted in a thread whose work took too long, and raised to whoever waits for it."""


class MemoryExceeded(DeadlineExceeded):
    """Planted in a thread while whose work the process grew too much."""


MAX_GROWTH = 384 * 2**20
"""Bytes by which the process may grow while work that is watched runs."""
_LOOK_EVERY = 0.02
"""Seconds. Copying fills about 5 GB in one, so this overlooks 100 MB."""
_here = threading.local()


@contextlib.contextmanager
def watched_memory() -> Iterator[None]:
    """What runs inside, on a fenced thread, gets MemoryExceeded planted when the process grows by MAX_GROWTH. The growth
    may be another thread's: it refuses a request that ran for 20 ms and more, which is better than an ended process."""
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
    """Of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class FencedThreads:
    """A small pool; `run` gives work to it from the event loop."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cohort-text")

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """The result of `work`, a pure function. Raises what it raises, or DeadlineExceeded `seconds` after it began."""
        loop = asyncio.get_running_loop()
        fenced = _Fenced(work)
        watch = _Watch(loop, fenced, seconds)
        try:
            # The future has no name here: an error's traceback leads to this frame, and the future holds the error. In such a
            # circle the work and its input, megabytes perhaps, would stay until the garbage collector comes round.
            return await loop.run_in_executor(self._pool, fenced.run)
        except asyncio.CancelledError:
            fenced.stop(DeadlineExceeded)  # nobody waits for it any more: others need its thread
            raise
        finally:
            watch.end()

    def close(self) -> None:
        """Take no more work; what runs ends by its deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Watch:
    """Looks at a piece of work every so often, and stops it where it takes too long or too much; until `end`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fenced: _Fenced[Any], seconds: float) -> None:
        self._loop, self._fenced, self._seconds = loop, fenced, seconds
        self._timer = loop.call_later(min(seconds, _LOOK_EVERY), self._look)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        # Work that waited behind other work began later than this timer.
        left = self._seconds - self._fenced.running_for()
        if left <= 0:
            self._fenced.stop(DeadlineExceeded)
        elif self._fenced.has_grown():
            self._fenced.stop(MemoryExceeded)
        else:
            self._timer = self._loop.call_later(min(left, _LOOK_EVERY), self._look)


class _Fenced(Generic[Result]):
    """One piece of work. The lock orders "it ended" against "plant the exception": none is planted in a thread that has
    gone on to other work."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._begun: float | None = None
        self._stopped = False
        """There is nobody to do it for. Set and looked at under the lock: the work may be about to begin."""
        self.watched = False
        """Whether memory is. Written by the working thread."""
        self._may_reach: int | None = None
        """Resident bytes of the process. Set at the first look, so that short work pays for none."""

    def running_for(self) -> float:
        """Seconds since it began, 0 while it waits."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    def has_grown(self) -> bool:
        """Whether the process has grown more than watched work may make it."""
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
        self._begun = time.monotonic()
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
