"""Facts of processes from /proc: whether one is the one that it was, what it is called, and the memory of its family."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
TITLE = "cohort: server"
"""What a server's process is called, see `server.startup.bootstrap.run_server`."""
_PARENT, _START = 1, 19
"""Fields of /proc/PID/stat behind the name, which may have spaces and brackets in it; see proc(5)."""


def boot_id() -> str:
    """Return the id of this start of the machine, empty if the kernel does not tell it."""
    return _read(PROC / "sys" / "kernel" / "random" / "boot_id").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine did; None if there is none, or only its remains."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[_START])


def seconds_running(pid: int) -> float | None:
    """Return for how long a process has run."""
    ticks, uptime = start_ticks(pid), _read(PROC / "uptime").split()
    if ticks is None or not uptime:
        return None
    return max(0.0, float(uptime[0]) - ticks / os.sysconf("SC_CLK_TCK"))


def servers() -> list[int]:
    """Return the processes that are called as servers are."""
    pids = [int(path.name) for path in PROC.glob("[0-9]*") if _title(path) == TITLE]
    return sorted(pid for pid in pids if start_ticks(pid) is not None)


def owner(pid: int) -> int | None:
    """Return the user id of a process."""
    try:
        return (PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in PROC.glob("[0-9]*"):
        if fields := _stat(int(path.name)):
            children[int(fields[_PARENT])].append(int(path.name))
    pids = [pid]
    for one in pids:
        pids.extend(children[one])
    return pids


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the main memory of processes; what several of them share is counted once, where the kernel tells shares (Pss)."""
    return sum(_kib(pid) << 10 for pid in pids)


def _kib(pid: int) -> int:
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        for line in _read(PROC / str(pid) / name).splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


def _stat(pid: int) -> list[str]:
    return _read(PROC / str(pid) / "stat").rpartition(")")[2].split()


def _title(path: Path) -> str:
    return _read(path / "cmdline").rstrip("\0").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
