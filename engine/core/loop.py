"""The engine core: one task that owns every sequence. Token ids only; text is `engine.text`'s business.

    submit / abort / finish  ->  commands  ->  [ apply, schedule, execute, commit, publish ]  ->  mailboxes

Only the loop task mutates sequences and KV state. Everything else leaves a command that is applied between two steps, so
that an abort takes effect within one step.

Longer than other files: what callers ask, the loop and recovery share every field. What could be told apart is (`delivery.py`,
`backlog.py`, `recovery.py`); callers' half is to be next (docs/roadmap.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from engine.core.admission import Admission
from engine.core.backlog import Backlog
from engine.core.config import MAX_FAILED_STEPS, MAX_FRUITLESS_RESTARTS, EngineConfig
from engine.core.delivery import Delivery
from engine.core.journal import Journal
from engine.core.mailbox import Mailbox
from engine.core.policies import Policies
from engine.core.recovery import restart
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence, SequenceStatus
from engine.errors import DeadlinePassed, EngineError, ExecutorFailed, InvalidRequest, Unavailable
from engine.kv.kv_cache_manager import KvCacheManager
from engine.request import EngineStats, FinishReason, Observer, Request, Stage
from executors.contract import (
    ConfigError,
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    KvCacheHandle,
    ModelExecutor,
    ModelInfo,
    SampledToken,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
)

logger = logging.getLogger("cohort.engine")

_DEADLINE_TICK = 0.25
"""Seconds between looks at deadlines while the executor is away."""


@dataclass(slots=True)
class _Flight:
    """A step that was submitted and whose result is not in yet."""

    batch: UnifiedBatch
    result: asyncio.Task[UnifiedOutput]
    began: float
    """When it was submitted, or when the step before it was done, if that came later."""


class EngineCore:
    """Runs an executor for many sequences. All methods belong to the event loop that called `start`."""

    def __init__(
        self,
        executor: ModelExecutor,
        config: EngineConfig | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.config = config or EngineConfig()
        self.observer = observer or Observer()
        self.clock = clock
        self.journal = Journal()
        self.stage = Stage.LOADING
        self.detail = ""
        self.failed = asyncio.Event()
        """Set once the engine has given up for good."""
        self._info: ModelInfo | None = None
        self._scheduler: Scheduler | None = None
        self._admission: Admission | None = None
        self._delivery = Delivery(self.observer, clock)
        self._backlog = Backlog()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self._seq_ids = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self._flights: deque[_Flight] = deque()
        self._max_in_flight = 1
        self._death: ExecutorDied | None = None
        self._fruitless = 0
        """Deaths since the last step that gave anything."""
        executor.set_death_listener(self._heard_death)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model and begin to serve. Raises ConfigError for a model that cannot be served."""
        try:
            await self.executor.warmup()
        except BaseException as error:
            self.stage, self.detail = Stage.FAILED, str(error)
            raise
        self._info = self.executor.info()
        kv = KvCacheManager(self.executor.kv_layout(), self._info.name, self.config.prefix_caching)
        limits = self.executor.capabilities()
        if self.config.num_speculative_tokens and not limits.speculative:
            raise ConfigError("num_speculative_tokens: this executor does not verify drafts")
        most_tokens = limits.max_batched_tokens or self.config.max_num_batched_tokens
        self._scheduler = Scheduler(
            kv,
            self.journal,
            max_num_seqs=min(self.config.max_num_seqs, limits.max_batch_size),
            max_num_batched_tokens=min(self.config.max_num_batched_tokens, most_tokens),
            policies=Policies.of(self.config),
            backlog=self._backlog,
        )
        # On a CPU the host's work takes the cores that compute the step: overlap then makes streams less even.
        apart = limits.devices != ("cpu",)
        wanted = self.config.max_in_flight or (limits.max_in_flight if apart else 1)
        self._max_in_flight = min(wanted, limits.max_in_flight)
        if wanted > limits.max_in_flight:
            logger.warning("max_in_flight %d: the executor takes %d", wanted, limits.max_in_flight)
        self._admission = Admission(self._info, kv, self.executor.kv_capacity(), self.config)
        await self.executor.begin_epoch(self.journal.open_epoch())
        self.stage = Stage.READY
        self._task = asyncio.create_task(self._run(), name="engine loop")

    async def drain(self, timeout: float) -> bool:
        """Admit nothing more and wait at most `timeout` seconds for what runs. True if all finished."""
        if self.stage in (Stage.READY, Stage.RECOVERING):
            self.stage = Stage.DRAINING
        try:
            async with asyncio.timeout(timeout):
                await self._delivery.nobody_waits()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End everything: what still runs gets `Unavailable`, the executor is shut down. Idempotent."""
        self.stage = Stage.STOPPED
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for flight in self._flights:
            flight.result.cancel()
        await asyncio.gather(*(flight.result for flight in self._flights), return_exceptions=True)
        self._flights.clear()
        self._fail_all(Unavailable("the server is shutting down"))
        await self.executor.shutdown()

    # -- what callers do -----------------------------------------------------------------------------------------------

    def submit(
        self, request: Request, mailbox: Mailbox, key: int = 0, committed: SequenceOf[SampledToken] = ()
    ) -> int:
        """Queue a request; its deltas arrive in `mailbox` under `key`. Returns the sequence id, minted here.

        `committed` are tokens that exist already (resume): they are part of the output and not sent again.
        Raises InvalidRequest, ContextLengthExceeded, Overloaded or Unavailable; nothing is queued then.
        """
        return self._submit([request], mailbox, key, committed)[0]

    def submit_choices(
        self, requests: SequenceOf[Request], mailbox: Mailbox, first_key: int = 0
    ) -> list[int]:
        """As `submit` for several requests with one prompt, all of them or none: they share the prompt's KV.

        Their deltas arrive under `first_key` and the keys after it.
        """
        return self._submit(requests, mailbox, first_key)

    def _submit(
        self,
        requests: SequenceOf[Request],
        mailbox: Mailbox,
        key: int,
        committed: SequenceOf[SampledToken] = (),
    ) -> list[int]:
        if self.stage not in (Stage.READY, Stage.RECOVERING) or self._admission is None:
            raise Unavailable(f"the engine is {self.stage}")
        waiting, now = self.num_waiting, self.clock()
        for number, request in enumerate(requests):
            self._admission.check(request, waiting + number, self._backlog, now)
        seqs = [Sequence(next(self._seq_ids), one, mailbox, key + i) for i, one in enumerate(requests)]
        for seq in seqs:
            seq.siblings = seqs if len(seqs) > 1 else []
            self.journal.restore(seq, committed)
            self._delivery.expect(seq)
            self._backlog.enter(seq)
        self._command(lambda: self._add(seqs))
        return [seq.seq_id for seq in seqs]

    async def prepare_grammar(self, grammar: str) -> None:
        """See `TextEngine.prepare_grammar`."""
        try:
            if not self.executor.capabilities().grammars:
                message = "this server's executor cannot hold its output to a grammar"
                raise InvalidRequest(message, code="unsupported_parameter")
            await self.executor.prepare_grammar(grammar)
        except (InvalidInput, Unsupported) as error:
            raise InvalidRequest(f"the grammar was refused: {error}", code="invalid_value") from None
        except ExecutorError as error:
            logger.warning("a grammar was not prepared: %s", error)

    def abort(self, seq_id: int) -> None:
        """Drop a sequence within one step; no delta follows. Unknown or finished ids are harmless."""
        self._command(lambda: self._end(seq_id, FinishReason.ABORT))

    def finish(self, seq_id: int, num_tokens: int) -> None:
        """The text layer found a stop string: the output ends after `num_tokens` tokens; later ones do not count."""
        self._command(lambda: self._end(seq_id, FinishReason.STOP, num_tokens))

    @property
    def num_waiting(self) -> int:
        """Sequences not running, those not yet applied included."""
        running = len(self._scheduler.running) if self._scheduler else 0
        return len(self._delivery.live) - running

    @property
    def max_model_len(self) -> int:
        """Most tokens a sequence may have, prompt and output, given model and KV pool. Raises Unavailable before start."""
        if self._admission is None:
            raise Unavailable(f"the engine is {self.stage}")
        return self._admission.max_model_len

    def info(self) -> ModelInfo | None:
        """The loaded model, None while loading."""
        return self._info

    def stats(self) -> EngineStats:
        """Gauges as of now; never waits."""
        scheduler = self._scheduler
        return EngineStats(
            stage=self.stage,
            running=len(scheduler.running) if scheduler else 0,
            waiting=self.num_waiting,
            kv_blocks_used=scheduler.kv.pool.num_used if scheduler else 0,
            kv_blocks_total=scheduler.kv.pool.num_blocks if scheduler else 0,
            epoch=self.journal.epoch,
            steps=scheduler.num_steps if scheduler else 0,
            preemptions=scheduler.num_preemptions if scheduler else 0,
            detail=self.detail,
            kv_blocks_cached=scheduler.kv.num_cached if scheduler else 0,
            prefix_queries=scheduler.prefix_queries if scheduler else 0,
            prefix_hits=scheduler.prefix_hits if scheduler else 0,
            resumed=scheduler.num_resumed if scheduler else 0,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every block and slot is accounted for. For idle moments and tests."""
        if self._scheduler is not None:
            self._scheduler.check_integrity()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        assert self._scheduler is not None
        scheduler = self._scheduler
        try:
            while True:
                self._apply_commands()
                self._drop_late()
                if self._death is not None:
                    await self._recover(scheduler, None, self._death)
                    continue
                room = len(self._flights) < self._max_in_flight
                batch = scheduler.schedule() if room else None
                self._tell_executor(scheduler)
                if batch is not None:
                    await self._take_off(batch)
                elif self._flights:
                    await self._land(scheduler)
                else:
                    await self._rest(scheduler)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A bug in the engine itself: every waiting client gets an answer, and health says so.
            logger.exception("engine loop failed")
            self.detail = f"{type(error).__name__}: {error}"
            self._give_up(ExecutorFailed(f"the engine failed: {error}", code="engine_failed"))

    def _apply_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _drop_late(self) -> None:
        """Who was not begun by their deadline need not be."""
        for seq in self._backlog.expired(self.clock()):
            late = DeadlinePassed(
                "the deadline passed before this request was begun", self._backlog.retry_after()
            )
            self._fail([seq], late)

    def _tell_executor(self, scheduler: Scheduler) -> None:
        """Pass on what is ordered before the next step: sequences rolled back and sequences gone."""
        for seq in scheduler.take_rolled_back():
            self.executor.truncate_kv(KvCacheHandle(seq.seq_id), 0)
        for seq_id in scheduler.take_released():
            self.executor.release_cache(seq_id)

    async def _take_off(self, batch: UnifiedBatch) -> None:
        """Submit a step; it is on its way when this returns."""
        step = asyncio.create_task(self.executor.unified_decode(batch), name=f"step {batch.step_id}")
        self._flights.append(_Flight(batch, step, self.clock()))
        await asyncio.sleep(0)

    async def _land(self, scheduler: Scheduler) -> None:
        """Take in the oldest step's result. Returns early if a command comes while another step could be submitted."""
        flight = self._flights[0]
        if len(self._flights) < self._max_in_flight and not flight.result.done():
            await self._command_or(flight.result)
            if not flight.result.done():
                return
        try:
            output = await flight.result
        except ExecutorError as error:
            self._flights.popleft()
            if self.journal.accepts(flight.batch.epoch):
                await self._recover(scheduler, flight.batch, error)
            else:
                scheduler.abandon(flight.batch)
            return
        self._flights.popleft()
        now = self.clock()
        seconds = now - flight.began
        scheduler.observe(flight.batch, seconds)
        if self._flights:
            self._flights[0].began = now
        deltas = scheduler.commit(flight.batch, output)
        if any(delta.error is None for _, delta in deltas):
            self._fruitless = 0
        ended = sum(delta.finish_reason is not None for _, delta in deltas)
        self._backlog.observe(seconds, flight.batch.total_q_tokens(), ended)
        self._delivery.publish(deltas)

    async def _command_or(self, result: asyncio.Task[UnifiedOutput]) -> None:
        """Wait for a step's end or a command, whichever comes first."""
        self._wake.clear()  # commands so far are applied: nothing was awaited since
        command = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait((result, command), return_when=asyncio.FIRST_COMPLETED)
        finally:
            command.cancel()

    async def _rest(self, scheduler: Scheduler) -> None:
        """Nothing to compute: sleep until a command comes, then let others of the same moment join its step."""
        self._wake.clear()
        try:
            async with asyncio.timeout(self.config.integrity_check_after):
                await self._wake.wait()
        except TimeoutError:
            self._audit(scheduler)
            await self._wake.wait()
        # One turn of the event loop: requests whose bytes have arrived already make one cohort.
        await asyncio.sleep(0)

    def _audit(self, scheduler: Scheduler) -> None:
        """Idle for a while: look whether anything leaked. A leak is a defect to be seen, not a reason to stop serving."""
        try:
            scheduler.check_integrity()
        except RuntimeError as error:
            logger.critical("KV accounting is broken: %s", error)
            self.detail = f"KV accounting is broken: {error}"

    # -- commands, applied by the loop task ------------------------------------------------------------------------------

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _add(self, seqs: Iterable[Sequence]) -> None:
        for seq in seqs:
            # Failed or aborted before the loop came round to it.
            if self._scheduler is not None and seq.seq_id in self._delivery.live:
                self._scheduler.add(seq)

    def _end(self, seq_id: int, reason: FinishReason, num_tokens: int | None = None) -> None:
        seq = self._delivery.live.get(seq_id)
        if seq is None or self._scheduler is None:
            return
        if num_tokens is not None:
            self.journal.cut(seq, num_tokens)
        self._scheduler.finish(seq, reason)
        self._delivery.gone(seq)

    # -- failure ---------------------------------------------------------------------------------------------------------

    def _heard_death(self, death: ExecutorDied) -> None:
        """The executor died, maybe with no step out: the loop looks after it at once."""
        self._death = death
        self._wake.set()

    async def _recover(self, scheduler: Scheduler, batch: UnifiedBatch | None, error: ExecutorError) -> None:
        """A step failed, or the executor died between steps (`batch` None): everything is recomputed from what is committed.

        Nothing is lost but time, unless a sequence was in several failed steps in a row: then it gets a typed error.
        """
        logger.error("executor failed: %s: %s", type(error).__name__, error)
        draining = self.stage is Stage.DRAINING
        self.stage, self.detail = (Stage.DRAINING if draining else Stage.RECOVERING), str(error)
        epoch = self.journal.open_epoch()
        suspects = scheduler.rewind(batch)
        self._fruitless += isinstance(error, ExecutorDied)
        code = "executor_died" if isinstance(error, ExecutorDied) else error.kind
        culprits = [seq for seq in suspects if seq.num_failed_steps >= MAX_FAILED_STEPS]
        scheduler.num_resumed -= len(culprits)
        self._fail(culprits, ExecutorFailed(f"the executor failed: {error}", code=code))
        if self._fruitless > MAX_FRUITLESS_RESTARTS:
            self.detail = f"the executor died {self._fruitless} times without a token in between: {error}"
            self._give_up(ExecutorFailed(self.detail))
            await asyncio.Event().wait()
        if not await self._restart(epoch):
            self._give_up(ExecutorFailed(f"the executor cannot be restarted: {self.detail}"))
            await asyncio.Event().wait()  # nothing more to do until stop() cancels the loop
        self._death = None
        if isinstance(error, ExecutorDied):
            self.observer.restarted(error.cause)
        self.detail = ""
        if self.stage is Stage.RECOVERING:
            self.stage = Stage.READY

    async def _restart(self, epoch: int) -> bool:
        """See `restart`; deadlines of who waits pass meanwhile."""
        coming = asyncio.create_task(restart(self.executor, epoch, self.config, self.clock, self._note))
        try:
            while not (await asyncio.wait((coming,), timeout=_DEADLINE_TICK))[0]:
                self._apply_commands()
                self._drop_late()
            return coming.result()
        finally:
            coming.cancel()

    def _note(self, detail: str) -> None:
        self.detail = detail

    def _give_up(self, error: EngineError) -> None:
        """Nothing can be served any more: everybody is told, and whoever waits for `failed` may end the process."""
        self.stage = Stage.FAILED
        self._fail_all(error)
        self.failed.set()

    def _fail(self, seqs: Iterable[Sequence], error: EngineError) -> None:
        for seq in seqs:
            if self._scheduler is not None and seq.status is not SequenceStatus.FINISHED:
                self._scheduler.finish(seq, FinishReason.ERROR)
            self._delivery.fail(seq, error)

    def _fail_all(self, error: EngineError) -> None:
        self._apply_commands()
        self._fail(list(self._delivery.live.values()), error)
