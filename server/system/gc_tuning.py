"""The garbage collector and the heap of the serving process: when objects are searched for cycles, and when freed memory goes
back to the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from functools import cache

_YOUNG = 20_000
"""Objects made before a collection of the youngest generation. A step of 1,024 sequences makes a few thousand, nearly all of
which reference counting frees; with Python's default of 700 the collector would run several times a step."""


def freeze_after_load() -> None:
    """Exempt all objects that exist now from collection, and search new ones for cycles seldom.

    For a process that serves: called once everything is loaded. Measured at 1,024 sequences: a commit takes a third.
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
    """Collect circles of garbage, which Python does by the number of objects and not by their size, and return what was freed
    inside the heap: by itself glibc gives back only what lies at its end, so that one small object
    above the body of a large request keeps all of it resident. Milliseconds, and nothing where there is nothing to give."""
    gc.collect()
    trim = _trim()
    if trim is not None:
        trim(0)


_LONGEST_PAUSE = 5.0
"""Seconds without the garbage collector."""


class CollectorPause:
    """
    Keeps the process's garbage collector off while any block is inside.

    For the event loop's thread alone: on threads that parse, one could read the collector's state between another's two
    steps, and the exception that ends work of too long could come in place of what turns it on again. Off for good
    either way, with nothing that shows it but memory.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside = 0
        self._since = 0.0
        """When the collector went, or came last."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Where the collector was off before, it stays off."""
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
