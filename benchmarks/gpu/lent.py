"""One started executor for several engines, one after the other: a start takes ten seconds and more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from benchmarks.gpu.part import Failed
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from executors.contract import ModelExecutor


class Lent:
    """An executor that its engine does not shut down."""

    def __init__(self, executor: ModelExecutor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    async def shutdown(self) -> None:
        """Leave it running."""


def lend(executor: ModelExecutor) -> ModelExecutor:
    """See `Lent`."""
    return cast(ModelExecutor, Lent(executor))


@asynccontextmanager
async def borrowed(executor: ModelExecutor, config: EngineConfig) -> AsyncIterator[EngineCore]:
    """An engine over a running executor, which is emptied first. Raises Failed if the executor died or was reset meanwhile."""
    core = EngineCore(lend(executor), config)
    await core.start()
    epoch = core.stats().epoch
    try:
        yield core
        if (now := core.stats()).epoch != epoch:
            raise Failed(
                f"the executor was restarted or reset {now.epoch - epoch} times meanwhile: see the log"
            )
    finally:
        await core.stop()
