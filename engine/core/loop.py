"""`EngineLoop`: the task that owns every sequence. It submits steps, takes in results, rests, and recovers from failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from engine.config import EngineConfig
from engine.core.core_share import CoreShare
from engine.core.delivery import Delivery
from engine.core.disk_tier import DiskTier
from engine.core.endings import Endings
from engine.core.health import Health
from engine.core.inbox import Inbox
from engine.core.lora import LoraAdapters
from engine.core.parking import Parking
from engine.core.recovery import Recovery, RecoveryPlan
from engine.core.restart import Restart
from engine.core.scheduler import Scheduler
from engine.core.spare_memory import SpareMemory
from engine.core.steps import WITH_GRAMMARS, StepQueue
from engine.errors import EngineError, ExecutorFailed
from engine.kv.adoption import NewLife
from engine.mailbox import Outlet
from engine.observer import Observer
from engine.request import Stage
from engine.waiting.too_late import too_late
from executors.contract import ExecutorError, KvCacheHandle, ModelExecutor, NotReady, UnifiedBatch

logger = logging.getLogger("cohort.engine")

_TICK = 0.25
"""Seconds between looks at the sequences that wait while the executor is away."""
_TIMER_STEP = 1e-3
"""Seconds. Timers of event loops are no finer, and may fire a little early: what is left then is waited for in one go."""


@dataclass(eq=False)
class EngineLoop:
    """Runs the steps of one executor. `EngineCore` makes it once the executor is warm, and calls `run` as a task."""

    executor: ModelExecutor
    config: EngineConfig
    clock: Callable[[], float]
    at_rest: Callable[[], None]
    """What else to do when there has been nothing to compute for a while; milliseconds at most."""
    scheduler: Scheduler
    recovery: Recovery
    restart: Restart
    endings: Endings
    delivery: Delivery
    steps: StepQueue
    inbox: Inbox
    spare_memory: SpareMemory
    adapters: LoraAdapters
    health: Health
    observer: Observer
    parking: Parking
    tier: DiskTier | None = None
    core_share: CoreShare | None = None
    """The engine's part of cores that others compute on as well; None: it has them alone."""
    _looks_at: float | None = None
    """When the loop task next looks for sequences that have waited too long, unless an event comes first; None: never."""

    def look_at(self, at: float | None) -> None:
        """Look for sequences that have waited too long at that time of the clock, or before; None: no such sequence waits."""
        if at is not None and (self._looks_at is None or at < self._looks_at):
            self.steps.interrupt()

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run steps until the task is cancelled."""
        try:
            while True:
                self._look_after_waiting()
                if self.inbox.death is not None and not self.steps:
                    self.delivery.release()
                    await self._recover(None, self.inbox.death)
                    continue
                if self.parking.pending and not self.steps:
                    await self._park()
                    continue
                # With steps out their results come first: one of them says which step died.
                goes_on = self.inbox.death is None and not self.parking.pending
                batch = self._next_batch() if self.steps.room and goes_on else None
                self._tell_executor()
                if batch is not None:
                    self.steps.submit(batch, self._has_grammar(batch))
                    self.observer.step_submitted(batch)
                self.delivery.release()
                if batch is not None:
                    # One turn of the event loop: the step is sent, then readers run.
                    await asyncio.sleep(0)
                elif self.inbox.pending:
                    continue  # a mailbox that is full now asks for an abort
                elif self.steps:
                    await self._land()
                else:
                    await self._rest()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A bug in the engine itself: every waiting client gets an answer, and health says so.
            logger.exception("engine loop failed")
            self.health.detail = f"{type(error).__name__}: {error}"
            self._give_up(ExecutorFailed(f"the engine failed: {error}", code="engine_failed"))

    def _next_batch(self) -> UnifiedBatch | None:
        """The next step; None if nothing can be computed."""
        share, scheduler = self.core_share, self.scheduler
        if share is not None:
            share.work(bool(scheduler.running or scheduler.waiting))
            scheduler.most_tokens = share.most_tokens()
        return scheduler.schedule()

    def _has_grammar(self, batch: UnifiedBatch) -> bool:
        """Whether a sequence of a step follows a grammar. It matters where more than two steps may be out."""
        if self.steps.depth.most <= WITH_GRAMMARS:
            return False
        return any(seq.request.grammar is not None for seq in self.scheduler.sequences.by_step[batch.step_id])

    def _leave_cores(self) -> None:
        """Do not count as an engine with work, until `_next_batch` looks again."""
        if self.core_share is not None:
            self.core_share.work(False)

    def _look_after_waiting(self) -> None:
        """Apply queued commands, and drop sequences that have waited too long to be started."""
        self.inbox.apply()
        calls: set[Outlet] = set()
        for seq, error in too_late(self.scheduler.waiting, self.clock(), self.config.max_queue_wait):
            self.endings.drop(seq, error, calls)

    def _until_too_late(self) -> float | None:
        """Seconds until the first waiting sequence is over its limit; None if no sequence waits."""
        at = self._looks_at = self.scheduler.waiting.not_started.next_at()
        return None if at is None else max(_TIMER_STEP, at - self.clock())

    def _tell_executor(self) -> None:
        """Pass on what is ordered before the next step: sequences rolled back, sequences gone, KV memory that is spare."""
        for seq in self.scheduler.sequences.take_rolled_back():
            self.executor.truncate_kv(KvCacheHandle(seq.seq_id), 0)
        for seq_id in self.scheduler.sequences.take_released():
            self.executor.release_cache(seq_id)
        self.spare_memory.look()
        if self.tier is not None:
            self.tier.look()
        self.adapters.look(self.scheduler.sequences.started, self.delivery.live.values())

    async def _land(self) -> None:
        """Take in the oldest step's result. Returns early if a sequence has waited too long to be started, or a command comes
        while another step could be submitted."""
        step = await self.steps.next_result(self._until_too_late())
        if step is None:
            return
        batch, sequences = step.batch, self.scheduler.sequences
        counts = self.scheduler.journal.accepts(batch.epoch)
        try:
            output = step.result.result()
        except ExecutorError as error:
            if counts:
                seqs, seconds = sequences.by_step[batch.step_id], self.steps.seconds(step)
                self.observer.step_failed(batch, seqs, seconds, step.ended, str(error))
                await self._recover(batch, error)
            else:
                sequences.abandon(batch)
            return
        seconds = self.steps.seconds(step)
        if not counts:
            sequences.abandon(batch)
            return
        seqs = sequences.by_step[batch.step_id]
        seconds = max(
            0.0, seconds - output.waited
        )  # what other models computed meanwhile says nothing of this one
        self.scheduler.results.observe(batch, output, seconds, step.host)
        if self.core_share is not None:
            self.core_share.observe(batch.total_q_tokens(), seconds)
        gains = self.scheduler.results.commit(batch, output, step.ended)
        self.observer.step_landed(batch, output, seqs, seconds, step.ended)
        if gains.tokens or any(delta.error is None for _, delta in gains.deltas):
            self.recovery.record_progress()
        self.delivery.hold(gains)

    async def _rest(self) -> None:
        """Nothing to compute: sleep until a command comes, then let others of the same moment join its step."""
        self.steps.rest()
        self.inbox.read()
        if (timeout := self._until_too_late()) is not None:
            # A sequence waits for what only a command or the next turn can bring.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.inbox.news()
            return
        try:
            async with asyncio.timeout(self.config.integrity_check_after):
                await self.inbox.news()
        except TimeoutError:
            await self._audit()
            if not self.inbox.has_news:
                self.at_rest()
            await self.spare_memory.at_rest(self.inbox)
            await self.inbox.news()
        # One turn of the event loop: requests whose bytes have arrived already make one cohort.
        await asyncio.sleep(0)

    async def _audit(self) -> None:
        """Look whether anything leaked, until a command comes. A leak is to be seen, not a reason to stop serving."""
        try:
            for _ in self.scheduler.sequences.integrity():
                await asyncio.sleep(0)
                if self.inbox.has_news:
                    return
        except RuntimeError as error:
            logger.critical("KV accounting is broken: %s", error)
            self.health.detail = f"KV accounting is broken: {error}"

    # -- failure -------------------------------------------------------------------------------------------------------

    async def _recover(self, batch: UnifiedBatch | None, error: ExecutorError) -> None:
        """A step failed, or the executor died between steps (`batch` None): act on what `Recovery` decides. Returns only if
        the engine can go on."""
        self._leave_cores()
        health = self.health
        health.stage = Stage.DRAINING if health.stage is Stage.DRAINING else Stage.RECOVERING
        health.detail = str(error)
        plan = self.recovery.plan(batch, error)
        self.adapters.lose_all()
        self.endings.fail(plan.culprits, plan.blame)
        if plan.give_up_reason is not None:
            health.detail = plan.give_up_reason
            await self._stay_failed(plan.give_up_reason)
        await self._return(plan, error)

    async def _park(self) -> None:
        """Preempt everything and put the executor away, then wait until it is to come back: recovery from there on."""
        health, parking = self.health, self.parking
        self.delivery.release()
        self._leave_cores()
        plan = self.recovery.plan_parking()
        self.adapters.lose_all()
        await self.executor.suspend()
        health.stage = Stage.DRAINING if health.stage is Stage.DRAINING else Stage.RECOVERING
        health.detail = "parked: another model has the memory"
        parking.pending = False
        parking.done.set()
        looked_at = self.clock()
        while not parking.resume.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await parking.resume.wait()
            # Its place in the queue is kept for a request: what it waits for is another model's turn.
            now = self.clock()
            self.scheduler.waiting.extend_waits(now - looked_at)
            looked_at = now
            self._look_after_waiting()
        parking.resume.clear()
        parking.done.clear()
        await self._return(self.recovery.with_time(plan), NotReady("it was parked"), on_purpose=True)
        parking.back.set()

    async def _return(self, plan: RecoveryPlan, error: ExecutorError, on_purpose: bool = False) -> None:
        """Bring the executor back. Returns only if the engine can go on."""
        health = self.health
        life = await self._bring_back(plan, error, on_purpose)
        if life is None:
            await self._stay_failed(f"the executor cannot be restarted: {health.detail}")
        self.recovery.is_back(life)
        health.detail = ""
        if health.stage is Stage.RECOVERING:
            health.stage = Stage.READY

    async def _bring_back(self, plan: RecoveryPlan, error: ExecutorError, on_purpose: bool) -> NewLife | None:
        """Bring the executor back, and look after the sequences that wait meanwhile. None if the last try has failed. A child
        that is still loading when its time is over is killed by `shutdown`, which follows. `on_purpose`: the load, as the parking
        before it, does not count for sequences that wait to be started."""
        coming = asyncio.create_task(self.restart.begin_epoch(plan, error))
        try:
            looked_at = self.clock()
            while not (await asyncio.wait((coming,), timeout=_TICK))[0]:
                now = self.clock()
                if on_purpose:
                    self.scheduler.waiting.extend_waits(now - looked_at)
                looked_at = now
                self._look_after_waiting()
            return coming.result()
        finally:
            coming.cancel()

    async def _stay_failed(self, reason: str) -> NoReturn:
        """Fail for good, then sleep until `stop` cancels the loop."""
        self._give_up(ExecutorFailed(reason))
        while True:
            await asyncio.Event().wait()

    def _give_up(self, error: EngineError) -> None:
        """Fail for good: every sequence ends with an error, and code that waits for `failed` may end the process."""
        self.health.stage = Stage.FAILED
        self._leave_cores()
        self.delivery.release()
        try:
            self.endings.fail_all(error)
        finally:
            self.health.failed.set()
