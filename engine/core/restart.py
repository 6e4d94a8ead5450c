"""`Restart`: brings the executor back after a failure, trying again for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.health import Health
from engine.core.inbox import Inbox
from engine.core.recovery import RecoveryPlan
from engine.observer import Observer
from executors.contract import DeviceLost, ExecutorDied, ExecutorError, ModelExecutor

logger = logging.getLogger("cohort.engine")


@dataclass(eq=False)
class Restart:
    """Used by the loop task only."""

    executor: ModelExecutor
    inbox: Inbox
    health: Health
    observer: Observer
    clock: Callable[[], float]

    async def begin_epoch(self, plan: RecoveryPlan, error: ExecutorError) -> bool:
        """Begin the plan's epoch, trying again after errors; False if no further try is to be made. `error` ended the epoch
        before."""
        tries, health = plan.tries, self.health
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
            except DeviceLost as failure:
                health.detail = str(failure)
                logger.error("restart failed: %s", failure)
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
        death = self.inbox.take_death() or (error if isinstance(error, ExecutorDied) else None)
        if death is not None:
            self.observer.executor_restarted(death.cause)
