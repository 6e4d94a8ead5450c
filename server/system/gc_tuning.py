"""The garbage collector and the heap of the serving process: when the collector runs, and when freed memory returns to the
operating system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from functools import cache

_MALLOPT = {
    "MALLOC_ARENA_MAX": (-8, 2),
    "MALLOC_MMAP_THRESHOLD_": (-3, 2**20),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**21),
}
"""mallopt(3)'s names and our values, by the environment variable that sets the same: the number of glibc's heaps, the bytes from
which an allocation is a mapping of its own, and the free bytes that a heap may keep at its end."""

_YOUNG = 20_000
"""Number of new objects before a collection of the youngest generation. A step of 1,024 sequences creates a few thousand, and
reference counting frees nearly all of them; with Python's default of 700 the collector would run several times a step."""


def limit_heaps() -> None:
    """Let the process's threads share two heaps of glibc, each of which keeps 2 MiB at most. A process calls it first, before
    there are threads.

    By default each thread gets a heap of its own, up to eight for each core, and each keeps what its largest request once took:
    tokenizing a megabyte takes 90 MiB. Of the heaps of threads malloc_trim(3) leaves the end alone, and glibc raises what may
    stay there to twice the largest block that was ever freed, up to 64 MiB. Leaves out what the environment sets, and does
    nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for variable, (name, value) in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(name, value)


def freeze_after_load() -> None:
    """Exempt all existing objects from collection, and collect new ones rarely.

    A serving process calls it once everything is loaded. Measured at 1,024 sequences: a commit takes a third of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 50)


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim(3); None on C libraries without it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return trim


def release_when_idle() -> None:
    """Collect cyclic garbage, which Python does by the number of objects and not by their size, and return freed memory inside
    the heap to the operating system: by itself glibc returns only memory at the heap's end, so that one small object above the
    body of a large request keeps all of it resident. Takes milliseconds, or no time if there is no memory to return."""
    gc.collect()
    trim = _trim()
    if trim is not None:
        trim(0)


_LONGEST_PAUSE = 5.0
"""Seconds without the garbage collector."""


class CollectorPause:
    """
    Keeps the process's garbage collector off while any block is inside.

    Use it on the event loop's thread only. Of two parsing threads, one could read the collector's state between the two steps
    of the other, and the exception that stops work past its deadline could prevent the collector from being enabled again.
    Either way the collector would stay disabled, and only growing memory would show it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside = 0
        self._since = 0.0
        """Time when the collector last was disabled or enabled."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Whether the collector was enabled before; if not, it stays disabled."""
        if not self._inside:
            if not gc.isenabled():
                yield
                return
            gc.disable()
            self._since = self._clock()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                gc.enable()
            elif self._clock() - self._since > _LONGEST_PAUSE:  # bodies without a gap between them
                gc.collect()
                self._since = self._clock()


collector_pause = CollectorPause()
