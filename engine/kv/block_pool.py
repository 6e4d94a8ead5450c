"""The block pool: which KV blocks are free, in which order they are reused, and how many tables hold each of the others."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Iterator
from itertools import repeat
from operator import ne

SLICE = 8192
"""Blocks that are looked at in one go, a millisecond's work, when the books are checked."""


class BlockPool:
    """Ids 0 .. num_blocks - 1, each free or referenced by one or more block tables.

    Owned by KvCacheManager; every operation is O(1) a block. A free block may still hold KV worth finding again: the free
    list is ordered by reuse, blocks without such KV first, then the one that was given back longest ago (LRU).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A linked list with O(1) removal anywhere, which a prefix hit needs.
        # The value says whether what the block holds is worth keeping.
        self._free: OrderedDict[int, bool] = OrderedDict.fromkeys(range(num_blocks), False)
        self.num_kept = 0
        """Free blocks with KV worth finding again."""
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, those with KV worth finding again included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_blocks - len(self._free)

    def num_references(self, block: int) -> int:
        """Tables that hold the block."""
        return self._references[block]

    def num_free_of(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free."""
        return sum(not self._references[block] for block in blocks)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing changed) if there are not so many.

        What they held is lost: the caller forgets it.
        """
        if count > len(self._free):
            return None
        blocks: list[int] = []
        for _ in range(count):
            block, kept = self._free.popitem(last=False)
            self.num_kept -= kept
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference of each, free or not."""
        for block in blocks:
            if not self._references[block]:
                self.num_kept -= self._free.pop(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int], worth_keeping: Container[int] = ()) -> None:
        """Drop one reference of each, in this order. A block without references is free: reused last if it is worth
        keeping, else first. Raises ValueError for a free block."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free already")
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = kept = block in worth_keeping
                self.num_kept += kept
                if not kept:
                    self._free.move_to_end(block, last=False)

    def forsake(self, blocks: Iterable[int]) -> None:
        """What these blocks hold is worth nothing any more: those of them that are free are reused first."""
        for block in blocks:
            if self._free.get(block):
                self._free[block] = False
                self._free.move_to_end(block, last=False)
                self.num_kept -= 1

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises RuntimeError unless free + used = total and references equal the given tables."""
        for _ in self.integrity(tables):
            pass

    def integrity(self, tables: Iterable[Iterable[int]]) -> Iterator[None]:
        """`check_integrity` a slice at a time: nothing may change before it is exhausted."""
        counted = Counter(block for table in tables for block in table)
        yield
        num_free = num_kept = 0
        for begin in range(0, self.num_blocks, SLICE):
            references = self._references[begin : begin + SLICE]
            blocks = range(begin, begin + len(references))
            if any(map(ne, references, map(counted.get, blocks, repeat(0)))):
                wrong = [b for b, count in zip(blocks, references, strict=True) if counted[b] != count]
                raise RuntimeError(f"references differ from block tables at blocks {wrong[:8]}")
            kept = list(map(self._free.get, blocks))
            if any((count > 0) != (one is None) for count, one in zip(references, kept, strict=True)):
                raise RuntimeError("a block is neither free nor used, or both")
            num_free += len(kept) - kept.count(None)
            num_kept += kept.count(True)
            yield
        if num_free != len(self._free):
            raise RuntimeError("a block is free that does not exist")
        if num_kept != self.num_kept:
            raise RuntimeError("blocks worth keeping are miscounted")
