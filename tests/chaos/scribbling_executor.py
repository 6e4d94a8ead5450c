"""The LLM executor, but when it is told to, it writes at random into its KV memory and dies.

--executor tests.chaos.scribbling_executor:ScribblingFactory, with the environment variable CHAOS_FOLDER:

    scribble    while this file exists, the next step is not computed: blocks are overwritten, the file is removed, and the
                process kills itself; the file's text is the share of all blocks
"""

from __future__ import annotations

import os
import signal
import weakref
from pathlib import Path
from typing import Any

import torch

from executors.contract import UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.memory.kv_cache import KvCache
from tests.chaos.crashing_executor import FOLDER


class ScribblingExecutor(LlmExecutor):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._caches = weakref.WeakSet[KvCache]()

    async def warmup(self) -> None:
        make, caches = KvCache.__init__, self._caches

        def recorded(cache: KvCache, *args: Any, **kwargs: Any) -> None:
            make(cache, *args, **kwargs)
            caches.add(cache)

        KvCache.__init__ = recorded  # type: ignore[method-assign]
        await super().warmup()

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self._look(Path(os.environ[FOLDER], "scribble"))
        return await super().unified_decode(batch)

    def _look(self, order: Path) -> None:
        if order.exists():
            share = float(order.read_text())
            order.unlink()
            for cache in self._caches:
                scribble(cache, share)
            os.kill(os.getpid(), signal.SIGKILL if self._caches else signal.SIGABRT)


def scribble(cache: KvCache, share: float) -> None:
    """Overwrite a number in each layer of that share of the blocks: a stray write is small."""
    generator = torch.Generator().manual_seed(os.getpid())
    blocks = torch.randperm(cache.num_blocks, generator=generator)[: int(share * cache.num_blocks)]
    for block in blocks.tolist():
        for layer in cache.layers:
            numbers = layer[block % 2, block, 0].view(-1)
            numbers[:1] = torch.where(numbers[:1] == 3, 5, 3).to(numbers.dtype)


class ScribblingFactory(LlmFactory):
    def executor_class(self) -> type[ScribblingExecutor]:
        return ScribblingExecutor
