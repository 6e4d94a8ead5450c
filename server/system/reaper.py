"""Reaping as PID 1: in a container without an init, orphans become this process's children, and stay zombies unless waited for.
The same holds if the process's parent made it a "child subreaper".

The code that started a child waits for it. To leave such children alone without knowing them, only a zombie that has existed
for a while is reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

INTERVAL = 2.0
"""Interval between scans in seconds; a zombie is reaped at the second scan that finds it."""


_PR_GET_CHILD_SUBREAPER = 37


def inherits_orphans() -> bool:
    """Whether processes whose parent ends become children of this process."""
    flag = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return os.getpid() == 1 or bool(flag.value)


class Reaper:
    """Remembers the zombies of the last scan. One writer: the task that runs it."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._zombies: set[int] = set()

    async def run(self) -> None:
        """Look forever."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.look()

    def look(self) -> list[int]:
        """Reap the processes that were zombies at the last scan and still are; returns their process ids."""
        zombies = set(_zombies_of(self._parent))
        reaped = []
        for pid in zombies & self._zombies:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
                reaped.append(pid)
        self._zombies = zombies - set(reaped)
        return reaped


def _zombies_of(parent: int) -> list[int]:
    zombies = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # gone in the meantime
            continue
        # "pid (name) state ppid ...": the name may hold spaces and parentheses.
        state, ppid = stat.rpartition(")")[2].split()[:2]
        if state == "Z" and int(ppid) == parent:
            zombies.append(int(entry.name))
    return zombies
