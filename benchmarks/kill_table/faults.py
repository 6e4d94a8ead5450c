"""What is done to a server under its calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kill_table.running import Running
from tests.e2e.cgroups import Limited

OOM_WITHIN = 60.0
ROOM_BYTES = 96 << 20
"""What the group of a server that runs out of memory has left when it serves."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table. `strike` does it to a running server, and returns a note where there is something to say."""

    name: str
    title: str
    text: str
    strike: Callable[[Running, Limited | None], Awaitable[str]]
    limited: bool = False
    poisons: bool = False
    cancels: bool = False
    drains: bool = False

    @property
    def harmless(self) -> bool:
        """Whether the server that it struck is as good as new."""
        return self.cancels


async def _kill(running: Running, group: Limited | None) -> str:
    _signal(running, signal.SIGKILL)
    return ""


async def _stop(running: Running, group: Limited | None) -> str:
    _signal(running, signal.SIGSTOP)
    return ""


async def _nothing(running: Running, group: Limited | None) -> str:
    return ""


async def _terminate(running: Running, group: Limited | None) -> str:
    running.process.send_signal(signal.SIGTERM)
    return ""


def _signal(running: Running, number: signal.Signals) -> None:
    pids = running.computing()
    if not pids:
        raise RuntimeError(f"{running.subject.title} has no process that computes")
    for pid in pids:
        os.kill(pid, number)


async def _exhaust(running: Running, group: Limited | None) -> str:
    """Let another process of the group take what is left, until one of the server's has ended; then it ends too."""
    if group is None:
        _signal(running, signal.SIGKILL)
        return "no groups of processes here: SIGKILL, as the kernel's killer sends it"
    before = running.computing()
    group.limit(group.used_bytes() + ROOM_BYTES)
    hog = await asyncio.to_thread(_start_hog, group)
    deadline = time.monotonic() + OOM_WITHIN
    try:
        while all(_alive(pid) for pid in before):
            if time.monotonic() > deadline or hog.poll() is not None:
                raise RuntimeError("the memory was taken, and none of the server's processes ended")
            await asyncio.sleep(0.02)
    finally:
        hog.kill()
        hog.wait()
        group.limit(1 << 40)
    return (
        "the kernel's killer, or the server's own watch"
        if running.process.poll() is None
        else "the server ended"
    )


_HOG = """
import time
taken = []
while True:
    taken.append(b"x" * (4 << 20))
    time.sleep(0.01)
"""
"""Takes 400 MB/s at most. The kernel kills the largest process of a group: this one stays the smaller."""


def _start_hog(group: Limited) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _HOG], preexec_fn=group.enter)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def memory_group(fault: Fault) -> Iterator[Limited | None]:
    """A group without a limit yet, for a fault that needs one; None where none can be made."""
    if not fault.limited:
        yield None
        return
    try:
        group = Limited(1 << 40, 64)
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.remove()


FAULTS = (
    Fault("killed", "killed", "SIGKILL to the process that computes.", _kill),
    Fault("hung", "hung", "SIGSTOP to the process that computes; nothing lets it go on.", _stop),
    Fault(
        "memory", "out of memory",
        f"The server is in a memory cgroup of its own. Its limit is set to what is in use and {ROOM_BYTES >> 20} MiB, and a "
        "small process beside it takes those. When a process of the server has ended (the kernel kills the largest; Cohort's "
        "executor watches the limit and ends itself), the small one ends and the limit is lifted. Without cgroups: SIGKILL.",
        _exhaust, limited=True,
    ),
    Fault(
        "cancelled", "cancelled neighbour", "The client of another stream closes its connection.", _nothing,
        cancels=True,
    ),
    Fault(
        "poisoned", "poisoned request",
        "A ninth request comes that ends the process that computes it, each time.", _nothing, poisons=True,
    ),
    Fault("drain", "drain", "SIGTERM to the server's first process, as a supervisor sends it.", _terminate, drains=True),
)  # fmt: skip
