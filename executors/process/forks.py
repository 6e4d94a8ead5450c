"""`ForkServer`: the server's end of `fork_server.py`, on the event loop. It begins children by forks."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence

from cohort_server import run
from executors.process.children import Descriptors, kill_group, started
from executors.process.output import ChildOutput

_OF_A_FORK = b"forked", b"failed"
_log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 10
_FORK_S = 5.0
"""Time after which a fork counts as failed, in seconds. It takes milliseconds, for which the loop is blocked."""
_REAPED_S = 1.0
"""Time that the fork server has to reap a child that has exited, in seconds."""


class ForkServer:
    """One process, its forks and their ends. Belongs to one event loop.

    - `modules`: what it imports.
    - `output` takes its stderr.

    Raises OSError if it cannot be started.
    """

    def __init__(self, modules: Sequence[str], output: ChildOutput | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, ForkedChild] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, contextlib.nullcontext(2) if output is None else output.pipe("executor") as stderr:
                command = run.command("executors.process.fork_server", str(theirs.fileno()), *modules)
                descriptors = Descriptors(theirs.fileno(), stderr, None)
                self._process = started(command, descriptors, output is not None and output.json)
        except BaseException:
            self._control.close()
            raise
        self._imported: asyncio.Future[bool] = self._loop.create_future()
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once it has ended or was closed."""
        return self._control.fileno() >= 0

    async def imported(self, timeout_s: float) -> bool:
        """Wait until it has imported its modules. False, and it is ended, if it has not after that time, or could not."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._imported), timeout_s)
        except TimeoutError:
            self._close("it did not import its modules in time")
            return False

    def fork(self, descriptors: Descriptors) -> ForkedChild:
        """Begin a child that inherits the descriptors. Raises OSError."""
        if not self.alive:
            raise OSError("the fork server has ended")
        passed = array.array("i", [one for one in descriptors if one is not None])
        self._control.settimeout(_FORK_S)
        try:
            self._control.sendmsg([b"fork"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
            while (answer := self._control.recv(_MOST_BYTES)) and not answer.startswith(_OF_A_FORK):
                self._loop.call_soon(self._told, answer)
        except OSError as error:
            self._close(f"it has not forked: {error}")
            raise
        self._control.setblocking(False)
        kind, _, text = answer.decode(errors="replace").partition(" ")
        if not kind:
            self._close("it has ended")
        if kind != "forked":
            raise OSError(text or "the fork server has ended")
        child = self._children[int(text)] = ForkedChild(int(text), self._loop, self._close)
        return child

    async def end(self) -> None:
        """End it, and what it has forked; returns when it is reaped."""
        self._close(None)
        await asyncio.to_thread(self._process.wait)

    def _read(self) -> None:
        while self.alive:
            try:
                answer = self._control.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                answer = b""
            if not answer:
                self._close("it has ended")
                return
            self._told(answer)

    def _told(self, answer: bytes) -> None:
        match answer.split():
            case [b"imported"]:
                if not self._imported.done():
                    self._imported.set_result(True)
            case [b"ended", pid, status]:
                if (child := self._children.pop(int(pid), None)) is not None:
                    child.set_status(int(status))
            case _:
                self._close(f"it sent {answer!r}")

    def _close(self, reason: str | None) -> None:
        """End the process. Its children end with it, and count as killed."""
        if not self.alive:
            return
        if reason is not None:
            _log.warning(
                "the executor's fork server is ended: %s; later executors import by themselves", reason
            )
        self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        if not self._imported.done():
            self._imported.set_result(False)
        children, self._children = self._children, {}
        for child in children.values():
            child.lose_parent()


class ForkedChild:
    """A `ChildProcess` that the fork server has forked and reaps. `not_reaped`: called with the reason if it does not."""

    def __init__(self, pid: int, loop: asyncio.AbstractEventLoop, not_reaped: Callable[[str], None]) -> None:
        self.pid = pid
        self._loop, self._not_reaped = loop, not_reaped
        self._status: int | None = None
        self._reported = False
        self._ended: Callable[[], None] = lambda: None
        self._late: asyncio.TimerHandle | None = None
        self._alone = False
        """Whether the fork server has ended: init reaps the child then."""
        self._pidfd = _pidfd(pid)
        if self._pidfd >= 0:
            loop.add_reader(self._pidfd, self._exited)

    @property
    def ended(self) -> bool:
        return self._reported

    def poll(self) -> int | None:
        self._reported = self._status is not None
        return self._status

    def watch(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def set_status(self, status: int) -> None:
        """Record with which status it ended."""
        self._forget_descriptor()
        if self._late is not None:
            self._late.cancel()
        if self._status is None:
            self._status = status
            self._ended()

    def lose_parent(self) -> None:
        """The fork server has ended, and this child with it."""
        self._alone = True
        kill_group(self.pid)
        if self._pidfd < 0:  # its exit was seen before
            self.set_status(-signal.SIGKILL)

    def _exited(self) -> None:
        self._forget_descriptor()
        if self._alone:
            self.set_status(-signal.SIGKILL)
        else:
            self._late = self._loop.call_later(
                _REAPED_S, self._not_reaped, f"it does not reap process {self.pid}"
            )

    def _forget_descriptor(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def _pidfd(pid: int) -> int:
    """A descriptor that tells of the exit of the process; -1 if it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
