"""Bringing the executor back. What became of the sequences is the scheduler's business: see `Scheduler.rewind`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.core.config import MAX_RESTART_PAUSE, EngineConfig
from executors.contract import ExecutorError, ModelExecutor

logger = logging.getLogger("cohort.engine")


async def restart(
    executor: ModelExecutor,
    epoch: int,
    config: EngineConfig,
    clock: Callable[[], float],
    note: Callable[[str], None],
) -> bool:
    """Begin the epoch, trying again with growing pauses; False once `recovery_timeout` is over.

    `note` hears why each try failed.
    """
    deadline = clock() + config.recovery_timeout
    pause = config.restart_pause
    while True:
        try:
            await executor.begin_epoch(epoch)
            return True
        except ExecutorError as error:
            note(str(error))
            logger.error("restart failed, next try in %.1f s: %s", pause, error)
        if clock() + pause > deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_RESTART_PAUSE)
