"""`Restart`: brings the executor back after a failure, trying again for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.health import Health
from engine.core.inbox import Inbox
from engine.core.recovery import RecoveryPlan
from engine.kv.adoption import NewLife
from engine.observer import Observer
from executors.contract import DeviceLost, ExecutorDied, ExecutorError, ModelExecutor, check_adopted

logger = logging.getLogger("cohort.engine")


@dataclass(eq=False)
class Restart:
    """Used by the loop task only."""

    executor: ModelExecutor
    inbox: Inbox
    health: Health
    observer: Observer
    clock: Callable[[], float]

    async def begin_epoch(self, plan: RecoveryPlan, error: ExecutorError) -> NewLife | None:
        """Begin the plan's epoch, trying again after errors; None if no further try is to be made. `error` ended the epoch
        before.

        A life that dies before it has begun the epoch may have died of what it was to adopt: the next one adopts nothing.
        """
        tries, health, adopt = plan.tries, self.health, plan.adopt
        while True:
            self._count_restart(error)
            timeout = tries.load_timeout(self.clock())
            try:
                async with asyncio.timeout(timeout) as over:
                    if adopt is None:
                        await self.executor.begin_epoch(plan.epoch)
                        return NewLife(self._fingerprint())
                    adopted = await self.executor.begin_epoch(plan.epoch, adopt)
                if not check_adopted(adopted, len(adopt)):
                    logger.error("the executor adopted blocks that were not offered: none is used")
                    adopted = adopted[:0]
                return NewLife(self._fingerprint(), adopt, adopted)
            except TimeoutError:
                if not over.expired():
                    raise  # the executor's own, which is no such error: a bug
                health.detail = f"its load had not ended after {timeout:.0f} s"
                logger.error("restart failed: %s", health.detail)
                return None
            except DeviceLost as failure:
                health.detail = str(failure)
                logger.error("restart failed: %s", failure)
                return None
            except ExecutorError as failure:
                error, health.detail = failure, str(failure)
                if isinstance(failure, ExecutorDied):
                    adopt = None
                logger.error("restart failed, next try in %.1f s: %s", tries.pause, error)
            if (pause := tries.next_pause(self.clock())) is None:
                return None
            await asyncio.sleep(pause)

    def _fingerprint(self) -> str:
        return self.executor.kv_layout().fingerprint

    def _count_restart(self, error: ExecutorError) -> None:
        """The executor is about to be brought back: a death heard from here on is another one. A restart is counted if it
        follows a death, heard or raised as `error`."""
        death = self.inbox.take_death() or (error if isinstance(error, ExecutorDied) else None)
        if death is not None:
            self.observer.executor_restarted(death.cause)
