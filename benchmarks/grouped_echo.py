"""`GroupedEcho`: the fastest fake, with KV as a layout says: what the engine does with groups, without what an executor does."""

from __future__ import annotations

from dataclasses import replace

from executors.contract import ExecutorConfig, KvLayout, TableUpdates, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.echo import EchoExecutor


class GroupedEcho(EchoExecutor):
    """Echo that has KV of any layout and reads none of it: block tables and copies are left out of its steps."""

    def __init__(self, config: ExecutorConfig, layout: KvLayout) -> None:
        super().__init__(config)
        self._layout = layout

    def kv_layout(self) -> KvLayout:
        """See the contract."""
        return self._layout

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See the contract."""
        bare = replace(batch, tables=TableUpdates.empty(), block_copies=batch.block_copies[:0])
        return await super().unified_decode(bare)
