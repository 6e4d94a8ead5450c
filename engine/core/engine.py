"""`EngineCore`: what callers see of the engine core. It handles token ids only; `engine.text` handles text.

    submit / abort / finish  ->  commands  ->  [ apply, schedule, execute, commit, publish ]  ->  mailboxes

One task, `loop.py`, owns every sequence: only it mutates sequences and KV state. All other code queues a command that is applied
between two steps, so that an abort takes effect within one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from engine.config import EngineConfig
from engine.core.assembly import make_scheduler, step_depth
from engine.core.core_share import SharedCores
from engine.core.counters import Counters
from engine.core.delivery import Delivery
from engine.core.disk_tier import DiskTier
from engine.core.endings import Endings
from engine.core.health import Health
from engine.core.inbox import Inbox
from engine.core.intake import Intake
from engine.core.journal import Journal
from engine.core.kv_share import KvShare
from engine.core.loop import EngineLoop
from engine.core.lora import LoraAdapters, LoraUse
from engine.core.parking import Parking
from engine.core.recovery import Recovery
from engine.core.restart import Restart
from engine.core.scheduler import Scheduler
from engine.core.spare_memory import SpareMemory
from engine.core.step_watch import SequenceView, StepWatch, view_of
from engine.core.steps import StepQueue
from engine.core.story_writer import StoryWriter
from engine.errors import EngineError, InvalidRequest, Unavailable
from engine.interruptions import Outage
from engine.kv.disk.disk import Disk, DiskStats, TierStats
from engine.mailbox import Outlet
from engine.metrics_sink import MetricsSink
from engine.observer import Observer, Observers
from engine.request import DraftStats, EngineStats, FinishReason, Request, Stage, StateStats
from engine.stop_limits import FLUSH_SECONDS
from engine.waiting.admission import Admission
from engine.waiting.order import make_policy
from engine.waiting.queue import WaitingQueue
from executors.contract import (
    ConfigError,
    ExecutorError,
    InvalidInput,
    ModelExecutor,
    ModelInfo,
    SampledToken,
    Unsupported,
)

logger = logging.getLogger("cohort.engine")


class EngineCore:
    """Runs an executor for many sequences. All methods belong to the event loop that called `start`."""

    def __init__(
        self,
        executor: ModelExecutor,
        config: EngineConfig | None = None,
        metrics: MetricsSink | None = None,
        clock: Callable[[], float] = time.monotonic,
        at_rest: Callable[[], None] = lambda: None,
        cores: SharedCores | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`at_rest`: what else to do when there has been nothing to compute for a while; milliseconds at most. `cores`: shared by
        engines whose executors compute on the same cores; None: this one has them alone. `disk`: keeps KV of prompts, also for
        other engines; None: none does."""
        self.executor = executor
        self.config = config or EngineConfig()
        self.clock = clock
        self.watch = StepWatch()
        self.counters = Counters(metrics or MetricsSink())
        self.observer: Observer = Observers(self.counters, StoryWriter(), self.watch)
        self._at_rest = at_rest
        self._disk = disk
        self._tier: DiskTier | None = None
        self.journal = Journal()
        self._health = Health()
        self._parking = Parking()
        self._info: ModelInfo | None = None
        self._scheduler: Scheduler | None = None
        self._intake: Intake | None = None
        self._delivery = Delivery(self.observer, clock)
        policy = make_policy(self.config.scheduling_policy, clock)
        self._waiting = WaitingQueue(policy, clock, self.config.max_queue_wait)
        self._inbox = Inbox()
        self._steps = StepQueue(executor, self._inbox, clock)
        self._adapters = LoraAdapters(
            executor, self.config.max_loras, clock, self._inbox.wake, self._adapter_failed, self.observer
        )
        self._recovery: Recovery | None = None
        self._endings: Endings | None = None
        self._share: KvShare | None = None
        self._loop: EngineLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._core_share = None if cores is None else cores.join()
        executor.set_death_listener(self._inbox.report_death)

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
            self.executor, self.config, self.journal, self._waiting, self._adapters, self.observer
        )
        self._steps.depth = step_depth(self.executor, self.config)
        self._recovery = Recovery(self._scheduler, self.config, self.clock)
        self._endings = Endings(self._scheduler.sequences, self._delivery, self._inbox, self.observer)
        self._tier = self._make_tier(self._scheduler)
        if self._tier is not None:
            try:
                await self._tier.disk.open()
            except OSError as error:
                raise ConfigError(f"kv_cache_dir: {error.filename or ''}: {error.strerror}") from None
            stats = self._tier.disk.stats
            logger.info(
                "prompts are kept on disk: %d files, %.1f of %.1f GB, read at %.0f MB/s",
                stats.num_files, stats.num_bytes / 1e9, stats.limit / 1e9, stats.read_rate / 1e6,
            )  # fmt: skip
        self._loop = self._make_loop(self._scheduler, self._recovery, self._endings)
        admission = Admission(self._info, self._scheduler.kv, self.executor.kv_capacity(), self.config)
        self._intake = Intake(
            admission, self._adapters, self._endings, self.observer, self.clock, self._loop.look_at
        )
        is_copied_from = (lambda: False) if self._tier is None else self._tier.writer.is_writing
        self._share = KvShare(self.executor, self._scheduler.kv, admission.max_model_len, is_copied_from)
        await self.executor.begin_epoch(self.journal.open_epoch())
        self._health.stage = Stage.READY
        self._task = asyncio.create_task(self._loop.run(), name="engine loop")

    def _make_tier(self, scheduler: Scheduler) -> DiskTier | None:
        """Return what keeps KV on disk, if there is one. Raises ConfigError where that cannot be done."""
        if self._disk is None:
            return None
        kv, memory = scheduler.kv, self.executor.block_memory()
        if not kv.layout.paged and not kv.layout.num_bytes:
            return None  # an encoder keeps no KV
        if not kv.prefix_caching:
            raise ConfigError(
                "kv_cache_dir: there is no prefix cache (enable_prefix_caching) to keep on disk"
            )
        if memory is None or not kv.layout.content:
            raise ConfigError(
                "kv_cache_dir: the server does not reach this executor's KV blocks: that takes one executor process on a CPU "
                "(--executor-mode process, no ranks, no Ray)"
            )
        assert self._info is not None
        tier = DiskTier(
            self._disk, self.executor, memory, scheduler.sequences, self._inbox, self.clock, self._info.name
        )
        scheduler.sequences.tier = tier
        return tier

    def _make_loop(self, scheduler: Scheduler, recovery: Recovery, endings: Endings) -> EngineLoop:
        return EngineLoop(
            self.executor,
            self.config,
            self.clock,
            self._at_rest,
            scheduler,
            recovery,
            Restart(self.executor, self._inbox, self._health, self.observer, self.clock),
            endings,
            self._delivery,
            self._steps,
            self._inbox,
            self._make_spare_memory(scheduler),
            self._adapters,
            self._health,
            self.observer,
            self._parking,
            self._tier,
            self._core_share,
        )

    def _make_spare_memory(self, scheduler: Scheduler) -> SpareMemory:
        if self._tier is None:
            return SpareMemory(self.executor, scheduler.kv, self.config, self.clock)
        is_writing = self._tier.writer.is_writing
        return SpareMemory(self.executor, scheduler.kv, self.config, self.clock, is_writing)

    async def park(self) -> None:
        """Preempt all sequences, whose mailboxes stay open, and end the executor until `resume`. Returns when its memory is free.
        Requests are still taken in, and wait. Raises Unavailable if the engine fails meanwhile."""
        if self._tier is not None and self.stage is Stage.READY:
            await self._tier.writer.flush(FLUSH_SECONDS)
        parking = self._parking
        parking.pending = True
        self._inbox.wake()
        await self._unless_failed(parking.done)

    async def resume(self) -> None:
        """Bring the executor back after `park`. Raises Unavailable if it cannot be."""
        self._parking.back.clear()
        self._parking.resume.set()
        await self._unless_failed(self._parking.back)

    @property
    def spare_kv_bytes(self) -> int:
        """Bytes of KV that `give_kv` could give now, at most; 0 while there is no executor."""
        return 0 if self._share is None or self.stage is not Stage.READY else self._share.spare_bytes

    @property
    def given_kv_bytes(self) -> int:
        """Bytes of KV that sequences do without since `give_kv`."""
        return 0 if self._share is None else self._share.given_bytes

    async def give_kv(self, num_bytes: int) -> None:
        """Do without KV memory that no sequence uses, after a step at most, until `take_kv`: see `KvShare`."""
        if (share := self._share) is not None:
            await self._inbox.ask(lambda: share.give(num_bytes) if self.stage is Stage.READY else None)

    async def take_kv(self, num_bytes: int) -> None:
        """Use at most so many bytes of KV memory again that were given."""
        if (share := self._share) is not None:
            await self._inbox.ask(lambda: share.take(num_bytes))

    async def _unless_failed(self, event: asyncio.Event) -> None:
        """Wait for an event. Raises Unavailable once the engine has failed."""
        waits = [asyncio.create_task(one.wait()) for one in (event, self.failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not event.is_set():
            raise Unavailable(f"the engine has failed: {self.detail}")

    async def drain(self, timeout: float) -> bool:
        """Admit nothing more and wait at most `timeout` seconds for what runs. True if all finished."""
        if self.stage in (Stage.READY, Stage.RECOVERING):
            self._health.stage = Stage.DRAINING
        try:
            async with asyncio.timeout(timeout):
                await self._delivery.all_answered()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End everything: what still runs gets `Unavailable`, the executor is shut down. Idempotent.

        KV that is not on disk is written first. A caller that waits no longer ends the writing, and then the rest as well.
        """
        try:
            if self._tier is not None and self.stage in (Stage.READY, Stage.DRAINING):
                await self._tier.writer.flush(FLUSH_SECONDS)
        finally:
            await self._end_all()

    async def _end_all(self) -> None:
        """End tasks, sequences and the executor."""
        if self._tier is not None:
            await self._tier.stop()
            self._tier = None
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
        if self._core_share is not None:
            self._core_share.work(False)
        await self._adapters.stop()
        if self._endings is not None:
            self._endings.fail_all(Unavailable("the server is shutting down"))
        await self.executor.shutdown()

    # -- for callers --------------------------------------------------------------------------------------------------

    def submit(
        self, request: Request, mailbox: Outlet, key: int = 0, committed: SequenceOf[SampledToken] = (),
        accepted: bool = False, started_elsewhere: bool = False,
    ) -> int:  # fmt: skip
        """Queue a request; its deltas arrive in `mailbox` under `key`. Returns the sequence id, minted here.

        `committed` are tokens that exist already (resume): they are part of the output and not sent again; where they end it,
        the end is all that comes. `accepted`: a later part of an accepted call; neither a full queue nor a drain
        refuses it. `started_elsewhere`: another engine started the call, so it is not dropped however long it waits.
        Raises InvalidRequest, ContextLengthExceeded, Overloaded or Unavailable; nothing is queued then.
        """
        if started_elsewhere:
            self._waiting.not_started.call_started(mailbox)
        return self._open_intake(accepted).submit([request], mailbox, key, committed, accepted)[0]

    def submit_choices(self, requests: SequenceOf[Request], mailbox: Outlet, first_key: int = 0) -> list[int]:
        """As `submit` for several requests with one prompt, all of them or none: they share the prompt's KV.

        Their deltas arrive under `first_key` and the keys after it.
        """
        return self._open_intake().submit(requests, mailbox, first_key)

    def _open_intake(self, accepted: bool = False) -> Intake:
        """Raises Unavailable if the engine takes no request in, or none but later parts of `accepted` calls."""
        is_open = self.stage in (Stage.READY, Stage.RECOVERING) or (accepted and self.stage is Stage.DRAINING)
        if not is_open or self._intake is None:
            raise Unavailable(f"the engine is {self.stage}")
        return self._intake

    def call(self) -> contextlib.AbstractContextManager[None]:
        """For a call that submits its parts one after the other: a drain waits until the block is left."""
        return self._delivery.call()

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
        """See `LoraAdapters.add`."""
        if self.stage not in (Stage.READY, Stage.RECOVERING):
            raise Unavailable(f"the engine is {self.stage}")
        return await self._adapters.add(digest, path, forgotten)

    def drop_adapter(self, digest: str) -> None:
        """See `LoraAdapters.drop`."""
        self._adapters.drop(digest)

    def adapter_uses(self) -> list[LoraUse]:
        """Each known adapter and the sequences that use it, as of now."""
        running = self._scheduler.running if self._scheduler else ()
        return self._adapters.uses(running, self._delivery.live.values())

    @property
    def adapter_moves(self) -> tuple[int, int]:
        """How often an adapter was loaded into the executor, and how often one gave way to another, ever."""
        return self.counters.adapter_loads, self.counters.adapter_evictions

    def abort(self, seq_id: int) -> None:
        """Drop a sequence within one step; no delta follows. Unknown or finished ids are harmless."""
        self._end(seq_id, FinishReason.ABORT)

    def finish(self, seq_id: int, num_tokens: int) -> None:
        """The text layer found a stop string: the output ends after `num_tokens` tokens; later ones do not count."""
        self._end(seq_id, FinishReason.STOP, num_tokens)

    def _end(self, seq_id: int, reason: FinishReason, num_tokens: int | None = None) -> None:
        if (endings := self._endings) is not None:
            self._inbox.put(lambda: endings.end(seq_id, reason, num_tokens))

    @property
    def num_waiting(self) -> int:
        """Sequences not running, those not yet applied included."""
        running = len(self._scheduler.running) if self._scheduler else 0
        return len(self._delivery.live) - running

    @property
    def max_model_len(self) -> int:
        """Most tokens a sequence may have, prompt and output, given model and KV pool. Raises Unavailable before start."""
        if self._intake is None:
            raise Unavailable(f"the engine is {self.stage}")
        return self._intake.admission.max_model_len

    @property
    def pace_ratio(self) -> float | None:
        """How many times as long as the executor's pace says the last steps took; None without a pace, or if few steps were
        computed."""
        forecast = self._waiting.estimate.forecast
        return None if forecast is None else forecast.proven_ratio

    def info(self) -> ModelInfo | None:
        """The loaded model, None while loading."""
        return self._info

    def stats(self) -> EngineStats:
        """Gauges as of now; never waits."""
        scheduler = self._scheduler
        counters = self.counters
        return EngineStats(
            stage=self.stage,
            running=len(scheduler.running) if scheduler else 0,
            waiting=self.num_waiting,
            kv_blocks_used=scheduler.kv.num_used if scheduler else 0,
            kv_blocks_total=scheduler.kv.num_available if scheduler else 0,
            epoch=self.journal.epoch,
            steps=counters.steps,
            preemptions=counters.preemptions,
            detail=self.detail,
            kv_fullest_group=scheduler.kv.usage if scheduler else None,
            kv_blocks_cached=scheduler.kv.num_cached if scheduler else 0,
            states=scheduler.kv.state_stats if scheduler else StateStats(),
            prompt_tokens=counters.prompt_tokens,
            kv_bytes_given=self.given_kv_bytes,
            kv_blocks_touched=scheduler.kv.num_with_memory if scheduler else 0,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            resumed=counters.resumed,
            step_tokens=scheduler.step_budget.tokens if scheduler else 0,
            steps_cut=counters.steps_cut,
            oldest_wait=self._waiting.not_started.oldest_wait(),
            drafts=scheduler.policies.lengths.stats if scheduler else DraftStats(),
        )

    def disk_stats(self) -> tuple[DiskStats, TierStats] | None:
        """Figures of the disk, shared by all engines, and of this engine's use of it; None if there is none."""
        if self._disk is None or self._tier is None:
            return None
        tier = self._tier.stats
        tier.waiting = self._tier.num_waiting
        return self._disk.stats, tier

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

    def _adapter_failed(self, digest: str, error: EngineError) -> None:
        """End the sequences that wait for an adapter which cannot be loaded."""
        if (endings := self._endings) is not None:
            self._inbox.put(lambda: endings.fail_waiting_for(digest, error))
