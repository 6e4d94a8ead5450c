"""A third party's executor, named by `--executor tests.e2e.hungry_executor:HungryFactory`: it eats memory with each step."""

from __future__ import annotations

from executors.contract import ExecutorConfig, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.echo import EchoExecutor, EchoFactory

MIB_PER_STEP = 8


class HungryExecutor(EchoExecutor):
    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self._eaten: list[bytes] = []

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self._eaten.append(b"\1" * (MIB_PER_STEP << 20))
        return await super().unified_decode(batch)


class HungryFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> HungryExecutor:
        return HungryExecutor(config)
