"""`Worker`: the executor in the child process, and the reports about it. Messages in, answers out; no sockets here."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable

from executors import registry
from executors.contract import (
    BatchModelExecutor,
    ExecutorConfig,
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    LoraExecutor,
    ModelExecutor,
    StepFailed,
    Unsupported,
)
from executors.contract.faults import executor_error
from executors.process import messages as m
from executors.process.core_turns import CoreTurns
from executors.process.guard import StepGuard, typed
from executors.process.wire import WireError

_SNAPSHOT_EVERY_S = 0.25
"""Shortest interval between snapshots that follow answers, in seconds."""
_PROGRESS_EVERY_S = 0.05


class Worker:
    """Used by the main thread; `beat` and the progress reports come from any.

    - `send` and `send_if_free`: the channel's.
    - `create`: makes the executor.
    - `lost_device`: called with the reason, from any thread, when the executor's device is lost and no call may notice it.
    """

    def __init__(
        self,
        send: Callable[[m.ToServer], None],
        send_if_free: Callable[[m.ToServer], None],
        lost_device: Callable[[str], None] = lambda reason: None,
        create: Callable[[ExecutorConfig], ModelExecutor] = registry.create,
    ) -> None:
        self._create = create
        self._send = send
        self._send_if_free = send_if_free
        self._lost_device = lost_device
        self._executor: ModelExecutor | None = None
        self._guard: StepGuard | None = None
        self._stage = "starting"
        self._running_since: float | None = None
        self._answered_at = 0.0
        self._snapshot: m.Snapshot | None = None
        self._snapshot_at = 0.0
        self._reports = ProgressReports(lambda stage, done, total: send(m.Progress(stage, done, total)))
        self._preparing: set[asyncio.Task[None]] = set()
        self._turns: CoreTurns | None = None
        """Turns at cores that other executors compute on as well."""
        self._waits = False
        """Whether a step waits for its turn."""
        self._rank = 0
        self._overlaps = False
        """Whether the executor accepts a step while it computes another."""
        self._out: deque[asyncio.Task[None]] = deque()
        """Running steps of an executor that `_overlaps`."""
        self._gave_up = False

    # -- loading -------------------------------------------------------------------------------------------------------

    async def load(self, config: ExecutorConfig, memory: int | None = None, turns: str | None = None) -> bool:
        """Import, create and warm up the executor, and send Ready. False, after sending LoadFailed, if that failed. `memory`,
        `turns`: see `Load`."""
        try:
            self._rank = config.parallel.rank
            self._progress("importing", 0, 0)
            executor = self._create(config)
            executor.set_progress(self._progress)
            executor.set_death_listener(lambda death: self._lost_device(str(death)))
            if memory is not None:
                executor.use_memory(memory)
            self._executor = executor
            self._progress("loading", 0, 0)
            await executor.warmup()
            self._guard = StepGuard(executor)
            self._overlaps = executor.capabilities().max_in_flight > 1
            if turns is not None and not self._overlaps:
                self._join(turns)
            self._stage = ""
            self.beat()
            self._send(_facts(executor))
            return True
        except (Exception, asyncio.CancelledError) as error:
            self._send(load_failure(error))
            return False

    def _join(self, turns: str) -> None:
        try:
            self._turns = CoreTurns.open(turns)
        except OSError as error:
            print(f"executor: steps take no turns with other models: {error}", file=sys.stderr, flush=True)

    def _progress(self, stage: str, done: int, total: int) -> None:
        # After loading, a finished stage is no stage; while loading the last one stands until the next begins.
        self._reports.stage = self._stage
        self._stage = "" if 0 < total <= done and self._guard is not None else one_line(stage)
        self._reports.report(stage, done, total)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def handle(self, message: m.ToExecutor | m.Unreadable) -> bool:
        """Execute one message after `load`. False if the executor has given up and the process must end."""
        assert self._guard is not None
        match message:
            case m.Release():
                self._guard.release_cache(message.cache_id)
            case m.Truncate():
                self._guard.truncate_kv(message.handle, message.new_len)
            case m.ReleaseMemory():
                self._guard.release_memory(message.group, message.block_ids)
            case m.Prepare():
                task = asyncio.create_task(self._prepare(message))
                self._preparing.add(task)
                task.add_done_callback(self._preparing.discard)
            case m.Unreadable(call=int(call)):
                # Nothing of it was carried out: like any other refusal it stops no later step, and is reported in its turn.
                await self._landed()
                self._send(m.Failed(call, 0.0, InvalidInput.kind, one_line(message.reason)))
            case m.Unreadable():
                self._guard.unanswered(
                    "release_cache, truncate_kv or release_memory", InvalidInput(message.reason)
                )
            case m.Load() | m.StandBy() | m.Shutdown():
                raise WireError(f"{type(message).__name__} is not a call")
            case m.Step() if self._overlaps:
                await self._begin(message)
            case _:
                await self._landed()
                return not self._gave_up and await self._answer(message)
        return not self._gave_up

    async def _begin(self, step: m.Step) -> None:
        """Begin a step, which is answered after those before it."""
        before = self._out[-1] if self._out else None
        self._out.append(asyncio.create_task(self._answer_behind(step, before)))
        # Tasks run in the order of their creation: the new one has launched its step when this one goes on.
        await asyncio.sleep(0)

    async def _answer_behind(self, step: m.Step, before: asyncio.Task[None] | None) -> None:
        assert self._guard is not None
        began = time.monotonic()
        self._running_since = self._running_since or began
        answer: m.Answer
        failure: ExecutorError | None = None
        try:
            answer = self._own(await _run(self._guard, step))
        except (Exception, asyncio.CancelledError) as error:
            failure = typed(error)
            answer = _failed(step.call, 0.0, failure)
        if before is not None:
            await asyncio.wait((before,))
        try:
            # The time of a step begins with the end of the one before it.
            answer.seconds = time.monotonic() - max(began, self._answered_at)
            self._send(answer)
        except WireError as error:
            failure = typed(error)
            self._send(_failed(step.call, answer.seconds, failure))
        finally:
            if failure is not None:
                self._guard.failed(failure)
                self._gave_up |= isinstance(failure, ExecutorDied)
            self._out.popleft()
            self._answered_at = time.monotonic()
            self._running_since = self._answered_at if self._out else None
            self._stage = ""
            if self._answered_at - self._snapshot_at >= _SNAPSHOT_EVERY_S:
                self.beat()

    async def _landed(self) -> None:
        """Wait until all steps that were begun are answered."""
        while self._out:
            await asyncio.wait((self._out[-1],))

    async def _answer(self, call: m.Call) -> bool:
        assert self._guard is not None
        waited = self._take_turn() if isinstance(call, m.Step) else 0.0
        began = self._running_since = time.monotonic()
        try:
            try:
                answer = self._own(await _run(self._guard, call))
            finally:
                if self._turns is not None and isinstance(call, m.Step):
                    self._turns.give()  # before the answer is made: another model computes meanwhile
            answer.seconds = time.monotonic() - began
            if isinstance(answer, m.StepDone):
                answer.waited = waited
            self._send(answer)
            return True
        except (Exception, asyncio.CancelledError) as error:
            failure = typed(error)
            if isinstance(call, m.Step):
                self._guard.failed(failure)
            self._send(_failed(call.call, time.monotonic() - began, failure))
            return not isinstance(failure, ExecutorDied)
        finally:
            self._running_since = None
            self._stage = ""
            if time.monotonic() - self._snapshot_at >= _SNAPSHOT_EVERY_S:
                self.beat()

    def _take_turn(self) -> float:
        """Wait for the turn; returns the seconds that this took."""
        if self._turns is None:
            return 0.0
        began = time.monotonic()
        self._waits = True
        try:
            self._turns.take()
        except OSError as error:  # no locks are left, say: steps are computed all the same
            print(f"executor: steps take no turns any more: {error}", file=sys.stderr, flush=True)
            self._turns = None
        finally:
            self._waits = False
        return time.monotonic() - began

    def _own(self, answer: m.Answer) -> m.Answer:
        """Return what this rank answers: those behind rank 0 say that they are done."""
        return answer if self._rank == 0 else m.Done(answer.call, answer.seconds)

    async def _prepare(self, request: m.Prepare) -> None:
        """Compile a grammar or read an adapter concurrently with the calls, on a thread of the executor's own."""
        assert self._guard is not None
        executor = self._guard.executor
        try:
            if request.digest is None:
                await executor.prepare_grammar(request.grammar)
            else:
                await executor.prepare_adapter(request.name, request.path, request.digest)
        except Exception as error:
            failure = typed(error)
            self._send(m.Prepared(request.number, failure.kind, one_line(str(failure))))
        else:
            self._send(m.Prepared(request.number, None, ""))

    async def shutdown(self) -> None:
        """Free the executor's resources."""
        assert self._executor is not None
        await self._landed()
        await self._executor.shutdown()

    # -- how it fares --------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a sign of life, with a snapshot once there is an executor."""
        since = self._running_since
        beat = m.Heartbeat(
            self._take_snapshot(),
            self._stage,
            None if since is None else time.monotonic() - since,
            self._waits,
        )
        try:
            self._send_if_free(beat)
        except WireError:  # some odd value in a snapshot: not worth a life
            beat.snapshot = None
            self._send_if_free(beat)

    def _take_snapshot(self) -> m.Snapshot | None:
        executor = self._executor
        if executor is None:
            return None
        try:
            cache, lora = executor.cache_metrics_snapshot(), executor.lora_metrics_snapshot()
            self._snapshot = m.Snapshot(
                status=executor.status(),
                metrics=executor.metrics(),
                cache=None if cache is None else dict(cache),
                lora=None if lora is None else dict(lora),
            )
            self._snapshot_at = time.monotonic()
        except Exception as error:
            # What a lost device raises here no step may have met yet.
            fault = executor_error(error)
            if isinstance(fault, ExecutorDied):
                self._lost_device(str(fault))
            # The main thread may be changing what is being read here, or warmup has not made it yet. The last snapshot
            # stands in; the next beat tries again.
            pass
        return self._snapshot


