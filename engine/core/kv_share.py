"""`KvShare`: KV memory that an engine does without while another engine needs it."""

from __future__ import annotations

from collections.abc import Callable

from engine.kv.block_group import BlockGroup
from engine.kv.kv_cache_manager import KvCacheManager
from executors.contract import ModelExecutor


class KvShare:
    """Withholds free blocks of full groups from sequences, and has the executor release their memory. Used by the loop task only.

    As many blocks stay as the longest sequence that is admitted takes, so that whatever is queued can run to its end, if need be
    all alone. Groups with a window and slots of states stay as they are. Nothing is given where the executor does not give
    memory back (`KvGroup.blocks_per_span` 0).
    """

    def __init__(
        self,
        executor: ModelExecutor,
        kv: KvCacheManager,
        max_model_len: int,
        is_copied_from: Callable[[], bool] = lambda: False,
    ) -> None:
        """`max_model_len`: tokens of the longest sequence. `is_copied_from`: whether free blocks are being written to disk; those
        that have memory stay meanwhile."""
        self._executor = executor
        self._groups = [one for one in kv.groups if one.window is None and one.pool.blocks_per_span]
        self._least = kv.blocks_for(max_model_len)
        self._is_copied_from = is_copied_from

    @property
    def spare_bytes(self) -> int:
        """Bytes that could be given now, at most: blocks share spans with blocks in use."""
        return sum(self._giveable_blocks(group) * group.bytes_per_block for group in self._groups)

    @property
    def given_bytes(self) -> int:
        """Bytes that sequences do without now."""
        return sum(group.pool.num_withheld * group.bytes_per_block for group in self._groups)

    def give(self, num_bytes: int) -> None:
        """Do without this much memory, rounded up to blocks, or what is spare. To be called between two steps; prefixes in these
        blocks are found no more."""
        for group in self._groups:
            pool, size = group.pool, group.bytes_per_block
            count = min(self._giveable_blocks(group), -(-num_bytes // size))
            if count <= 0:
                continue
            self._release(group, count - pool.num_without_memory)
            num_bytes -= pool.withhold(count) * size

    def take(self, num_bytes: int) -> None:
        """Use memory again that was given, rounded down to blocks."""
        for group in self._groups:
            num_bytes -= group.pool.restore(num_bytes // group.bytes_per_block) * group.bytes_per_block

    def _giveable_blocks(self, group: BlockGroup) -> int:
        pool = group.pool
        free = pool.num_without_memory if self._is_copied_from() else pool.num_free
        return max(0, min(free, pool.num_available - self._least))

    def _release(self, group: BlockGroup, count: int) -> None:
        """Have the memory of at least so many blocks released, if whole spans are free: the longest free first."""
        while count > 0:
            blocks = group.take_spare(0, 0, -(-count // group.pool.blocks_per_span))
            if not len(blocks):
                return
            self._executor.release_memory(group.index, blocks)
            count -= len(blocks)
