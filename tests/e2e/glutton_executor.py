"""Executors in which one request, known by its seed, takes all memory there is whenever it is computed.

--executor tests.e2e.glutton_executor:AskingFactory   the llm executor; asks torch for more than the process may have
--executor tests.e2e.glutton_executor:TakingFactory   echo; takes what the container has, page by page
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import NoReturn

import torch

from executors.contract import ExecutorConfig, UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.testing.fakes.echo import EchoExecutor, EchoFactory

GLUTTON = 999
"""The seed."""
_ROOM = 512 << 20
_PIECE = 8 << 20


def _is_glutton(known: set[int], batch: UnifiedBatch) -> bool:
    known.update(
        one.seq_id for one in batch.starts if one.sampling is not None and one.sampling.seed == GLUTTON
    )
    return any(seq_id in known for seq_id in batch.seq_ids.tolist())


def _limit_address_space() -> None:
    """As `ulimit -v` does: allocations then fail, and nothing is killed."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _take_all() -> NoReturn:
    """Until somebody ends it."""
    taken: list[bytes] = []
    while True:
        taken.append(b"\1" * _PIECE)
        time.sleep(0.002)  # who watches gets a turn


class AskingExecutor(LlmExecutor):
    async def warmup(self) -> None:
        await super().warmup()
        self.gluttons: set[int] = set()
        _limit_address_space()

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        if _is_glutton(self.gluttons, batch):
            assert self._runtime is not None
            forward = self._runtime.runner.forward

            def greedy(*args: object, **more: object) -> torch.Tensor:
                torch.empty(4 * _ROOM, dtype=torch.uint8)
                return forward(*args, **more)  # type: ignore[arg-type]

            self._runtime.runner.forward = greedy  # type: ignore[method-assign]
            try:
                return await super().unified_decode(batch)
            finally:
                self._runtime.runner.forward = forward  # type: ignore[method-assign]
        return await super().unified_decode(batch)


class AskingFactory(LlmFactory):
    def executor_class(self) -> type[AskingExecutor]:
        return AskingExecutor


class TakingExecutor(EchoExecutor):
    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self.gluttons: set[int] = set()

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        if _is_glutton(self.gluttons, batch):
            _take_all()
        return await super().unified_decode(batch)


class TakingFactory(EchoFactory):
    def create_executor(self, config: ExecutorConfig) -> TakingExecutor:
        return TakingExecutor(config)
