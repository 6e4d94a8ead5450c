"""`Life`: one child process from its start to its reaping, seen from the server's event loop.

    begun -> Load -> [Progress ...] -> Ready | LoadFailed -> calls and answers -> death -> reaped

A death has one verdict, the first that was reached: `death` is set, every outstanding call fails with it, the process is
killed if it still runs, and `reaped` is set once the kernel has returned its exit status. Causes:

    exit    it ended by itself          signal  a signal killed it         closed  it closed its socket or sent garbage
    hang    see watch.py                load    it never became ready, whatever the reason
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from executors.contract import ExecutorConfig, ExecutorDied, ExecutorError, InvalidInput, NotReady, from_kind
from executors.memory_file import MemoryFile
from executors.process.children import Begin, ChildProcess, connection, kill_group
from executors.process.messages import (
    EXIT_DEVICE,
    EXIT_MEMORY,
    Answer,
    Call,
    Failed,
    Heartbeat,
    Load,
    LoadFailed,
    Prepare,
    Prepared,
    Progress,
    Ready,
    Release,
    ReleaseMemory,
    Shutdown,
    StandingBy,
    StepDone,
    ToServer,
    Truncate,
)
from executors.process.oom_kills import OomKills
from executors.process.output import ChildOutput
from executors.process.standby import Taken
from executors.process.stream import MessageStream
from executors.process.watch import HangWatch, Limits, TokenCost
from executors.process.wire import WireError, encode


@dataclass(slots=True)
class _Waiting:
    call: int
    future: asyncio.Future[Answer]


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks of a life to its owner, on the loop."""

    progress: Callable[[str, int, int], None]
    heartbeat: Callable[[Heartbeat], None]
    ready: Callable[[Ready], None]
    died: Callable[[ExecutorDied], None]


