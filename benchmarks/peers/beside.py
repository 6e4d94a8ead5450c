"""What else ran on this machine while something was measured: CPU time of other processes, and time that a hypervisor took.

Other processes' time is what the machine spent outside of idling, less the time of this process, its descendants and their
sessions. Interrupts are left out: the loopback traffic of what is measured is among them. A child's time counts for its
parent once that has waited for it, so children that start and end inside a window are not lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of CPU since the machine started: of all processes, of this one and its own, and stolen."""

    all: float
    own: float
    stolen: float


def read(proc: Path = PROC) -> Times:
    """Read /proc once. A process that ends meanwhile is left out."""
    user, nice, system, _, _, _, _, stolen = map(int, (proc / "stat").read_text().split(None, 9)[1:9])
    return Times((user + nice + system) / _TICKS, _own(proc) / _TICKS, stolen / _TICKS)


def _own(proc: Path) -> int:
    """Ticks of this process and its descendants, and of every process in a session of theirs."""
    parent: dict[int, int] = {}
    session: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # A name in parentheses may hold spaces and parentheses.
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(folder.name)
        parent[pid], session[pid] = int(words[1]), int(words[3])
        ticks[pid] = sum(map(int, words[11:15]))
    own = {os.getpid()}
    found = own
    while found:
        found = {pid for pid, of in parent.items() if of in own and pid not in own}
        own |= found
    # A session that a descendant began, as a started server does, is its own, even where a middle process has ended.
    led = {session[pid] for pid in own if pid in session} & (own - {os.getpid()})
    own |= {pid for pid, of in session.items() if of in led}
    return sum(ticks.get(pid, 0) for pid in own)


@contextmanager
def watched(what: str, into: list[dict[str, Any]]) -> Iterator[None]:
    """Add a record of the time inside: `what`, `seconds`, and `others` and `stolen` as shares of this process's cores."""
    began, before = time.monotonic(), read()
    yield
    seconds, after = time.monotonic() - began, read()
    capacity = max(seconds, 1e-9) * len(os.sched_getaffinity(0))
    others = (after.all - before.all) - (after.own - before.own)
    into.append(
        {
            "what": what, "seconds": round(seconds, 2), "others": round(max(0.0, others) / capacity, 4),
            "stolen": round((after.stolen - before.stolen) / capacity, 4),
        }
    )  # fmt: skip
