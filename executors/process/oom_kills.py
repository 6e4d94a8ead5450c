"""Tells whether the kernel's out-of-memory killer has ended a process: by counters, for a SIGKILL names no sender.

    cgroup v2    memory.events.local (or memory.events, before Linux 5.2), field oom_kill
    cgroup v1    memory.oom_control, field oom_kill
    neither      /proc/vmstat, field oom_kill: of the whole machine

The counters of a cgroup count its own processes that were killed, at its own limit, an ancestor's or the machine's
(https://docs.kernel.org/admin-guide/cgroup-v2.html, "memory.events").
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from executors.cgroup import ROOT, cgroup_memory, machine_bytes, memory_groups

_CURE = "give more memory, or less to KV (--kv-cache-memory-bytes)"


class OomKills:
    """The counter of this process's cgroup, which its children share, as it was while a child was known to live."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._counter = _counter_of(root)
        # Two readings: the sign of life that came with the last one may have been sent before a kill that it counts.
        self._readings = deque([self._read()], maxlen=2)

    def alive(self) -> None:
        """The child gave a sign of life: earlier kills were of other processes."""
        self._readings.append(self._read())

    def verdict(self) -> str | None:
        """What killed the child and what to do about it, if the kernel killed a process for memory since it was known to live.
        Call it for a child that SIGKILL ended."""
        now, before = self._read(), self._readings[0]
        if now is None or before is None or now <= before:
            return None
        limit = min((limit for limit, _ in cgroup_memory(self._root)), default=None)
        if limit is not None:
            where = f"the container's limit is {limit >> 20:,} MiB"
        else:
            where = f"the machine has {machine_bytes(self._root) >> 20:,} MiB and no cgroup a limit"
        return f"killed by the kernel's out-of-memory killer (SIGKILL): {where}; {_CURE}"

    def _read(self) -> int | None:
        return None if self._counter is None else _count(self._counter)


def _counter_of(root: Path) -> Path | None:
    """The file with the counter that is nearest to this process."""
    names = {True: ("memory.events.local", "memory.events"), False: ("memory.oom_control",)}
    files = [group / name for v2, group in memory_groups(root) for name in names[v2]]
    return next((file for file in (*files, root / "proc/vmstat") if _count(file) is not None), None)


def _count(file: Path) -> int | None:
    """The field oom_kill; None if the file cannot be read or has no such field."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError):
        return None
    fields = dict(line.partition(" ")[::2] for line in lines)
    value = fields.get("oom_kill", "")
    return int(value) if value.strip().isdigit() else None