async def _run(guard: StepGuard, call: m.Call) -> m.Answer:
    """Execute a call; the answer's `seconds` are still 0. Raises the executor's errors."""
    executor, number = guard.executor, call.call
    match call:
        case m.Step():
            return m.pack_output(number, 0.0, await guard.unified_decode(m.unpack_batch(call)))
        case m.Prefill(how="one"):
            return m.PrefillDone(number, 0.0, [await executor.prefill(m.own(_only(call.inputs)))])
        case m.Prefill():
            return m.PrefillDone(
                number, 0.0, await executor.batch_prefill([m.own(one) for one in call.inputs])
            )
        case m.Decode(how="one"):
            return m.DecodeDone(number, 0.0, [await executor.decode(m.own(_only(call.inputs)))])
        case m.Decode(how="many"):
            return m.DecodeDone(number, 0.0, await executor.batch_decode([m.own(one) for one in call.inputs]))
        case m.Decode():
            return m.DecodeDone(
                number, 0.0, await executor.forward_verify([m.own(one) for one in call.inputs])
            )
        case m.Speculate():
            request = m.own(call.request)
            output = await executor.speculative_decode(request, call.draft_tokens, call.acceptance_threshold)
            return m.SpeculateDone(number, 0.0, output)
        case m.Forward():
            return m.ForwardDone(number, 0.0, await executor.forward(m.own_tensor(call.tensor)))
        case m.LoadAdapter():
            await _adapters(executor).load_adapter(call.name, call.path, call.digest)
        case m.UnloadAdapter():
            await _adapters(executor).unload_adapter(call.name)
        case m.BeginEpoch():
            return m.EpochBegun(number, 0.0, await guard.begin_epoch(call.epoch, call.adopt))
        case m.AdoptBlocks():
            return m.Adopted(number, 0.0, await executor.adopt_blocks(call.sealed))
    return m.Done(number, 0.0)


