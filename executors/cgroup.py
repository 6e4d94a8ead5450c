"""How much memory and how many threads the system allows: cgroup v1 and v2 limits, affinity. Standard library only.

The host's totals do not apply inside a container; every limit between the process and the root of its hierarchy does.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a huge number, rounded to pages."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory in bytes: `total` that this process may ever use, and `available`, which is still free."""

    total: int
    available: int


_own_bytes = 0
"""Memory that counts as available although it is used. One writer: `count_as_available`."""


def count_as_available(num_bytes: int) -> None:
    """Let `memory_limit` count these bytes as available from now on: memory that an earlier life of this executor has filled, and
    that this one takes over. It sizes KV and steps as the first one did then."""
    global _own_bytes
    _own_bytes = num_bytes


def memory_limit(root: Path = ROOT) -> MemoryLimit:
    """Return the tightest of the machine's memory and all cgroup limits. `root` is the directory that contains /proc and
    /sys."""
    total, available = _machine(root)
    for limit, used in cgroup_memory(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return MemoryLimit(total, min(total, available + _own_bytes))


@dataclass(frozen=True, slots=True)
class Pressure:
    """Memory of a container in bytes: its limit, and the used memory that the kernel cannot reclaim."""

    limit: int
    used: int

    @property
    def left(self) -> int:
        """Bytes until the kernel kills a process of the container."""
        return self.limit - self.used


class PressureGauge:
    """Measures how close the container is to its limit. The cgroups with a limit are found once, so that a reading is cheap."""

    def __init__(self, root: Path = ROOT) -> None:
        self._groups = [(v2, group) for v2, group in _groups(root, "memory") if _limit(v2, group) is not None]

    def __call__(self) -> Pressure | None:
        """Return the cgroup that is nearest to its limit, None if there is no limit. Page cache does not count as used,
        because the kernel drops it before it kills a process."""
        usages = [_usage(v2, group, _FILE_CACHE) for v2, group in self._groups]
        pressures = [Pressure(limit, used - cache) for limit, used, cache in filter(None, usages)]
        return min(pressures, key=lambda group: group.left, default=None)


def machine_bytes(root: Path = ROOT) -> int:
    """Return the machine's whole memory in bytes. The kernel checks a single allocation against it, whatever the cgroups
    say."""
    return _machine(root)[0]


def cpu_threads(root: Path = ROOT) -> int:
    """Return the number of threads to start: CPUs in the affinity mask, or fewer if a cgroup's CPU quota allows fewer; at
    least 1."""
    count = len(os.sched_getaffinity(0))
    for quota in cgroup_cpus(root):
        count = min(count, math.ceil(quota))
    return max(1, count)


def resident_bytes(root: Path = ROOT) -> int:
    """Return the resident memory of this process in bytes."""
    try:
        pages = int((root / "proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_of_a_fork() -> int:
    """Return the resident memory in bytes of a process that was just forked from this one. Pages of files, such as libraries,
    are not in it: a fork takes those that it reads."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sending, str(resident_bytes()).encode())
        finally:
            os._exit(0)
    os.close(sending)
    try:
        return int(os.read(receiving, 32) or b"0")
    finally:
        os.close(receiving)
        os.waitpid(child, 0)


def _machine(root: Path) -> tuple[int, int]:
    values: dict[str, int] = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    total = values["MemTotal"]
    return total, values.get("MemAvailable", total)


def memory_groups(root: Path = ROOT) -> list[tuple[bool, Path]]:
    """(is v2, directory) of this process's memory cgroup and all its ancestors, nearest first; some may not exist."""
    return _groups(root, "memory")


def _groups(root: Path, controller: str) -> list[tuple[bool, Path]]:
    """(is v2, directory) of this process's cgroup and all its ancestors, for one controller."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups: list[tuple[bool, Path]] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if number == "0" and not controllers:
            v2, mounts = True, [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in names:
            v2, mounts = False, [root / "sys/fs/cgroup" / controller, root / "sys/fs/cgroup" / controllers]
        else:
            continue
        # In a container the path may be the host's while the mount shows the container's own group as its root: paths
        # that do not exist are passed over, the mount's root always counts.
        parts = [part for part in path.split("/") if part]
        for mount in mounts:
            groups += [(v2, mount.joinpath(*parts[:n])) for n in range(len(parts), -1, -1)]
    return groups


def _number(path: Path) -> int | None:
    """Return the integer in a file, None if there is none or the file says "max"."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _stat(path: Path, field: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == field:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


_IDLE_CACHE = ("inactive_file",)
"""Page cache that can be dropped immediately."""
_FILE_CACHE = ("inactive_file", "active_file")
"""All page cache of files."""


def cgroup_memory(root: Path = ROOT) -> list[tuple[int, int]]:
    """Return (limit, used) in bytes of each group with a limit. Page cache that can be dropped immediately is not "used"."""
    return [(limit, max(0, used - cache)) for limit, used, cache in _cgroup_usage(root, _IDLE_CACHE)]


def _cgroup_usage(root: Path, cache: tuple[str, ...]) -> list[tuple[int, int, int]]:
    """Return (limit, used, part of it that is `cache`) in bytes of each group with a limit."""
    usages = [_usage(v2, group, cache) for v2, group in _groups(root, "memory")]
    return [usage for usage in usages if usage is not None]


def _limit(v2: bool, group: Path) -> int | None:
    limit = _number(group / ("memory.max" if v2 else "memory.limit_in_bytes"))
    return None if limit is None or limit >= _UNLIMITED else limit


def _usage(v2: bool, group: Path, cache: tuple[str, ...]) -> tuple[int, int, int] | None:
    limit = _limit(v2, group)
    if limit is None:
        return None
    used = _number(group / ("memory.current" if v2 else "memory.usage_in_bytes")) or 0
    cached = sum(_stat(group / "memory.stat", name if v2 else f"total_{name}") for name in cache)
    return limit, used, cached


def cgroup_cpus(root: Path) -> list[float]:
    """Return the number of CPUs that each quota allows."""
    quotas: list[float] = []
    for v2, group in _groups(root, "cpu"):
        if v2:
            try:
                quota, period = (group / "cpu.max").read_text().split()[:2]
                quotas.append(int(quota) / int(period))
            except (OSError, ValueError, ZeroDivisionError):
                continue
        else:
            micros, per = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
            if micros is not None and micros > 0 and per:
                quotas.append(micros / per)
    return quotas
