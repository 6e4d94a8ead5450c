"""A third party's executor, named by `--executor tests.e2e.late_executor:LateFactory`: it loads for seconds and says nothing."""

from __future__ import annotations

import asyncio

from executors.contract import ExecutorConfig
from executors.testing.fakes.echo import EchoExecutor, EchoFactory

_LOAD_S = 4.0


class LateExecutor(EchoExecutor):
    async def warmup(self) -> None:
        await asyncio.sleep(_LOAD_S)
        await super().warmup()


class LateFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> LateExecutor:
        return LateExecutor(config)
