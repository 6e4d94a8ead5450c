"""A container's limits without a container: a cgroup of its own, version 1 or 2, for one process and its children."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_numbers = itertools.count()


class Limited:
    """A group with a memory limit and a CPU quota. Raises OSError where groups cannot be made."""

    def __init__(self, memory_bytes: int, cpus: float) -> None:
        name = f"cohort-test-{os.getpid()}-{next(_numbers)}"
        quota = str(int(cpus * 100_000))
        self.groups: list[Path] = []
        if (_ROOT / "cgroup.controllers").exists():
            group = self._make(_ROOT / name)
            self.limit(memory_bytes)
            (group / "cpu.max").write_text(f"{quota} 100000")
        else:
            group = self._make(_ROOT / "memory" / name)
            self.limit(memory_bytes)
            (self._make(_ROOT / "cpu" / name) / "cpu.cfs_quota_us").write_text(quota)

    def _make(self, group: Path) -> Path:
        group.mkdir()
        self.groups.append(group)
        return group

    def limit(self, memory_bytes: int) -> None:
        """Set the memory limit, also while processes run in the group. OSError: version 1 does not go below what is in use."""
        v1 = (self.groups[0] / "memory.limit_in_bytes").exists()
        name = "memory.limit_in_bytes" if v1 else "memory.max"
        (self.groups[0] / name).write_text(str(memory_bytes))

    def enter(self) -> None:
        """Move the calling process in: for `preexec_fn`."""
        for group in self.groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def used_bytes(self) -> int:
        """What its processes hold that the kernel cannot take back: all but the page cache of files."""
        group = self.groups[0]
        v1 = (group / "memory.usage_in_bytes").exists()
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cache = sum(int(stat[f"total_{name}" if v1 else name]) for name in ("active_file", "inactive_file"))
        return int((group / ("memory.usage_in_bytes" if v1 else "memory.current")).read_text()) - cache

    def remove(self) -> None:
        for group in self.groups:
            with suppress(OSError):  # somebody may still be exiting
                group.rmdir()


@contextmanager
def limited(memory_bytes: int, cpus: float) -> Iterator[Limited]:
    """A group that is removed afterwards."""
    group = Limited(memory_bytes, cpus)
    try:
        yield group
    finally:
        group.remove()
