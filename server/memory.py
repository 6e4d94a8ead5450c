"""Freed memory back to the operating system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
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
