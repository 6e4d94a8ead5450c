"""When memory is looked for: the garbage collector, and what was freed back to the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim(3); None on C libraries without it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return trim


def give_back() -> None:
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
    The garbage collector, which is one for the process, stays away while anybody is inside.

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
