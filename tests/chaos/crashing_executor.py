"""The LLM executor, but a request with a certain seed takes its process down.

--executor tests.chaos.crashing_executor:CrashingFactory
"""

from __future__ import annotations

import os

from executors.contract import ExecutorConfig, UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory

POISON = 666
"""The seed; whoever has it dies with its first token."""


class CrashingExecutor(LlmExecutor):
    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        if any(start.sampling is not None and start.sampling.seed == POISON for start in batch.starts):
            os._exit(11)
        return await super().unified_decode(batch)


class CrashingFactory(LlmFactory):
    def create_executor(self, config: ExecutorConfig) -> CrashingExecutor:
        return CrashingExecutor.from_config(config)
