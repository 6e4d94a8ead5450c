"""The block pool: the free KV blocks, the order of their reuse, and the number of tables that hold each of the others."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Iterator
from itertools import repeat
from operator import ne

import numpy as np

from executors.contract import Int32Array

SLICE = 8192
"""Number of blocks checked at a time by the integrity checks: a millisecond's work."""


class BlockPool:
    """Ids 0 .. num_blocks - 1, each free or referenced by one or more block tables.

    Owned by KvCacheManager; every operation but `take_spare` is O(1) per block. A free block may still hold KV worth finding
    again, so blocks are reused in this order:

        used before, nothing worth keeping | never used, lowest id first | worth keeping, longest free first (LRU)

    So only few blocks are written while few are needed, and these are contiguous.
    """

    def __init__(self, num_blocks: int, blocks_per_span: int = 0) -> None:
        """`blocks_per_span`: number of consecutive blocks whose memory is released together, see `KvGroup`; 0: never."""
        self.num_blocks = num_blocks
        self.blocks_per_span = blocks_per_span
        # Free blocks that were used before. A linked list with O(1) removal anywhere, which a prefix hit needs.
        # The value says whether what the block holds is worth keeping.
        self._free: OrderedDict[int, bool] = OrderedDict()
        self._unused = list(range(num_blocks - 1, -1, -1))
        """Free blocks without memory: never used, or released. In descending order, so that the last is the lowest."""
        self._withheld: list[int] = []
        """Blocks without memory that are not free until they are restored, the last withheld last."""
        self._has_memory = bytearray(num_blocks)
        self.num_kept = 0
        """Number of free blocks with KV worth finding again."""
        self._references = [0] * num_blocks
        self.now = 0
        """Number of `take_spare` calls so far; the unit of age in `take_spare`."""
        self._freed_at = [0] * (-(-num_blocks // blocks_per_span) if blocks_per_span else 0)
        """Round in which a block of each span was last freed."""

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, including those with KV worth finding again."""
        return len(self._free) + len(self._unused)

    @property
    def num_withheld(self) -> int:
        """Blocks without memory that cannot be allocated until they are restored."""
        return len(self._withheld)

    @property
    def num_available(self) -> int:
        """All blocks but those that are withheld."""
        return self.num_blocks - len(self._withheld)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_available - self.num_free

    @property
    def num_without_memory(self) -> int:
        """Free blocks that were never used, or whose memory was released."""
        return len(self._unused)

    @property
    def num_with_memory(self) -> int:
        """Blocks that have been allocated and whose memory has not been released since."""
        return self.num_available - len(self._unused)

    def num_references(self, block: int) -> int:
        """Tables that hold the block."""
        return self._references[block]

    def num_free_of(self, blocks: Iterable[int]) -> int:
        """The number of these blocks that are free."""
        return sum(not self._references[block] for block in blocks)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing changed) if fewer are free.

        Their previous KV is lost: the caller must forget it.
        """
        if count > self.num_free:
            return None
        return [self.take() for _ in range(count)]

    def take(self) -> int:
        """As `allocate`, of one block; KeyError if none is free."""
        if self._unused and len(self._free) == self.num_kept:
            block = self._unused.pop()
            self._has_memory[block] = True
        else:
            block, has_key = self._free.popitem(last=False)
            self.num_kept -= has_key
        self._references[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, free or not. A free block must have been used before: others hold nothing to share."""
        for block in blocks:
            if not self._references[block]:
                self.num_kept -= self._free.pop(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int], worth_keeping: Container[int] = ()) -> None:
        """Drop one reference to each block, in this order. A block without references is free: reused last if it is worth
        keeping, else first. Raises ValueError for a free block."""
        for block in blocks:
            self.release_one(block, block in worth_keeping)

    def release_one(self, block: int, worth_keeping: bool) -> None:
        """As `release`, of one block."""
        count = self._references[block] - 1
        if count < 0:
            raise ValueError(f"block {block} is free already")
        self._references[block] = count
        if not count:
            if self.blocks_per_span:
                self._freed_at[block // self.blocks_per_span] = self.now
            self._free[block] = worth_keeping
            if worth_keeping:
                self.num_kept += 1
            else:
                self._free.move_to_end(block, last=False)

    def forsake(self, blocks: Iterable[int]) -> None:
        """Mark the KV of these blocks as not worth keeping: the free ones among them are reused first."""
        for block in blocks:
            if self._free.get(block):
                self._free[block] = False
                self._free.move_to_end(block, last=False)
                self.num_kept -= 1

    # -- memory --------------------------------------------------------------------------------------------------------

    def take_spare(self, keep: int, min_age: int, most_spans: int) -> Int32Array:
        """Blocks whose memory can be released, int32 in rising order: they count as never used from now on.

        They form whole spans without a block in use and without a block freed within the last `min_age` rounds, the longest
        free first. At most `most_spans` spans, and none that would leave less than `keep` free blocks with memory. Their KV is
        lost: the caller must forget it.
        """
        spare: list[int] = []
        if len(self._free) > keep:
            for blocks in self._spare_spans(min_age)[:most_spans]:
                with_memory = [block for block in blocks if self._has_memory[block]]
                if len(self._free) - len(with_memory) < keep:
                    break
                for block in with_memory:
                    self.num_kept -= self._free.pop(block)
                    self._has_memory[block] = False
                spare += with_memory
        if spare:
            self._unused = sorted(self._unused + spare, reverse=True)
        return np.array(sorted(spare), np.int32)

    def withhold(self, count: int) -> int:
        """Keep at most `count` free blocks without memory, the highest ids, from being allocated. Returns their number."""
        number = max(0, min(count, len(self._unused)))
        self._withheld += self._unused[:number]
        del self._unused[:number]
        return number

    def restore(self, count: int) -> int:
        """Make at most `count` of the withheld blocks free again. Returns their number."""
        number = max(0, min(count, len(self._withheld)))
        begin = len(self._withheld) - number
        self._unused = sorted(self._unused + self._withheld[begin:], reverse=True)
        del self._withheld[begin:]
        return number

    def _spare_spans(self, min_age: int) -> list[range]:
        """Spans with memory and without a block in use, the longest free first."""
        spans: list[tuple[int, int]] = []
        size = self.blocks_per_span
        for span, freed_at in enumerate(self._freed_at):
            begin = span * size
            if self.now - freed_at < min_age or self._has_memory.find(True, begin, begin + size) < 0:
                continue
            if not any(self._references[begin : begin + size]):
                spans.append((freed_at, begin))
        return [range(begin, min(begin + size, self.num_blocks)) for _, begin in sorted(spans)]

    # -- books ---------------------------------------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises RuntimeError unless free + used = total and references equal the given tables."""
        for _ in self.integrity(tables):
            pass

    def integrity(self, tables: Iterable[Iterable[int]]) -> Iterator[None]:
        """`check_integrity` a slice at a time: nothing may change before it is exhausted."""
        counted = Counter(block for table in tables for block in table)
        yield
        num_free = num_kept = num_unused = 0
        for begin in range(0, self.num_blocks, SLICE):
            references = self._references[begin : begin + SLICE]
            blocks = range(begin, begin + len(references))
            if any(map(ne, references, map(counted.get, blocks, repeat(0)))):
                wrong = [b for b, count in zip(blocks, references, strict=True) if counted[b] != count]
                raise RuntimeError(f"references differ from block tables at blocks {wrong[:8]}")
            keyed = list(map(self._free.get, blocks))
            unused = [not one for one in self._has_memory[begin : begin + SLICE]]
            if any(
                (count > 0) + (one is not None) + without != 1
                for count, one, without in zip(references, keyed, unused, strict=True)
            ):
                raise RuntimeError("a block is neither free nor used, or both")
            num_free += len(keyed) - keyed.count(None)
            num_kept += keyed.count(True)
            num_unused += sum(unused)
            yield
        without = {*self._unused, *self._withheld}
        if num_free != len(self._free) or num_unused != len(without):
            raise RuntimeError("a block is free that does not exist")
        if len(without) != len(self._unused) + len(self._withheld):
            raise RuntimeError("a block is withheld and can be allocated")
        if any(self._has_memory[block] for block in without):
            raise RuntimeError("a block counts as never used that has memory")
        if num_kept != self.num_kept:
            raise RuntimeError("blocks worth keeping are miscounted")
