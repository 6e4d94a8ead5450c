"""Child processes as `life.py` sees them: begun by a command line, or forked by the fork server (`forks.py`), when they are
needed or before (`standby.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from cohort_server import run
from executors.contract import ExecutorConfig
from executors.process.output import JSON_VARIABLE, ChildOutput

Command = Callable[[int], list[str]]
"""Function that makes the command line of a child, given the descriptor of its end of the socketpair."""


class Descriptors(NamedTuple):
    """What a child gets of its server: its end of a socketpair, the file for its stderr, and perhaps a memory file."""

    socket: int
    stderr: int
    memory: int | None


class ChildProcess(Protocol):
    """A child. Belongs to one event loop."""

    @property
    def pid(self) -> int:
        """Its process id, which belongs to no other process before `poll` has returned a status."""

    @property
    def ended(self) -> bool:
        """Whether `poll` has returned a status."""

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that killed it; None while it runs. What is left of its process
        group is killed."""

    def watch(self, ended: Callable[[], None]) -> None:
        """Have `ended` called on the loop when `poll` may return a status, until it has returned one."""


Begin = Callable[[Descriptors], ChildProcess]
"""Function that begins a child, which inherits the descriptors. Raises OSError."""


class Begun(NamedTuple):
    """A child, the server's end of its socketpair, and whether it was forked by a process that has imported everything."""

    process: ChildProcess
    socket: socket.socket
    forked: bool = False


@contextlib.contextmanager
def connection(
    output: ChildOutput | None, config: ExecutorConfig, memory: int | None
) -> Iterator[tuple[Descriptors, socket.socket]]:
    """Make what a child of that configuration inherits, `memory` among it, and the server's end of its socketpair. The child's
    ends are closed behind the block; so is the server's if the block raises. Raises OSError."""
    parallel = config.parallel
    name = "executor" if parallel.world_size == 1 else f"executor rank {parallel.rank}"
    ours, theirs = socket.socketpair()
    try:
        with theirs, contextlib.nullcontext(2) if output is None else output.pipe(name) as stderr:
            yield Descriptors(theirs.fileno(), stderr, memory), ours
    except BaseException:
        ours.close()
        raise


def child_command(fd: int) -> list[str]:
    """The command line of the executor process, given its end of a socketpair."""
    return run.command("executors.process.child", str(fd))


def child_environment(json_lines: bool = False) -> dict[str, str]:
    """The server's environment without its settings, which include keys; the child gets its own settings by message.

    Spinning of idle threads is disabled: it would take the cores that the server's loop needs. `json_lines`: its log is objects.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env.setdefault("KMP_BLOCKTIME", "0")
    if json_lines:
        env[JSON_VARIABLE] = "1"
    return env


def started(
    command: list[str], descriptors: Descriptors, json_lines: bool, defaults: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that inherits the descriptors, in a process group of its own. `defaults`: variables of its environment that
    are not set. Raises OSError."""
    inherited = (
        (descriptors.socket,) if descriptors.memory is None else (descriptors.socket, descriptors.memory)
    )
    return subprocess.Popen(
        command,
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        stdout=descriptors.stderr,  # a library's print must not mix with what the server prints
        stderr=descriptors.stderr,
        env={**(defaults or {}), **child_environment(json_lines)},
        process_group=0,  # no Ctrl-C from the terminal, and a kill takes its own children too
    )


class StartedChild:
    """A `ChildProcess` begun by a command line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # without pidfds the owner's ticks notice the exit
            self._pidfd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def poll(self) -> int | None:
        with contextlib.suppress(ChildProcessError):  # reaped elsewhere: Popen.poll() reports 0
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            kill_group(self.pid)  # before it is reaped: its number cannot belong to another yet
        status = self._process.poll()
        if status is not None and self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        return status

    def watch(self, ended: Callable[[], None]) -> None:
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, ended)


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group of a child, if there is one left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
