"""Imports of modules that a process keeps until it ends."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """Keep the garbage collector off inside, then exempt all existing objects from collection.

    What modules create stays, and the collector looks at all of it again and again: a tenth of the CPU time of a server's start.
    The cyclic garbage that importing leaves, a few thousand objects, is exempted as well. A collector that is off before stays
    off.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
