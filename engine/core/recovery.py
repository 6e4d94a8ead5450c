"""After a failure: who is to blame gets an error, the executor is brought back, everybody else is computed anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from engine.config import MAX_FAILED_STEPS, MAX_FRUITLESS_RESTARTS, MAX_RESTART_PAUSE, EngineConfig
from engine.core.health import Health
from engine.core.scheduler import Scheduler
from engine.errors import BrokeExecutor, EngineError
from engine.request import Stage
from engine.sequence import Sequence
from executors.contract import (
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    ModelExecutor,
    OutOfMemory,
    UnifiedBatch,
    Unsupported,
)

logger = logging.getLogger("cohort.engine")

MORE_DEATHS_FROM_OUTSIDE = 2
"""So many more, all of them while it is computed alone, make a culprit where each was a signal or silence: somebody may kill
executors faster than a token comes, or the kernel because of this very request, or it crashes."""
LONGEST_LOAD = 4
"""So many times `recovery_timeout` a load may take beyond it."""
_STEADY = 60.0
"""Seconds after which an executor that was brought back did not die of being started: that is no restart loop."""
_TICK = 0.25
"""Seconds between looks at what waits while the executor is away."""


class Recovery:
    """What the loop task does when a step failed or the executor died. What becomes of sequences is `Scheduler.rewind`."""

    def __init__(
        self,
        executor: ModelExecutor,
        scheduler: Scheduler,
        config: EngineConfig,
        health: Health,
        clock: Callable[[], float],
        fail: Callable[[Iterable[Sequence], EngineError], None],
        meanwhile: Callable[[], None],
        trying: Callable[[ExecutorDied | None], None],
    ) -> None:
        """`fail` gives sequences an error for an answer; `meanwhile` is called now and then while the executor is away;
        `trying` before each try to bring it back, with what the last one died of if that was a death."""
        self._executor = executor
        self._scheduler = scheduler
        self._config = config
        self._health = health
        self._clock = clock
        self._fail = fail
        self._meanwhile = meanwhile
        self._trying = trying
        self._fruitless = 0
        self._named: set[int] = set()
        """Hashes of the prompts of all culprits since the last token."""
        self._back_at = clock()

    def gave_something(self) -> None:
        """A token came: the restarts before it were not for nothing."""
        self._fruitless = 0
        self._named.clear()

    async def recover(self, batch: UnifiedBatch | None, error: ExecutorError) -> str | None:
        """A step failed, or the executor died between steps (`batch` None): everything is recomputed from what is committed.

        Nothing is lost but time, unless a sequence was in several failed steps in a row: then it gets a typed error. A step
        that found no memory counts as failed only when it cannot be made smaller. Returns why nothing can be served any
        more, None if it can.
        """
        shrunk = self._shrunk(batch, error)
        if not shrunk:
            logger.error("executor failed: %s: %s", type(error).__name__, error)
        health, scheduler = self._health, self._scheduler
        health.stage = Stage.DRAINING if health.stage is Stage.DRAINING else Stage.RECOVERING
        health.detail = str(error)
        epoch = scheduler.journal.open_epoch()
        # What was refused has its reason in the step: no need to try it again as it was.
        suspects = scheduler.rewind(batch, isinstance(error, (InvalidInput, Unsupported)), blameless=shrunk)
        died = isinstance(error, ExecutorDied)
        if self._clock() - self._back_at > _STEADY:
            self._fruitless = 0
        self._fruitless += died
        by_chance = isinstance(error, ExecutorDied) and error.from_outside
        most = MAX_FAILED_STEPS + (MORE_DEATHS_FROM_OUTSIDE if by_chance else 0)
        culprits = [seq for seq in suspects if seq.num_failed_steps >= most]
        scheduler.num_resumed -= len(culprits)
        self._forgive_known(culprits)
        code = "executor_died" if died else error.kind
        what = "failed" if code != OutOfMemory.kind else "has no memory for this request, even by itself"
        self._fail(culprits, BrokeExecutor(f"the executor {what}: {error}", code=code))
        if self._fruitless > MAX_FRUITLESS_RESTARTS:
            health.detail = f"the executor died {self._fruitless} times without a token in between: {error}"
            return health.detail
        if not await self._restart(epoch, error):
            return f"the executor cannot be restarted: {health.detail}"
        self._back_at, health.detail = self._clock(), ""
        if health.stage is Stage.RECOVERING:
            health.stage = Stage.READY
        return None

    def _shrunk(self, batch: UnifiedBatch | None, error: ExecutorError) -> bool:
        """Whether the step failed for want of memory, and the next ones are smaller."""
        if batch is None or not isinstance(error, OutOfMemory):
            return False
        tokens, budget = batch.total_q_tokens(), self._scheduler.step_budget
        if not budget.shrink(tokens):
            return False
        logger.warning(
            "no memory for a step of %d tokens of %d sequences, at most %d from now on: %s",
            tokens, len(batch), budget.tokens, error,
        )  # fmt: skip
        return True

    def _forgive_known(self, culprits: Iterable[Sequence]) -> None:
        """A prompt that was named before was sent again: its deaths say nothing new of the executor. Those of one prompt after
        the other do: it may be able to compute none."""
        for seq in culprits:
            prompt = hash(seq.request.prompt_token_ids.tobytes())
            if prompt in self._named:
                self._fruitless = max(0, self._fruitless - seq.num_failed_steps)
            self._named.add(prompt)

    async def _restart(self, epoch: int, error: ExecutorError) -> bool:
        """Begin the epoch, trying again with growing pauses; False once `recovery_timeout` is over and the last try has failed. A
        child that is still loading when its time is over is killed by `shutdown`, which follows."""
        coming = asyncio.create_task(self._begin(epoch, error))
        try:
            while not (await asyncio.wait((coming,), timeout=_TICK))[0]:
                self._meanwhile()
            return coming.result()
        finally:
            coming.cancel()

    async def _begin(self, epoch: int, error: ExecutorError) -> bool:
        deadline = self._clock() + self._config.recovery_timeout
        pause = self._config.restart_pause
        while True:
            self._trying(error if isinstance(error, ExecutorDied) else None)
            # A load that goes on may be a slow disk: streams wait for it, and /health says so. One that never ends is none.
            left = max(0.0, deadline - self._clock()) + LONGEST_LOAD * self._config.recovery_timeout
            try:
                async with asyncio.timeout(left) as over:
                    await self._executor.begin_epoch(epoch)
                return True
            except TimeoutError:
                if not over.expired():
                    raise  # the executor's own, which is no such error: a bug
                self._health.detail = f"its load had not ended after {left:.0f} s"
                logger.error("restart failed: %s", self._health.detail)
                return False
            except ExecutorError as failure:
                error, self._health.detail = failure, str(failure)
                logger.error("restart failed, next try in %.1f s: %s", pause, error)
            if self._clock() + pause > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RESTART_PAUSE)
