"""The block pool: which KV blocks are free, and how many block tables hold each of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Ids 0 .. num_blocks - 1, each free or referenced by one or more block tables.

    Owned by KvCacheManager; every operation is O(1) a block. The free list is first in, first out: the block freed
    longest ago is reused first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing changed) if there are not so many."""
        if count > len(self._free):
            return None
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each; a block without references is free. Raises ValueError for a free block."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free already")
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises RuntimeError unless free + used = total and references equal the given tables."""
        counted = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counted[block] += 1
        if counted != self._references:
            wrong = [b for b in range(self.num_blocks) if counted[b] != self._references[b]]
            raise RuntimeError(f"references differ from block tables at blocks {wrong[:8]}")
        free = set(self._free)
        if len(free) != len(self._free):
            raise RuntimeError("a block is in the free list twice")
        if any(bool(count) == (block in free) for block, count in enumerate(self._references)):
            raise RuntimeError("a block is neither free nor used, or both")