def _failed(call: int, seconds: float, failure: ExecutorError) -> m.Failed:
    answer = m.Failed(call, seconds, failure.kind, one_line(str(failure)))
    if isinstance(failure, ExecutorDied) and failure.cause in m.OWN_CAUSES:
        answer.cause = failure.cause
    return answer


def _facts(executor: ModelExecutor) -> m.Ready:
    capabilities = executor.capabilities()
    optimal = capabilities.max_batch_size
    if isinstance(executor, BatchModelExecutor):
        optimal = executor.optimal_batch_size()
    return m.Ready(
        info=executor.info(),
        capabilities=capabilities,
        kv_layout=executor.kv_layout(),
        kv_capacity=executor.kv_capacity(),
        native_unified_decode=executor.supports_native_unified_decode(),
        optimal_batch_size=optimal,
        adapters=isinstance(executor, LoraExecutor),
        pace=executor.pace(),
        checks=executor.device_checks(),
    )


def _adapters(executor: ModelExecutor) -> LoraExecutor:
    if not isinstance(executor, LoraExecutor):
        raise Unsupported(f"{type(executor).__name__} loads no adapters")
    return executor


def _only(inputs: list[m.In]) -> m.In:
    if len(inputs) != 1:
        raise InvalidInput(f"{len(inputs)} inputs where one is expected")
    return inputs[0]


class ProgressReports:
    """Passes on what a load reports: each change of stage, each end, and in between not every number."""

    def __init__(self, tell: Callable[[str, int, int], None]) -> None:
        self._tell = tell
        self._told_at = 0.0
        self.stage = ""
        """The last one that was reported."""

    def report(self, stage: str, done: int, total: int) -> None:
        """See `ProgressCallback`."""
        stage, now = one_line(stage), time.monotonic()
        if stage != self.stage or 0 < total <= done or now - self._told_at >= _PROGRESS_EVERY_S:
            self._told_at = now
            self._tell(stage, int(done), int(total))
        self.stage = stage


def load_failure(error: BaseException) -> m.LoadFailed:
    """Return the message about an executor that could not be created or loaded."""
    failure = typed(error)
    if isinstance(failure, StepFailed) and not isinstance(error, ExecutorError):
        failure = ExecutorDied(str(failure))  # no step has failed: something unforeseen
    return m.LoadFailed(failure.kind, one_line(str(failure)))


def one_line(text: str) -> str:
    """One line that msgpack accepts: file names that are not UTF-8 reach messages as surrogates, which msgpack refuses."""
    return " ".join(text.split()).encode(errors="replace").decode()
