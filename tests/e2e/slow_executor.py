"""A third party's executor, named by `--executor tests.e2e.slow_executor:SlowFactory`: it never ends loading."""

from __future__ import annotations

import asyncio

from executors.contract import ExecutorConfig
from executors.testing.fakes.echo import EchoExecutor, EchoFactory


class SlowExecutor(EchoExecutor):
    async def warmup(self) -> None:
        await asyncio.sleep(3600)


class SlowFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> SlowExecutor:
        return SlowExecutor(config)
