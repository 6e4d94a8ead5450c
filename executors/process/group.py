"""`RankProcesses`: the processes of one model's ranks, which live and die together. To `RemoteExecutor` it is one `Life`.

    call    one frame, the same bytes for every rank; rank 0's answer is the answer once all ranks have one
    death   of any rank, or an answer that does not fit the others': the verdict on all of them, with that rank's cause

The ranks find each other by a file in a private directory, a new one for each life.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from executors.contract import (
    ExecutorConfig,
    ExecutorDied,
    ExecutorError,
    NotReady,
    StepFailed,
    replace,
)
from executors.memory_file import MemoryFile
from executors.process.children import Begin
from executors.process.life import Life, Listener, frame_of
from executors.process.messages import (
    Answer,
    Call,
    Heartbeat,
    Ready,
    Release,
    ReleaseMemory,
    Step,
    Truncate,
)
from executors.process.output import ChildOutput
from executors.process.standby import Taken
from executors.process.watch import Limits, TokenCost


@dataclass(slots=True, eq=False)
class _RankCall:
    """A call that was sent to all ranks. `answers`: those that came, by rank; an error for a rank that failed."""

    is_step: bool
    future: asyncio.Future[Answer]
    answers: dict[int, Answer | ExecutorError] = field(default_factory=dict)


class RankProcesses:
    """See the module and `Life`, whose members these are. Belongs to one event loop."""

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
        memory: Sequence[MemoryFile] = (),
        turns: str | None = None,
        standby: Callable[[int], Taken | None] = lambda rank: None,
    ) -> None:
        """`memory`: of each rank, or nothing. `turns`: see `Load`; rank 0 takes them for all. `standby`: a rank's process that
        has stood by, None for none. Raises OSError if a process cannot be started; those that were are ended then."""
        self._loop = asyncio.get_running_loop()
        self._listener, self._limits = listener, limits
        self._facts: Ready | None = None
        self._open: set[_RankCall] = set()
        """Calls that not all ranks have answered."""
        self._late: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self.death: ExecutorDied | None = None
        self._ranks: list[Life] = []
        self._folder = Path(tempfile.mkdtemp(prefix="cohort-ranks-"))  # for this user alone
        try:
            for rank in range(config.parallel.world_size):
                parallel = replace(config.parallel, rank=rank, rendezvous=str(self._folder / "meeting"))
                life = Life(
                    replace(config, parallel=parallel),
                    limits,
                    cost,
                    clock,
                    self._listener_of(rank),
                    begin,
                    again=again,
                    output=output,
                    memory=memory[rank] if memory else None,
                    turns=turns if rank == 0 else None,
                    standby=standby(rank),
                )
                self._ranks.append(life)
        except BaseException:
            self._stopping = True
            for life in self._ranks:
                life.kill("exit", "another rank could not be started")
            self._clear_folder()
            raise
        self._reaping = self._loop.create_task(self._reap())

    def _listener_of(self, rank: int) -> Listener:
        leads = rank == 0
        return Listener(
            self._listener.progress if leads else lambda stage, done, total: None,
            self._listener.heartbeat if leads else _ignore,
            lambda facts: self._became_ready(rank, facts),
            lambda death: self._rank_died(rank, death),
        )

    # -- for the owner -------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process id of rank 0."""
        return self._ranks[0].pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by rank."""
        return tuple(life.pid for life in self._ranks)

    @property
    def is_ready(self) -> bool:
        """True if all ranks are loaded and alive."""
        return self.death is None and self._ready.done()

    async def ready(self) -> None:
        """Wait until all are loaded. Raises the typed error of a failed load."""
        await asyncio.shield(self._ready)

    async def dead(self) -> None:
        """Wait for the verdict."""
        await asyncio.shield(self._dead)

    async def reaped(self) -> None:
        """Wait until all processes are gone for good."""
        await asyncio.shield(self._reaping)

    def send_kill(self) -> bool:
        """Send SIGKILL to rank 0, whose death ends the group. False if it is dead, or about to be."""
        return self.death is None and not self._stopping and self._ranks[0].send_kill()

    def next_call(self) -> int:
        """The number of the call to be sent next."""
        return self._ranks[0].next_call()

    def call(self, message: Call, tokens: int | None) -> asyncio.Future[Answer]:
        """See `Life`."""
        if self.death is not None:
            raise self._fresh(self.death)
        frame = frame_of(message)
        pending = _RankCall(isinstance(message, Step), self._loop.create_future())
        self._open.add(pending)
        for rank, life in enumerate(self._ranks):
            if self.death is not None:  # a write found one of them gone
                break
            answer = life.call_frame(frame, message, tokens)
            answer.add_done_callback(partial(self._answered, pending, rank))
        return pending.future

    async def prepare(self, grammar: str) -> None:
        """See `Life`. Rank 0 alone needs grammars."""
        await self._ranks[0].prepare(grammar)

    async def prepare_adapter(self, name: str, path: str, digest: str) -> None:
        """See `Life`; each rank reads its part."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_outcome(life.prepare_adapter(name, path, digest))) for life in self._ranks
            ]
        for error in (task.result() for task in tasks):
            if error is not None:
                raise error

    def tell(self, message: Release | Truncate | ReleaseMemory) -> None:
        """Send all ranks a message that has no answer."""
        frame = frame_of(message)
        for life in self._ranks:
            life.tell_frame(frame)

    def kill(self, cause: str, reason: str, *, from_outside: bool = False) -> None:
        """Pass the verdict and end all processes."""
        self._die(ExecutorDied(f"executor processes: {reason}", cause, from_outside=from_outside))

    async def stop(self) -> None:
        """Ask all ranks to end, wait `shutdown_s`, kill them; returns when they are reaped."""
        self._stopping = True
        try:
            async with asyncio.TaskGroup() as group:
                for life in self._ranks:
                    group.create_task(life.stop())
        finally:
            self.kill("exit", "shut down")
        await self.reaped()

    # -- what comes from the ranks ---------------------------------------------------------------------------------------

    def _became_ready(self, rank: int, facts: Ready) -> None:
        if rank == 0:
            self._facts = facts
        # The one that calls this is not marked ready yet.
        waiting = [life for i, life in enumerate(self._ranks) if i != rank and not life.is_ready]
        if not waiting and self._facts is not None and not self._ready.done() and self.death is None:
            self._listener.ready(self._facts)
            self._ready.set_result(None)

    def _answered(self, pending: _RankCall, rank: int, answer: asyncio.Future[Answer]) -> None:
        error = answer.exception()
        if self.death is not None or isinstance(error, ExecutorDied | NotReady):
            return  # the verdict answers the call
        if error is not None and not isinstance(error, ExecutorError):
            raise error
        pending.answers[rank] = answer.result() if error is None else error
        if len(pending.answers) == len(self._ranks):
            self._settle(pending)
        elif error is not None and self._late is None:
            # The others may wait for what does not come.
            self._late = self._loop.call_later(
                self._limits.silence_s, self._give_up, pending, rank, str(error)
            )

    def _give_up(self, pending: _RankCall, rank: int, why: str) -> None:
        self._late = None
        if len(pending.answers) < len(self._ranks):
            self.kill("exit", f"rank {rank} failed alone: {why}")

    def _settle(self, pending: _RankCall) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        first = pending.answers[0]
        kinds = {type(one) if isinstance(one, ExecutorError) else None for one in pending.answers.values()}
        # What rank 0 alone finds out when the others are done with the call: no token could be sampled.
        alone = not pending.is_step and isinstance(first, StepFailed) and kinds == {type(first), None}
        if len(kinds) > 1 and not alone:
            answers = ", ".join(
                f"rank {i}: {_answer_text(one)}" for i, one in sorted(pending.answers.items())
            )
            self.kill("exit", f"the ranks answered differently: {answers}")
            return
        self._open.discard(pending)
        if pending.future.done():  # its caller was cancelled
            return
        elif isinstance(first, ExecutorError):
            pending.future.set_exception(first)
        else:
            pending.future.set_result(first)

    # -- death ---------------------------------------------------------------------------------------------------------

    def _rank_died(self, rank: int, death: ExecutorDied) -> None:
        if self.death is not None:
            return
        # A rank that lost its connection to another one dies of that; the other rank's death is the cause.
        for other, life in enumerate(self._ranks):
            if other != rank and death.cause in ("exit", "closed", "load", "device"):
                life.look()
            if self.death is not None:
                return
        self._die(
            ExecutorDied(f"rank {rank}: {death}", death.cause, from_outside=death.from_outside),
            self._ranks[rank],
        )

    def _die(self, death: ExecutorDied, first: Life | None = None) -> None:
        if self.death is not None:
            return
        loading = not self._ready.done()
        if loading:
            death = ExecutorDied(str(death), "load")
        self.death = death
        if self._late is not None:
            self._late.cancel()
        if loading:
            self._ready.set_exception(self._why_not_ready(first) or self._fresh(death))
            self._ready.exception()  # perhaps no task waits: avoid the warning
        for life in self._ranks:
            life.kill(death.cause, "another rank died")
        for pending in self._open:
            if not pending.future.done():
                pending.future.set_exception(self._fresh(death))
        self._open.clear()
        self._dead.set_result(None)
        if not self._stopping:
            self._listener.died(death)

    def _why_not_ready(self, first: Life | None) -> ExecutorError | None:
        return None if first is None else first.load_error

    def _fresh(self, death: ExecutorDied) -> ExecutorError:
        if self._stopping:
            return NotReady("the executor was shut down")
        return ExecutorDied(str(death), death.cause, from_outside=death.from_outside)

    async def _reap(self) -> None:
        for life in self._ranks:
            await life.reaped()
        await asyncio.to_thread(self._clear_folder)

    def _clear_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _ignore(_: Heartbeat) -> None:
    pass


async def _outcome(work: Coroutine[object, object, None]) -> ExecutorError | None:
    """Return the error with which it ends."""
    try:
        await work
    except ExecutorError as error:
        return error
    return None


def _answer_text(answer: Answer | ExecutorError) -> str:
    return f"{answer.kind} {answer}" if isinstance(answer, ExecutorError) else type(answer).__name__
