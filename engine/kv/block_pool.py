"""The block pool: which KV blocks are free, in which order they are reused, and how many tables hold each of the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable


class BlockPool:
    """Ids 0 .. num_blocks - 1, each free or referenced by one or more block tables.

    Owned by KvCacheManager; every operation is O(1) a block. A free block may still hold KV worth finding again: the free
    list is ordered by reuse, blocks without such KV first, then the one that was given back longest ago (LRU).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A linked list with O(1) removal anywhere, which a prefix hit needs.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, those with KV worth finding again included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_blocks - len(self._free)

    def num_free_of(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free."""
        return sum(not self._references[block] for block in blocks)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing changed) if there are not so many.

        What they held is lost: the caller forgets it.
        """
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference of each, free or not."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: Iterable[int], worth_keeping: Container[int] = ()) -> None:
        """Drop one reference of each, in this order. A block without references is free: reused last if it is worth
        keeping, else first. Raises ValueError for a free block."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free already")
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
                if block not in worth_keeping:
                    self._free.move_to_end(block, last=False)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises RuntimeError unless free + used = total and references equal the given tables."""
        counted = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counted[block] += 1
        if counted != self._references:
            wrong = [b for b in range(self.num_blocks) if counted[b] != self._references[b]]
            raise RuntimeError(f"references differ from block tables at blocks {wrong[:8]}")
        if any(bool(count) == (block in self._free) for block, count in enumerate(self._references)):
            raise RuntimeError("a block is neither free nor used, or both")
