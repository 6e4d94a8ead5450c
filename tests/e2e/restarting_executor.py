"""A third party's executor, named by `--executor tests.e2e.restarting_executor:RestartingFactory`: each start
of it takes a while."""

from __future__ import annotations

import asyncio

from executors.contract import ExecutorConfig
from executors.testing.fakes.paged import PagedFakeExecutor, PagedFakeFactory

WARMUP = 1.0
"""Seconds, long enough for a page to say that the executor is restarting."""


class RestartingExecutor(PagedFakeExecutor):
    async def warmup(self) -> None:
        await asyncio.sleep(WARMUP)
        await super().warmup()


class RestartingFactory(PagedFakeFactory):
    def create_executor(self, config: ExecutorConfig) -> RestartingExecutor:
        self.validate_config(config)
        return RestartingExecutor(config)
