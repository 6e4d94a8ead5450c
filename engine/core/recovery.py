"""Decides after a failure which sequences caused it and how the executor is restarted. The loop acts on the decision."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from engine.config import MAX_FAILED_STEPS, MAX_FRUITLESS_RESTARTS, MAX_RESTART_PAUSE, EngineConfig
from engine.core.scheduler import Scheduler
from engine.errors import BrokeExecutor
from engine.interruptions import Outage
from engine.kv.adoption import NewLife
from engine.sequence import Sequence
from executors.contract import (
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    OutOfMemory,
    SealedBlocks,
    UnifiedBatch,
    Unsupported,
)

logger = logging.getLogger("cohort.engine")

MORE_DEATHS_FROM_OUTSIDE = 2
"""Further deaths, all while a sequence is computed alone, that make it a culprit where each death was a signal or silence:
something may kill executors faster than tokens come, or the system may kill them because of this very request."""
DEATHS_BEFORE_EMPTYING = 2
"""Deaths without a token in between after which no KV is adopted."""
MAX_OUTAGES = 16
"""Outages that are remembered."""
LONGEST_LOAD = 4
"""A load may take this many times `recovery_timeout` beyond it."""
PARKED = "parked"
"""Cause of an outage that was ordered."""
_STEADY = 60.0
"""Seconds after which the death of an executor that was brought back is not blamed on its start: that is no restart loop."""


class RestartTries:
    """Times the restarts of the executor: growing pauses, until `recovery_timeout` seconds are over."""

    def __init__(self, config: EngineConfig, now: float) -> None:
        self.pause = config.restart_pause
        """Seconds before the next try."""
        self._deadline = now + config.recovery_timeout
        self._longest_load = LONGEST_LOAD * config.recovery_timeout

    def load_timeout(self, now: float) -> float:
        """Seconds that a load beginning now may take. It may go on beyond `recovery_timeout`: a slow disk is worth waiting for,
        and /health shows it. A load that never ends must not be waited for."""
        return max(0.0, self._deadline - now) + self._longest_load

    def next_pause(self, now: float) -> float | None:
        """Record a failed try. Returns the seconds to wait before the next one, None if there is none."""
        pause = self.pause
        if now + pause > self._deadline:
            return None
        self.pause = min(2 * pause, MAX_RESTART_PAUSE)
        return pause


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What the loop has to do after a failure."""

    epoch: int
    """The epoch to begin; it is already open."""
    culprits: list[Sequence]
    """Sequences that broke the executor; each one ends with the error `blame`."""
    blame: BrokeExecutor
    give_up_reason: str | None
    """The reason to stop serving; None if the executor is to be restarted."""
    tries: RestartTries
    adopt: SealedBlocks | None = None
    """Blocks that the next life may adopt; None: its memory is emptied."""