class Life:
    """One child process. Written only by its own methods, on one event loop. Starting it needs no await, so that a start cannot
    be cancelled half-way."""

    def __init__(
        self,
        config: ExecutorConfig,
        limits: Limits,
        cost: TokenCost,
        clock: Callable[[], float],
        listener: Listener,
        begin: Begin,
        *,
        again: bool = False,
        output: ChildOutput | None = None,
        memory: MemoryFile | None = None,
        turns: str | None = None,
        standby: Taken | None = None,
    ) -> None:
        """`again`: an earlier child was loaded. `output` takes the child's stderr. `memory` is offered to its executor. `turns`:
        see `Load`. `standby`: the child, which has inherited both, in place of one that `begin` begins. Raises OSError if the
        child cannot be begun."""
        self._loop = asyncio.get_running_loop()
        self._limits, self._clock, self._listener = limits, clock, listener
        self._watch = HangWatch(limits, cost, clock(), again=again)
        self._waiting: deque[_Waiting] = deque()
        self._preparing: dict[int, asyncio.Future[None]] = {}
        """Futures of the grammars that the child is compiling, by number."""
        self._last_prepare = 0
        self._last_call = 0
        self._load_error: ExecutorError | None = None
        self._stopping = False
        self._grace: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        self.death: ExecutorDied | None = None

        self._oom_kills = OomKills()
        descriptor = None if memory is None else memory.descriptor
        self._process, self._stream = self._child(begin, output, config, descriptor, standby)
        self.pid = self._process.pid
        self._process.watch(self._exited)
        self._stream.send(encode(Load(config, limits.heartbeat_s, descriptor, turns)))
        self._ticked_at = clock()
        self._ticker = self._loop.call_later(limits.tick_s, self._tick)

    def _child(
        self,
        begin: Begin,
        output: ChildOutput | None,
        config: ExecutorConfig,
        memory: int | None,
        standby: Taken | None,
    ) -> tuple[ChildProcess, MessageStream]:
        if standby is not None:
            standby.stream.hand_over(self._received, self._stream_ended)
            return standby
        with connection(output, config, memory) as (descriptors, ours):
            process = begin(descriptors)
        return process, MessageStream(self._loop, ours, self._received, self._stream_ended)

    # -- for the owner -------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True if the child is loaded and alive."""
        return self.death is None and self._ready.done()

    @property
    def load_error(self) -> ExecutorError | None:
        """Why it could not be loaded, if it said so and had not died."""
        return self._load_error

    async def ready(self) -> None:
        """Wait until it is loaded. Raises the typed error of a failed load."""
        await asyncio.shield(self._ready)

    async def dead(self) -> None:
        """Wait for the verdict."""
        await asyncio.shield(self._dead)

    async def reaped(self) -> None:
        """Wait until the process is gone for good."""
        await asyncio.shield(self._reaped)

    def next_call(self) -> int:
        """The number of the call to be sent next."""
        return self._last_call + 1

    def call(self, message: Call, tokens: int | None) -> asyncio.Future[Answer]:
        """Send a call; the future has its answer, or the typed error. `tokens` as for `HangWatch.sent`.

        Raises InvalidInput, with nothing sent, for a message that cannot be encoded. The future may be cancelled at any time.
        """
        if self.death is not None:
            raise self.fresh(self.death)
        return self.call_frame(frame_of(message), message, tokens)

    def call_frame(self, frame: bytearray, message: Call, tokens: int | None) -> asyncio.Future[Answer]:
        """Do the same as `call` with the frame of the message, which may be sent to several processes."""
        self._last_call = message.call
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append(_Waiting(message.call, future))
        self._watch.sent(self._clock(), tokens)
        self._stream.send(frame)
        return future

    async def prepare(self, grammar: str) -> None:
        """Compile a grammar concurrently with the calls. Raises InvalidInput, Unsupported or ExecutorDied."""
        await self._prepare(lambda number: Prepare(number, grammar))

    async def prepare_adapter(self, name: str, path: str, digest: str) -> None:
        """Read an adapter concurrently with the calls. Raises ConfigError, OutOfMemory, Unsupported or ExecutorDied."""
        await self._prepare(lambda number: Prepare(number, "", name, path, digest))

    async def _prepare(self, make: Callable[[int], Prepare]) -> None:
        if self.death is not None:
            raise self.fresh(self.death)
        self._last_prepare = number = self._last_prepare + 1
        self._stream.send(frame_of(make(number)))
        self._preparing[number] = future = self._loop.create_future()
        try:
            await future
        finally:
            self._preparing.pop(number, None)

    def tell(self, message: Release | Truncate | ReleaseMemory) -> None:
        """Send a message that has no answer."""
        if self.death is None:
            self._stream.send_soon(frame_of(message))

    def tell_frame(self, frame: bytearray) -> None:
        """Do the same as `tell` with the frame of a message."""
        if self.death is None:
            self._stream.send_soon(frame)

    def look(self) -> None:
        """Notice at once if the process has ended."""
        if self.death is None:
            self._exited()

    def kill(self, cause: str, reason: str, *, from_outside: bool = False) -> None:
        """Pass the verdict and end the process."""
        self._die(ExecutorDied(f"executor process {self.pid}: {reason}", cause, from_outside=from_outside))

    def send_kill(self) -> bool:
        """Send SIGKILL and leave the verdict to what follows. False if the process is dead, or about to be."""
        if self.death is not None or self._stopping or self._process.ended:
            return False
        kill_group(self.pid)
        return True

    async def stop(self) -> None:
        """Ask the child to end, wait `shutdown_s`, kill it; returns when it is reaped. Outstanding calls that it does not answer
        in this time fail with NotReady. If this call is cancelled, the child is killed at once."""
        self._stopping = True
        try:
            if self.is_ready:
                self._stream.send(encode(Shutdown()))
                await asyncio.wait((self._reaped,), timeout=self._limits.shutdown_s)
        finally:
            self.kill("exit", "shut down")
        await self.reaped()

    # -- what comes from the child -------------------------------------------------------------------------------------

    def _received(self, message: ToServer) -> None:
        now = self._clock()
        self._watch.heard(now)
        match message:
            case Heartbeat():
                self._oom_kills.alive()
                if message.waits:
                    self._watch.waits(now)
                self._listener.heartbeat(message)
            case Progress():
                self._watch.reported(now, message.done, message.total)
                self._listener.progress(message.stage, message.done, message.total)
            case Ready():
                self._watch.loaded()
                if not self._ready.done():
                    self._listener.ready(message)
                    self._ready.set_result(None)
            case LoadFailed():
                error = from_kind(message.kind, message.message)
                self._load_error = None if isinstance(error, ExecutorDied) else error
                self._die(ExecutorDied(message.message, "load"))
            case Prepared():
                self._prepared(message)
            case StandingBy():  # asked before it was needed
                pass
            case _:
                self._answered(message, now)

    def _prepared(self, message: Prepared) -> None:
        future = self._preparing.pop(message.number, None)
        if future is None or future.done():  # its caller was cancelled
            return
        if message.kind is None:
            future.set_result(None)
        else:
            future.set_exception(from_kind(message.kind, message.message))

    def _answered(self, answer: Answer, now: float) -> None:
        if not self._waiting or self._waiting[0].call != answer.call:
            self.kill("closed", f"answered call {answer.call}, which was not its turn")
            return
        error = from_kind(answer.kind, answer.message) if isinstance(answer, Failed) else None
        if isinstance(answer, Failed) and isinstance(error, ExecutorDied):
            # It gave itself up: the verdict answers this call and those after it.
            self.kill(answer.cause, str(error))
            return
        waiting = self._waiting.popleft()
        self._watch.answered(now, answer.seconds, step=isinstance(answer, StepDone))
        if waiting.future.done():  # its caller was cancelled: the answer is not needed
            return
        if error is not None:
            waiting.future.set_exception(error)
        else:
            waiting.future.set_result(answer)

    # -- death ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        late = now - self._ticked_at - self._limits.tick_s
        self._ticked_at = now
        self._ticker = self._loop.call_later(self._limits.tick_s, self._tick)
        if late > self._limits.tick_s:
            self._watch.forgive(late, now)
        self._exited()  # where the system tells of no exits
        reason = self._watch.verdict(now)
        if reason is not None and self.death is None:
            self.kill("hang", reason, from_outside=self._watch.is_silent(now))

    def _exited(self) -> None:
        """Called at a tick, and when the process may have exited."""
        status = None if self._process.ended else self._process.poll()
        if status is None:
            return
        self._stream.drain()  # its last words: answers, or why it could not load
        if status < 0:
            self._killed(-status)
        elif status == EXIT_MEMORY:
            self.kill("memory", "ended itself at its container's memory limit")
        elif status == EXIT_DEVICE:
            self.kill("device", "ended itself because its device was lost")
        else:
            self.kill("exit", f"ended with exit code {status}")
        self._ticker.cancel()
        if not self._reaped.done():
            self._reaped.set_result(None)

    def _killed(self, number: int) -> None:
        """A signal has ended it. A crash and a kill from outside look the same: so do SIGSEGV and SIGABRT."""
        reason = self._oom_kills.verdict() if number == signal.SIGKILL else None
        if reason is not None:
            self.kill("memory", reason, from_outside=True)
        else:
            self.kill("signal", f"killed by {_signal_name(number)}", from_outside=True)

    def _stream_ended(self, garbage: str | None) -> None:
        if garbage is not None:
            self.kill("closed", f"sent garbage: {garbage}")
            return
        # Most likely it is exiting: the exit tells more.
        self._grace = self._loop.call_later(self._limits.grace_s, self.kill, "closed", "closed its socket")

    def _die(self, death: ExecutorDied) -> None:
        if self.death is not None:
            return
        loading = not self._ready.done()
        if loading:
            death = ExecutorDied(str(death), "load")
        self.death = death
        self._stream.close()
        if self._grace is not None:
            self._grace.cancel()
        if not self._process.ended:
            kill_group(self.pid)
        if loading:
            self._ready.set_exception(self._load_error or self.fresh(death))
            self._ready.exception()  # perhaps no task waits: avoid the warning
        for waiting in self._waiting:
            if not waiting.future.done():
                waiting.future.set_exception(self.fresh(death))
        self._waiting.clear()
        for preparing in self._preparing.values():
            if not preparing.done():
                preparing.set_exception(self.fresh(death))
        self._preparing.clear()
        self._dead.set_result(None)
        if not self._stopping:
            self._listener.died(death)

    def fresh(self, death: ExecutorDied) -> ExecutorError:
        """A new error instance for one raise: the traceback of a shared one would grow."""
        if self._stopping:
            return NotReady("the executor was shut down")
        return ExecutorDied(str(death), death.cause, from_outside=death.from_outside)


def frame_of(message: msgspec.Struct) -> bytearray:
    """The frame of a message. Raises InvalidInput if it cannot be encoded."""
    try:
        return encode(message)
    except WireError as error:
        raise InvalidInput(str(error)) from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
