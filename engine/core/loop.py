"""The engine core: one task that owns every sequence. It handles token ids only; `engine.text` handles text.

    submit / abort / finish  ->  commands  ->  [ apply, schedule, execute, commit, publish ]  ->  mailboxes

Only the loop task mutates sequences and KV state. All other code queues a command that is applied between two steps, so
that an abort takes effect within one step.

    inbox.py      commands             steps.py     steps submitted          recovery.py  what follows a failure
    delivery.py   deltas to readers    health.py    state and counters
    adapters.py   LoRA adapters held by the executor     spare_memory.py   KV memory given back after a burst
    step_watch.py what each step computed, for subscribers
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import NoReturn

from engine.config import EngineConfig
from engine.core.adapters import Adapters, AdapterUse
from engine.core.assembly import make_scheduler, steps_in_flight
from engine.core.delivery import Delivery
from engine.core.health import Health
from engine.core.inbox import Inbox
from engine.core.journal import Journal
from engine.core.recovery import Recovery, RecoveryPlan
from engine.core.scheduler import Scheduler
from engine.core.spare_memory import SpareMemory
from engine.core.step_watch import SequenceView, StepWatch, view_of
from engine.core.steps import PendingStep, StepQueue
from engine.errors import EngineError, ExecutorFailed, InvalidRequest, Overloaded, Unavailable
from engine.interruptions import Outage
from engine.mailbox import Outlet
from engine.request import DraftStats, EngineStats, FinishReason, Observer, Request, Stage
from engine.sequence import Sequence, SequenceStatus
from engine.waiting.admission import Admission
from engine.waiting.order import make_policy
from engine.waiting.queue import WaitingQueue
from engine.waiting.too_late import too_late
from executors.contract import (
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    KvCacheHandle,
    ModelExecutor,
    ModelInfo,
    SampledToken,
    UnifiedBatch,
    Unsupported,
)

logger = logging.getLogger("cohort.engine")

_TICK = 0.25
"""Seconds between looks at the sequences that wait while the executor is away."""
_TIMER_STEP = 1e-3
"""Seconds. Timers of event loops are no finer, and may fire a little early: what is left then is waited for in one go."""


class EngineCore:
    """Runs an executor for many sequences. All methods belong to the event loop that called `start`."""

    def __init__(
        self,
        executor: ModelExecutor,
        config: EngineConfig | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        at_rest: Callable[[], None] = lambda: None,
    ) -> None:
        """`at_rest`: what else to do when there has been nothing to compute for a while; milliseconds at most."""
        self.executor = executor
        self.config = config or EngineConfig()
        self.observer = observer or Observer()
        self.clock = clock
        self.watch = StepWatch()
        self._at_rest = at_rest
        self.journal = Journal()
        self._health = Health()
        self._info: ModelInfo | None = None
        self._scheduler: Scheduler | None = None
        self._admission: Admission | None = None
        self._delivery = Delivery(self.observer, clock, self.watch)
        policy = make_policy(self.config.scheduling_policy, clock)
        self._waiting = WaitingQueue(policy, clock, self.config.max_queue_wait)
        self._inbox = Inbox()
        self._steps = StepQueue(executor, self._inbox, clock)
        self._adapters = Adapters(
            executor, self.config.max_loras, clock, self._inbox.wake, self._adapter_failed
        )
        self._recovery: Recovery | None = None
        self._spare_memory: SpareMemory | None = None
        self._seq_ids = itertools.count(1)
        self._let_in: weakref.WeakSet[Outlet] = weakref.WeakSet()
        """Of calls that are queued, in part at least."""
        self._task: asyncio.Task[None] | None = None
        self._death: ExecutorDied | None = None
        self._looks_at: float | None = None
        """When the loop task next looks for sequences that have waited too long, unless an event comes first; None: never."""
        executor.set_death_listener(self._heard_death)

    @property
    def stage(self) -> Stage:
        """The stage the engine is in."""
        return self._health.stage

    @property
    def detail(self) -> str:
        """What is wrong with the engine; "" if nothing is."""
        return self._health.detail

    @property
    def failed(self) -> asyncio.Event:
        """Set once the engine has failed and will not recover."""
        return self._health.failed

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model and start serving. Raises ConfigError for a model that cannot be served."""
        try:
            await self._start()
        except BaseException as error:
            self._health.stage, self._health.detail = Stage.FAILED, str(error)
            raise

    async def _start(self) -> None:
        await self.executor.warmup()
        self._info = self.executor.info()
        self._scheduler = make_scheduler(
            self.executor, self.config, self.journal, self._waiting, self._adapters
        )
        self._steps.limit = steps_in_flight(self.executor, self.config)
        self._admission = Admission(self._info, self._scheduler.kv, self.executor.kv_capacity(), self.config)
        self._spare_memory = SpareMemory(self.executor, self._scheduler.kv, self.config, self.clock)
        self._recovery = Recovery(self._scheduler, self.config, self.clock)
        await self.executor.begin_epoch(self.journal.open_epoch())
        self._health.stage = Stage.READY
        self._task = asyncio.create_task(self._run(self._scheduler, self._recovery), name="engine loop")

    async def drain(self, timeout: float) -> bool:
        """Admit nothing more and wait at most `timeout` seconds for what runs. True if all finished."""
        if self.stage in (Stage.READY, Stage.RECOVERING):
            self._health.stage = Stage.DRAINING
        try:
            async with asyncio.timeout(timeout):
                await self._delivery.nobody_waits()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End everything: what still runs gets `Unavailable`, the executor is shut down. Idempotent."""
        self._health.stage = Stage.STOPPED
        if self._task is not None:
            self._task.cancel()
            try:
                await self._task
            except asyncio.CancelledError:
                pass
            except Exception:
                logger.exception("the engine loop ended badly")
            self._task = None
        await self._steps.cancel()
        await self._adapters.stop()
        self._fail_all(Unavailable("the server is shutting down"))
        await self.executor.shutdown()

    # -- for callers --------------------------------------------------------------------------------------------------

    def submit(
        self, request: Request, mailbox: Outlet, key: int = 0, committed: SequenceOf[SampledToken] = (),
        accepted: bool = False, begun: bool = False,
    ) -> int:  # fmt: skip
        """Queue a request; its deltas arrive in `mailbox` under `key`. Returns the sequence id, minted here.

        `committed` are tokens that exist already (resume): they are part of the output and not sent again; where they end it,
        the end is all that comes. `accepted`: a later part of a call that was taken in; neither a full queue nor a drain
        refuses it. `begun`: the call was begun elsewhere, so no wait is too long for it.
        Raises InvalidRequest, ContextLengthExceeded, Overloaded or Unavailable; nothing is queued then.
        """
        if begun:
            self._waiting.not_started.call_started(mailbox)
        return self._submit([request], mailbox, key, committed, accepted)[0]

    def submit_choices(self, requests: SequenceOf[Request], mailbox: Outlet, first_key: int = 0) -> list[int]:
        """As `submit` for several requests with one prompt, all of them or none: they share the prompt's KV.

        Their deltas arrive under `first_key` and the keys after it.
        """
        return self._submit(requests, mailbox, first_key)

    def call(self) -> contextlib.AbstractContextManager[None]:
        """For a call that submits its parts one after the other: a drain waits until the block is left."""
        return self._delivery.call()

    def _submit(
        self,
        requests: SequenceOf[Request],
        mailbox: Outlet,
        key: int,
        committed: SequenceOf[SampledToken] = (),
        accepted: bool = False,
    ) -> list[int]:
        open_ = self.stage in (Stage.READY, Stage.RECOVERING) or (accepted and self.stage is Stage.DRAINING)
        if not open_ or self._admission is None:
            raise Unavailable(f"the engine is {self.stage}")
        waiting, now, continues = self.num_waiting, self.clock(), accepted or mailbox in self._let_in
        try:
            for number, request in enumerate(requests):
                goes_on = continues or number > 0
                self._adapters.check(request.adapter)
                self._admission.check(request, waiting, self._waiting, now, goes_on, len(committed))
        except Overloaded as error:
            self.observer.refused(str(error.code))
            requests[0].context.story.refuse(error.refusal)
            raise
        self._let_in.add(mailbox)
        seqs = [Sequence(next(self._seq_ids), one, mailbox, key + i) for i, one in enumerate(requests)]
        for seq in seqs:
            if len(seqs) > 1:
                seq.link_siblings(seqs)
            self._delivery.expect(seq)
            end = self.journal.restore(seq, committed) if committed else None
            if end is None:
                self._waiting.submit(seq)
            else:
                self._delivery.publish([(seq, end)])
        self._inbox.put(lambda: self._add(seqs))
        at = self._waiting.not_started.next_at()
        if at is not None and (self._looks_at is None or at < self._looks_at):
            self._steps.interrupt()
        return [seq.seq_id for seq in seqs]

    async def prepare_grammar(self, grammar: str) -> None:
        """See `TextEngine.prepare_grammar`."""
        try:
            if not self.executor.capabilities().grammars:
                message = "this server's executor cannot constrain its output to a grammar"
                raise InvalidRequest(message, code="unsupported_parameter")
            await self.executor.prepare_grammar(grammar)
        except (InvalidInput, Unsupported) as error:
            raise InvalidRequest(f"the grammar was refused: {error}", code="invalid_value") from None
        except ExecutorError as error:
            logger.warning("a grammar was not prepared: %s", error)

    async def add_adapter(self, digest: str, path: str, forgotten: Callable[[], None] = lambda: None) -> bool:
        """See `Adapters.add`."""
        if self.stage not in (Stage.READY, Stage.RECOVERING):
            raise Unavailable(f"the engine is {self.stage}")
        return await self._adapters.add(digest, path, forgotten)

    def drop_adapter(self, digest: str) -> None:
        """See `Adapters.drop`."""
        self._adapters.drop(digest)

    def adapter_uses(self) -> list[AdapterUse]:
        """Each known adapter and the sequences that use it, as of now."""
        running = self._scheduler.running if self._scheduler else ()
        return self._adapters.uses(running, self._delivery.live.values())

    @property
    def adapter_moves(self) -> tuple[int, int]:
        """How often an adapter was loaded into the executor, and how often one gave way to another, ever."""
        return self._adapters.num_loads, self._adapters.num_evictions

    def abort(self, seq_id: int) -> None:
        """Drop a sequence within one step; no delta follows. Unknown or finished ids are harmless."""
        self._inbox.put(lambda: self._end(seq_id, FinishReason.ABORT))

    def finish(self, seq_id: int, num_tokens: int) -> None:
        """The text layer found a stop string: the output ends after `num_tokens` tokens; later ones do not count."""
        self._inbox.put(lambda: self._end(seq_id, FinishReason.STOP, num_tokens))

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
        sequences = scheduler.sequences if scheduler else None
        return EngineStats(
            stage=self.stage,
            running=len(scheduler.running) if scheduler else 0,
            waiting=self.num_waiting,
            kv_blocks_used=scheduler.kv.pool.num_used if scheduler else 0,
            kv_blocks_total=scheduler.kv.pool.num_blocks if scheduler else 0,
            epoch=self.journal.epoch,
            steps=scheduler.num_steps if scheduler else 0,
            preemptions=sequences.num_preemptions if sequences else 0,
            detail=self.detail,
            kv_blocks_cached=scheduler.kv.num_cached if scheduler else 0,
            prompt_tokens=scheduler.num_prompt_tokens if scheduler else 0,
            kv_blocks_touched=scheduler.kv.pool.num_with_memory if scheduler else 0,
            prefix_queries=sequences.prefix_queries if sequences else 0,
            prefix_hits=sequences.prefix_hits if sequences else 0,
            resumed=sequences.num_resumed if sequences else 0,
            step_tokens=scheduler.step_budget.tokens if scheduler else 0,
            steps_cut=scheduler.step_budget.num_cuts if scheduler else 0,
            oldest_wait=self._waiting.not_started.oldest_wait(),
            drafts=scheduler.policies.lengths.stats if scheduler else DraftStats(),
        )

    def sequences(self, most: int) -> list[SequenceView]:
        """At most so many unfinished sequences: those that run, then those that wait, in the order of their ids."""
        running = self._scheduler.running if self._scheduler else {}
        waiting = (seq for seq in self._delivery.live.values() if seq not in running)
        return [view_of(seq) for seq in itertools.islice(itertools.chain(running, waiting), most)]

    def outages(self) -> SequenceOf[Outage]:
        """The latest times without an executor, in order."""
        return self._recovery.outages if self._recovery else ()

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every block and slot is accounted for. For idle moments and tests."""
        if self._scheduler is not None:
            self._scheduler.sequences.check_integrity()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _run(self, scheduler: Scheduler, recovery: Recovery) -> None:
        try:
            while True:
                self._look_after_waiting()
                if self._death is not None and not self._steps:
                    self._delivery.release()
                    await self._recover(recovery, None, self._death)
                    continue
                # With steps out their results come first: one of them says which step died.
                batch = scheduler.schedule() if self._steps.room and self._death is None else None
                self._tell_executor(scheduler)
                if batch is not None:
                    self._steps.submit(batch)
                self._delivery.release()
                if batch is not None:
                    # One turn of the event loop: the step is sent, then readers run.
                    await asyncio.sleep(0)
                elif self._inbox.pending:
                    continue  # a mailbox that is full now asks for an abort
                elif self._steps:
                    await self._land(scheduler, recovery)
                else:
                    await self._rest(scheduler)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A bug in the engine itself: every waiting client gets an answer, and health says so.
            logger.exception("engine loop failed")
            self._health.detail = f"{type(error).__name__}: {error}"
            self._give_up(ExecutorFailed(f"the engine failed: {error}", code="engine_failed"))

    def _look_after_waiting(self) -> None:
        """Apply queued commands, and drop sequences that have waited too long to be started."""
        self._inbox.apply()
        calls: set[Outlet] = set()
        for seq, error in too_late(self._waiting, self.clock(), self.config.max_queue_wait):
            self._drop(seq, error, calls)

    def _drop(self, seq: Sequence, late: Overloaded, calls: set[Outlet]) -> None:
        """Refuse a sequence that waits. Of all those of a call one is counted; `calls` are those that were."""
        if seq.mailbox not in calls:
            calls.add(seq.mailbox)
            self.observer.refused(str(late.code))
        seq.context.story.refuse(late.refusal)
        # Asked for, or no fault of the executor: not one of our failures.
        self._fail([seq], late, FinishReason.ABORT)

    def _until_too_late(self) -> float | None:
        """Seconds until the first waiting sequence is over its limit; None if no sequence waits."""
        at = self._looks_at = self._waiting.not_started.next_at()
        return None if at is None else max(_TIMER_STEP, at - self.clock())

    def _tell_executor(self, scheduler: Scheduler) -> None:
        """Pass on what is ordered before the next step: sequences rolled back, sequences gone, KV memory that is spare."""
        for seq in scheduler.sequences.take_rolled_back():
            self.executor.truncate_kv(KvCacheHandle(seq.seq_id), 0)
        for seq_id in scheduler.sequences.take_released():
            self.executor.release_cache(seq_id)
        if self._spare_memory is not None:
            self._spare_memory.look()
        self._adapters.look(scheduler.sequences.started, self._delivery.live.values())

    async def _land(self, scheduler: Scheduler, recovery: Recovery) -> None:
        """Take in the oldest step's result. Returns early if a sequence has waited too long to be started, or a command comes
        while another step could be submitted."""
        step = await self._steps.next_result(self._until_too_late())
        if step is None:
            return
        try:
            output = step.result.result()
        except ExecutorError as error:
            if self.journal.accepts(step.batch.epoch):
                if seqs := self._watched(scheduler, step):
                    self.watch.failed(step.batch, seqs, self._steps.seconds(step), self.clock(), str(error))
                await self._recover(recovery, step.batch, error)
            else:
                scheduler.sequences.abandon(step.batch)
            return
        seqs = self._watched(scheduler, step)
        scheduler.observe(step.batch, output, seconds := self._steps.seconds(step))
        deltas = scheduler.commit(step.batch, output)
        if seqs:
            self.watch.landed(step.batch, output, seqs, seconds, self.clock())
        if any(delta.error is None for _, delta in deltas):
            recovery.gave_something()
        self._delivery.hold(deltas)

    def _watched(self, scheduler: Scheduler, step: PendingStep) -> list[Sequence]:
        """The sequences of a step that subscribers are to hear of; none if there are no subscribers."""
        if not self.watch.active or not self.journal.accepts(step.batch.epoch):
            return []
        return scheduler.sequences.by_step.get(step.batch.step_id, [])

    async def _rest(self, scheduler: Scheduler) -> None:
        """Nothing to compute: sleep until a command comes, then let others of the same moment join its step."""
        self._inbox.read()
        if (timeout := self._until_too_late()) is not None:
            # A sequence waits for what only a command or the next turn can bring.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._inbox.news()
            return
        try:
            async with asyncio.timeout(self.config.integrity_check_after):
                await self._inbox.news()
        except TimeoutError:
            await self._audit(scheduler)
            if not self._inbox.has_news:
                self._at_rest()
            if self._spare_memory is not None:
                await self._spare_memory.at_rest(self._inbox)
            await self._inbox.news()
        # One turn of the event loop: requests whose bytes have arrived already make one cohort.
        await asyncio.sleep(0)

    async def _audit(self, scheduler: Scheduler) -> None:
        """Look whether anything leaked, until a command comes. A leak is to be seen, not a reason to stop serving."""
        try:
            for _ in scheduler.sequences.integrity():
                await asyncio.sleep(0)
                if self._inbox.has_news:
                    return
        except RuntimeError as error:
            logger.critical("KV accounting is broken: %s", error)
            self._health.detail = f"KV accounting is broken: {error}"

    # -- commands, applied by the loop task ------------------------------------------------------------------------------

    def _add(self, seqs: Iterable[Sequence]) -> None:
        for seq in seqs:
            # Failed or aborted before the loop applied the command.
            if self._scheduler is not None and seq.seq_id in self._delivery.live:
                self._scheduler.sequences.add(seq)

    def _end(self, seq_id: int, reason: FinishReason, num_tokens: int | None = None) -> None:
        seq = self._delivery.live.get(seq_id)
        if seq is None or self._scheduler is None:
            return
        if num_tokens is not None:
            self.journal.cut(seq, num_tokens)
        self._scheduler.sequences.finish(seq, reason)
        self._delivery.gone(seq)

    def _adapter_failed(self, digest: str, error: EngineError) -> None:
        """End the sequences that wait for an adapter which cannot be loaded."""
        self._inbox.put(
            lambda: self._fail(
                [
                    seq
                    for seq in list(self._delivery.live.values())
                    if seq.request.adapter == digest and seq.status is not SequenceStatus.RUNNING
                ],
                error,
            )
        )

    # -- failure ---------------------------------------------------------------------------------------------------------

    def _heard_death(self, death: ExecutorDied) -> None:
        """The executor died, maybe with no step in flight: wake the loop, which recovers at once."""
        self._death = death
        self._inbox.wake()

    async def _recover(self, recovery: Recovery, batch: UnifiedBatch | None, error: ExecutorError) -> None:
        """A step failed, or the executor died between steps (`batch` None): act on what `Recovery` decides. Returns only if
        the engine can go on."""
        health = self._health
        health.stage = Stage.DRAINING if health.stage is Stage.DRAINING else Stage.RECOVERING
        health.detail = str(error)
        plan = recovery.plan(batch, error)
        self._adapters.lose_all()
        self._fail(plan.culprits, plan.blame)
        if plan.hopeless is not None:
            health.detail = plan.hopeless
            await self._stay_failed(plan.hopeless)
        if not await self._restart(plan, error):
            await self._stay_failed(f"the executor cannot be restarted: {health.detail}")
        recovery.is_back()
        health.detail = ""
        if health.stage is Stage.RECOVERING:
            health.stage = Stage.READY

    async def _restart(self, plan: RecoveryPlan, error: ExecutorError) -> bool:
        """Bring the executor back, and look after the sequences that wait meanwhile. False if the last try has failed. A child
        that is still loading when its time is over is killed by `shutdown`, which follows."""
        coming = asyncio.create_task(self._begin_epoch(plan, error))
        try:
            while not (await asyncio.wait((coming,), timeout=_TICK))[0]:
                self._look_after_waiting()
            return coming.result()
        finally:
            coming.cancel()

    async def _begin_epoch(self, plan: RecoveryPlan, error: ExecutorError) -> bool:
        """Begin the plan's epoch, trying again after errors; False if no further try is to be made. `error` ended the epoch
        before."""
        tries, health = plan.tries, self._health
        while True:
            self._count_restart(error)
            timeout = tries.load_timeout(self.clock())
            try:
                async with asyncio.timeout(timeout) as over:
                    await self.executor.begin_epoch(plan.epoch)
                return True
            except TimeoutError:
                if not over.expired():
                    raise  # the executor's own, which is no such error: a bug
                health.detail = f"its load had not ended after {timeout:.0f} s"
                logger.error("restart failed: %s", health.detail)
                return False
            except ExecutorError as failure:
                error, health.detail = failure, str(failure)
                logger.error("restart failed, next try in %.1f s: %s", tries.pause, error)
            if (pause := tries.next_pause(self.clock())) is None:
                return False
            await asyncio.sleep(pause)

    def _count_restart(self, error: ExecutorError) -> None:
        """The executor is about to be brought back: a death heard from here on is another one. A restart is counted if it
        follows a death, heard or raised as `error`."""
        death, self._death = self._death or (error if isinstance(error, ExecutorDied) else None), None
        if death is not None:
            self.observer.restarted(death.cause)

    async def _stay_failed(self, reason: str) -> NoReturn:
        """Fail for good, then sleep until `stop` cancels the loop."""
        self._give_up(ExecutorFailed(reason))
        while True:
            await asyncio.Event().wait()

    def _give_up(self, error: EngineError) -> None:
        """Fail for good: every sequence ends with an error, and code that waits for `failed` may end the process."""
        self._health.stage = Stage.FAILED
        self._delivery.release()
        try:
            self._fail_all(error)
        finally:
            self.failed.set()

    def _fail(
        self, seqs: Iterable[Sequence], error: EngineError, reason: FinishReason = FinishReason.ERROR
    ) -> None:
        for seq in seqs:
            if self._scheduler is not None and seq.status is not SequenceStatus.FINISHED:
                self._scheduler.sequences.finish(seq, reason)
            self._delivery.fail(seq, error)

    def _fail_all(self, error: EngineError) -> None:
        """End every sequence with an error, even if a bug has left the state such that ending one fails."""
        try:
            self._inbox.apply()
        except Exception:
            logger.exception("a command failed")
        for seq in list(self._delivery.live.values()):
            try:
                self._fail([seq], error)
            except Exception:
                logger.exception("sequence %d did not end as it should", seq.seq_id)
                self._delivery.fail(seq, error)