class Recovery:
    """Decides what follows a failed step or the executor's death.

    Used by the loop task only; waits for nothing and sends nothing to readers.
    `Sequences.rewind` says what becomes of the sequences."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._config = config
        self._clock = clock
        self._fruitless = 0
        """Deaths since the last token."""
        self._culprit_prompts: set[int] = set()
        """Hashes of the prompts of all culprits since the last token."""
        self._back_at = clock()
        self.outages: deque[Outage] = deque(maxlen=MAX_OUTAGES)
        """The latest times without an executor. The last one is under way if it has no end."""

    def record_progress(self) -> None:
        """Record that a step gave a token: the restarts before it succeeded."""
        self._fruitless = 0
        self._culprit_prompts.clear()

    def is_back(self, life: NewLife) -> None:
        """Record that the executor was restarted."""
        scheduler = self._scheduler
        if scheduler.kv.seals.active:
            blocks = scheduler.sequences.settle(life)
            if blocks.total:
                scheduler.sequences.observer.blocks_adopted(blocks.num_kept, blocks.num_damaged)
                message = "%d of %d KV blocks kept, %d damaged"
                logger.warning(message, blocks.num_kept, blocks.total, blocks.num_damaged)
            if blocks.total_snapshots:
                message = "%d of %d snapshots of states kept, %d damaged"
                num_damaged = blocks.num_damaged_snapshots
                logger.warning(message, blocks.num_snapshots, blocks.total_snapshots, num_damaged)
        else:
            scheduler.kv.seals.begin_life(life.fingerprint)
        self._back_at = self._clock()
        if self.outages:
            self.outages[-1].ended = self._back_at

    def plan(self, batch: UnifiedBatch | None, error: ExecutorError) -> RecoveryPlan:
        """A step failed, or the executor died between steps (`batch` None): opens an epoch and rewinds all sequences to what is
        committed. Returns what else is to be done.

        Nothing is lost but time, unless a sequence was in several failed steps in a row: it is a culprit then. A step that
        found no memory counts as failed only when it cannot be made smaller.
        """
        shrunk = self._shrunk(batch, error)
        if not shrunk:
            logger.error("executor failed: %s: %s", type(error).__name__, error)
        scheduler = self._scheduler
        outage = Outage(scheduler.journal.epoch, self._clock(), _word(error))
        self.outages.append(outage)
        epoch = scheduler.journal.open_epoch()
        num_running = len(scheduler.running)
        died = isinstance(error, ExecutorDied)
        if self._clock() - self._back_at > _STEADY:
            self._fruitless = 0
        self._fruitless += died
        keep = scheduler.kv.seals.active and self._may_keep(error, shrunk)
        # What was refused has its reason in the step: no need to try it again as it was.
        suspects = scheduler.sequences.rewind(
            batch,
            isinstance(error, (InvalidInput, Unsupported)),
            blameless=shrunk,
            cause=outage.cause,
            outage=outage,
            keep=keep,
        )
        by_chance = isinstance(error, ExecutorDied) and error.from_outside
        most = MAX_FAILED_STEPS + (MORE_DEATHS_FROM_OUTSIDE if by_chance else 0)
        culprits = [seq for seq in suspects if seq.num_failed_steps >= most]
        scheduler.sequences.observer.sequences_rewound(0 if shrunk else num_running - len(culprits))
        self._ignore_repeated_culprits(culprits)
        code = "executor_died" if died else error.kind
        what = "failed" if code != OutOfMemory.kind else "has no memory for this request, even by itself"
        blame = BrokeExecutor(f"the executor {what}: {error}", code=code)
        give_up_reason = None
        if self._fruitless > MAX_FRUITLESS_RESTARTS:
            give_up_reason = f"the executor died {self._fruitless} times without a token in between: {error}"
        tries = RestartTries(self._config, self._clock())
        return RecoveryPlan(
            epoch, culprits, blame, give_up_reason, tries, scheduler.kv.seals.offer() if keep else None
        )

    def plan_parking(self) -> RecoveryPlan:
        """The executor is about to be put away: opens an epoch and rewinds all sequences to what is committed. No sequence is to
        blame, and no KV is kept."""
        scheduler = self._scheduler
        outage = Outage(scheduler.journal.epoch, self._clock(), PARKED)
        self.outages.append(outage)
        epoch = scheduler.journal.open_epoch()
        num_running = len(scheduler.running)
        scheduler.sequences.rewind(blameless=True, cause=PARKED, outage=outage)
        scheduler.sequences.observer.sequences_rewound(num_running)
        blame = BrokeExecutor("the executor was parked", code=PARKED)
        return RecoveryPlan(epoch, [], blame, None, RestartTries(self._config, self._clock()))

    def with_time(self, plan: RecoveryPlan) -> RecoveryPlan:
        """The plan with tries that count from now."""
        return replace(plan, tries=RestartTries(self._config, self._clock()))

    def _may_keep(self, error: ExecutorError, shrunk: bool) -> bool:
        """Whether blocks may outlive this failure. Not a second death without a token in between: what was adopted may be its
        cause. Nor one for want of memory: what outlives the process is part of what was too much."""
        if isinstance(error, OutOfMemory):
            return shrunk
        return self._fruitless < DEATHS_BEFORE_EMPTYING and not (
            isinstance(error, ExecutorDied) and error.cause == "memory"
        )

    def _shrunk(self, batch: UnifiedBatch | None, error: ExecutorError) -> bool:
        """Whether the step failed for want of memory, and the next ones are smaller."""
        if batch is None or not isinstance(error, OutOfMemory):
            return False
        tokens, budget = batch.total_q_tokens(), self._scheduler.step_budget
        if not budget.shrink(tokens):
            return False
        self._scheduler.sequences.observer.step_cut()
        logger.warning(
            "no memory for a step of %d tokens of %d sequences, at most %d from now on: %s",
            tokens, len(batch), budget.tokens, error,
        )  # fmt: skip
        return True

    def _ignore_repeated_culprits(self, culprits: Iterable[Sequence]) -> None:
        """Do not count deaths by a prompt that was a culprit before and was sent again: they show nothing new about the executor.
        Deaths by different prompts do: the executor may be unable to compute any."""
        for seq in culprits:
            prompt = hash(seq.request.prompt_token_ids.tobytes())
            if prompt in self._culprit_prompts:
                self._fruitless = max(0, self._fruitless - seq.num_failed_steps)
            self._culprit_prompts.add(prompt)


def _word(error: ExecutorError) -> str:
    """The failure in a word, for stories: how the executor died, or the kind of error that a step raised."""
    return f"executor_died:{error.cause}" if isinstance(error, ExecutorDied) else error.kind
