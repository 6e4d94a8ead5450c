"""`ForkServer`: the server's end of `fork_server.py`, on the event loop. It begins children by forks."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence

from cohort_server import run
from executors.cgroup import cpu_threads
from executors.contract import ExecutorConfig, ExecutorDied, ExecutorError, ProgressCallback, from_kind
from executors.process import fork_messages as m
from executors.process.children import Descriptors, kill_group, started
from executors.process.messages import LoadFailed, Progress
from executors.process.output import ChildOutput
from executors.process.wire import WireError

_log = logging.getLogger(__name__)

_FORK_S = m.THREADS_END_S + 2.0
"""Time after which a fork counts as failed, in seconds. It takes milliseconds, for which the loop is blocked; it is longer than
the fork server waits for threads, so that a refusal arrives with its reason."""
_REAPED_S = 1.0
"""Time that the fork server has to reap a child that has exited, in seconds."""


def _threads() -> dict[str, str]:
    """What keeps a fork server to one thread outside its load: numpy's library starts threads when it is imported, which a fork
    does not take along, and torch's own number of threads starts a pool that stays."""
    return {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(cpu_threads())}


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
                self._process = started(command, descriptors, output is not None and output.json, _threads())
        except BaseException:
            self._control.close()
            raise
        self._imported: asyncio.Future[bool] = self._loop.create_future()
        self._loaded: asyncio.Future[bool] | None = None
        self._forks: deque[asyncio.Future[ForkedChild]] = deque()
        """Those that were asked for by `fork_soon` and are not answered."""
        self.shares_weights = False
        """Whether it has loaded what the children share."""
        self._progress: ProgressCallback = lambda stage, done, total: None
        self._heard_at = self._loop.time()
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

    async def imported(self, silence_s: float) -> bool:
        """Wait until it has imported its modules. False, and it is ended, if it has not after that time, or could not."""
        return await self._waited(self._imported, silence_s)

    async def loaded(self, config: ExecutorConfig, progress: ProgressCallback, silence_s: float) -> bool:
        """Have it load what the lives of an executor share, once, and wait. `progress` is called on the loop. False, and it is
        ended, if it dies or says nothing for that time. Raises the typed error of a failed load; the next call tries again."""
        self._progress = progress
        if self._loaded is None or (self._loaded.done() and self._loaded.exception() is not None):
            self._loaded = self._loop.create_future()
            self._send(m.LoadShared(config))
        return await self._waited(self._loaded, silence_s)

    async def _waited(self, future: asyncio.Future[bool], silence_s: float) -> bool:
        while not future.done():
            left_s = self._heard_at + silence_s - self._loop.time()
            if left_s <= 0:
                self._close(f"it has said nothing for {silence_s:.0f} s")
                break
            await asyncio.wait((future,), timeout=left_s)
        return await asyncio.shield(future)

    def fork(self, descriptors: Descriptors) -> ForkedChild:
        """Begin a child that inherits the descriptors. Raises OSError, and the process is ended, if it cannot."""
        if not self.alive:
            raise OSError("the fork server has ended")
        passed = array.array("i", [one for one in descriptors if one is not None])
        self._control.settimeout(_FORK_S)
        try:
            self._control.sendmsg([m.datagram(m.Fork())], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
            while not isinstance(answer := self._answer(), m.Forked | m.NotForked) or self._forks:
                if isinstance(answer, m.Forked | m.NotForked):
                    self._settle_fork(answer)
                else:
                    self._loop.call_soon(self._told, answer)
        except (OSError, WireError) as error:
            self._close(f"it has not forked: {error}")
            raise OSError(str(error)) from error
        self._control.setblocking(False)
        if isinstance(answer, m.NotForked):
            self._close(answer.reason)  # a child that loads for itself needs the memory
            raise OSError(answer.reason)
        child = self._children[answer.pid] = ForkedChild(answer.pid, self._loop, self._close)
        return child

    async def fork_soon(self, descriptors: Descriptors) -> ForkedChild:
        """As `fork`, beside other work. Raises OSError. A fork server that does not answer is left alone: a life may depend on
        it. A child that comes later finds its socket closed."""
        if not self.alive:
            raise OSError("the fork server has ended")
        passed = array.array("i", [one for one in descriptors if one is not None])
        self._control.sendmsg([m.datagram(m.Fork())], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        future: asyncio.Future[ForkedChild] = self._loop.create_future()
        self._forks.append(future)
        try:
            async with asyncio.timeout(_FORK_S):
                return await future
        except TimeoutError:
            raise OSError("the fork server does not answer") from None

    def _settle_fork(self, answer: m.Forked | m.NotForked) -> None:
        future = self._forks.popleft()
        if future.done():  # given up
            return
        if isinstance(answer, m.Forked):
            child = self._children[answer.pid] = ForkedChild(answer.pid, self._loop, self._close)
            future.set_result(child)
        else:
            future.set_exception(OSError(answer.reason))

    async def end(self) -> None:
        """End it, and what it has forked; returns when it is reaped."""
        self._close(None)
        await asyncio.to_thread(self._process.wait)

    def _send(self, message: m.ToForkServer) -> None:
        try:
            self._control.send(m.datagram(message))
        except (OSError, WireError) as error:
            self._close(f"it takes no message: {error}")

    def _answer(self) -> m.FromForkServer:
        """Read one message. Raises BlockingIOError if none has come, OSError at the end, WireError."""
        data = self._control.recv(m.MOST_BYTES)
        if not data:
            raise OSError("it has ended")
        return m.answer_of(data)

    def _read(self) -> None:
        while self.alive:
            try:
                self._told(self._answer())
            except BlockingIOError:
                return
            except (OSError, WireError) as error:
                self._close(str(error))

    def _told(self, message: m.FromForkServer) -> None:
        self._heard_at = self._loop.time()
        match message:
            case m.Imported():
                _settle(self._imported, True)
            case Progress():
                self._progress(message.stage, message.done, message.total)
            case m.SharedLoaded():
                self.shares_weights = message.shared
                _settle(self._loaded, True)
            case m.Forked() | m.NotForked():
                self._settle_fork(message)
            case LoadFailed():
                _settle(self._loaded, from_kind(message.kind, message.message))
            case m.Ended():
                if (child := self._children.pop(message.pid, None)) is not None:
                    child.set_status(message.status)
            case _:  # alive
                pass

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
        _settle(self._imported, False)
        _settle(self._loaded, False)
        for future in self._forks:
            if not future.done():
                future.set_exception(OSError("the fork server has ended"))
        self._forks.clear()
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


def _settle(future: asyncio.Future[bool] | None, outcome: bool | ExecutorError) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, bool):
        future.set_result(outcome)
    else:
        if isinstance(outcome, ExecutorDied):
            outcome = ExecutorDied(str(outcome), "load")
        future.set_exception(outcome)
        future.exception()  # perhaps no task waits: avoid the warning


def _pidfd(pid: int) -> int:
    """A descriptor that tells of the exit of the process; -1 if it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
