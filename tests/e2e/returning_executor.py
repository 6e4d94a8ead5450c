"""Echo whose second life takes its time to load: `--executor tests.e2e.returning_executor:ReturningFactory`.

The environment variable RETURNING names a file that the first life leaves behind.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from executors.contract import ExecutorConfig
from executors.testing.fakes.echo import EchoExecutor, EchoFactory

MARK = "RETURNING"
SECONDS = 1.5


class ReturningExecutor(EchoExecutor):
    async def warmup(self) -> None:
        await asyncio.sleep(SECONDS if _lived_before() else 0)
        await super().warmup()


def _lived_before() -> bool:
    """Whether there is a mark; leaves one."""
    mark = Path(os.environ[MARK])
    found = mark.exists()
    mark.touch()
    return found


class ReturningFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> ReturningExecutor:
        return ReturningExecutor(config)
