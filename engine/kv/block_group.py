"""`BlockGroup`: the blocks of layers that keep the same tokens: their pool, and which prefixes they hold."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice

from engine.block_table import DROP, Span, Way
from engine.kv.block_pool import SLICE, BlockPool
from engine.kv.cache_points import rolling_point
from engine.kv.prefix_cache import PrefixCache
from engine.kv.seals import GroupSeals
from engine.sequence import Sequence
from engine.story import Lost
from executors.contract import Int32Array, KvGroup


class BlockGroup:
    """One `KvGroup` of the layout as the engine accounts for it. Owned by KvCacheManager.

    Keys name prefixes, so all groups use the same ones; each group has its own block for a key, or none. What the token at
    position 13 reads, with blocks of 4 tokens:

        block             0    1    2     3
        position          0123 4567 89ab  cd
        full group        ^^^^ ^^^^ ^^^^  ^^     lowest(13) = 0
        window of 6                 ^^^^  ^^     lowest(13) = 8 // 4 = 2
    """

    def __init__(self, index: int, group: KvGroup, block_size: int) -> None:
        self.index = index
        """Its place in the layout."""
        self.window = group.window
        self.pool = BlockPool(group.num_blocks, group.blocks_per_span)
        self.cache = PrefixCache()
        self.seals = GroupSeals()
        self.bytes_per_block = group.bytes_per_block
        self.num_bytes = group.num_blocks * group.bytes_per_block
        self.reach = sys.maxsize if self.window is None else -(-(self.window - 1) // block_size)
        """Blocks before a position that begins a block which a token there reads; in a full group more than there are."""
        self._block_size = block_size

    def lowest(self, position: int) -> int:
        """Index of the first block that a token at `position` reads; all later tokens read none below it."""
        if self.window is None or position < self.window:
            return 0
        return (position - self.window + 1) // self._block_size

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None if fewer are free; what they held is found no more."""
        if count == 1:
            return [self.take()] if self.pool.num_free else None
        blocks = self.pool.allocate(count)
        if blocks is not None:
            self.cache.forget(blocks)
            self.seals.drop(blocks)
        return blocks

    def take(self) -> int:
        """As `allocate`, of one block; one must be free."""
        block = self.pool.take()
        if block in self.cache.blocks:
            self.cache.forget((block,))
        self.seals.drop((block,))
        return block

    def forget(self, blocks: Iterable[int], why: Lost) -> None:
        """What these blocks hold is found no more."""
        blocks = list(blocks)
        self.cache.forget(blocks, why)
        self.pool.forsake(blocks)

    def release(self, blocks: Iterable[int]) -> None:
        """Free blocks of a table, in this order."""
        self.pool.release(blocks, self.cache.blocks)

    # -- what is found -------------------------------------------------------------------------------------------------

    def holds_before(self, keys: SequenceOf[bytes], num_blocks: int) -> int:
        """The largest n up to `num_blocks` such that a sequence can begin behind n blocks: all that its next token reads is
        there. `keys`: of the sequence's first blocks."""
        n = num_blocks
        index, low = n - 1, self.lowest(n * self._block_size)
        while index >= low:
            if self.cache.block_of(keys[index]) is None:
                n, low = index, self.lowest(index * self._block_size)
            index -= 1
        return n

    def blocks_before(self, keys: SequenceOf[bytes], num_blocks: int) -> list[int]:
        """The blocks that a sequence shares which begins behind `num_blocks` blocks; `holds_before` says that they are there."""
        low = self.lowest(num_blocks * self._block_size)
        return self.cache.find(keys[low:num_blocks])

    # -- the window ----------------------------------------------------------------------------------------------------

    def sealed_end(self, seq: Sequence) -> int:
        """Number of tokens of a sequence up to the end of its last sealed block; where its table begins if there is none."""
        table = seq.block_tables[self.index]
        index = min(seq.num_keyed_blocks, table.end)
        while index > table.first and table.blocks[index - 1 - table.first] not in self.seals.checksums:
            index -= 1
        return index * self._block_size

    def slide(self, seq: Sequence, position: int) -> None:
        """Free the blocks of a sequence that no token from `position` on reads: the end of the last full block that is settled.
        They keep their key if they lie in the window before a cache point: a later sequence can begin there.

        What is not settled may be lost or, with drafts, be rejected; the sequence then begins again behind that block. Steps in
        flight may read the blocks still: the steps run in their order, and a later one writes to them at the earliest.
        """
        first, until = seq.block_tables[self.index].first, self.lowest(position)
        if until <= first:
            return
        latest = rolling_point(seq, position, self._block_size)
        points = seq.cache_points if latest <= first else (*seq.cache_points, latest)
        parts = [self._before(point) for point in points if point > first]
        blocks, shared = seq.slide_table(self.index, until), seq.num_shared_blocks
        for index, block in enumerate(blocks, first):
            if index < shared:
                continue  # blocks that others wrote have a key for the others' cache points
            if parts and any(index in part for part in parts):
                self._name(seq, index, block)
            else:
                self.cache.leave(block)
        self.release(blocks)
        if latest:
            self._expire(seq, first, latest)

    def name_rest(self, seq: Sequence) -> None:
        """Let the full blocks of a sequence whose table is to be freed be found: a later one can begin behind them."""
        table = seq.block_tables[self.index]
        for index, block in enumerate(
            table.blocks[: max(0, seq.num_keyed_blocks - table.first)], table.first
        ):
            if index >= seq.num_shared_blocks:
                self._name(seq, index, block)

    def _name(self, seq: Sequence, index: int, block: int) -> None:
        """Let a block be found that waits for its key, if it does."""
        if seq.names_windows and index < seq.num_keyed_blocks:
            self.cache.keep(seq.block_keys[index], block)

    def way_on(self, seq: Sequence, settled: int, latest: int) -> tuple[Span, int] | None:
        """How the table of a sequence that is settled in block `settled` goes on, and the index up to which that holds; None if
        it is not as simple, and `slide` must look. `latest`: the sequence's `rolling_point`."""
        table, size, reach = seq.block_tables[self.index], self._block_size, self.reach
        first = table.first
        end, leaving = first + len(table.blocks), settled - reach - first
        if leaving > 1 or first < seq.num_shared_blocks:
            return None
        until = sys.maxsize
        if latest * size > first * size + (self.window or 0) - 1:  # the time of an earlier point may be over
            if leaving < 1:
                until = end + 1 - leaving
            else:
                self._expire(seq, first, latest)
        take_end = end + 1 - leaving
        behind = take_end - first  # block `i` leaves when block `i + behind` is added
        keep = keep_end = 0
        for point in (*seq.cache_points, latest):  # rising, but for `latest` where there is none
            if point <= first:
                continue
            begin = behind + point - reach
            if not keep_end:
                keep = begin
            elif begin > keep_end:
                until = min(until, begin)
                break
            keep_end = behind + point
        return Span(take_end, keep, keep_end, behind + seq.prompt_len // size), until

    def exchange(self, seq: Sequence, way: Way) -> int:
        """Free the first block of a sequence's table, with `KEEP` to be found by later sequences, or with `DROP`; returns the
        block that it takes."""
        table = seq.block_tables[self.index]
        block, index = table.blocks[0], table.first
        if way is DROP:
            self.cache.leave(block)
        elif seq.names_windows and index < seq.num_keyed_blocks:
            self.cache.keep(seq.block_keys[index], block)
        self.pool.release_one(block, block in self.cache.blocks)
        return self.take()

    def _before(self, point: int) -> range:
        """Indices of the blocks within the window before a cache point."""
        return range(self.lowest(point * self._block_size), point)

    def _expire(self, seq: Sequence, first: int, latest: int) -> None:
        """Forget the blocks that were kept for the rolling point before the latest one. `first`: where the table began before it
        slid."""
        position = first * self._block_size + (self.window or 0) - 1
        before = rolling_point(seq, position, self._block_size)
        if not before or before == latest:
            return
        parts = [self._before(point) for point in seq.cache_points if point > before - self.reach]
        begin = max(self._before(before).start, seq.num_shared_blocks)
        forgotten: list[int] = []
        for key in seq.block_keys[begin : min(self._before(latest).start, first)]:
            block = self.cache.block_of(key)
            if block is not None and not (parts and any(begin in part for part in parts)):
                self.cache.leave(block)
                forgotten.append(block)
            begin += 1
        self.pool.forsake(forgotten)

    # -- memory --------------------------------------------------------------------------------------------------------

    def take_spare(self, keep: int, min_age: int, most_spans: int) -> Int32Array:
        """As `BlockPool.take_spare`; prefixes in these blocks are no longer found. The executor must be told before the next
        step: until then the blocks still have their memory, afterwards they may be zeros."""
        blocks = self.pool.take_spare(keep, min_age, most_spans)
        self.cache.forget(blocks.tolist(), Lost.RELEASE)
        self.seals.drop(blocks.tolist())
        return blocks

    # -- books ---------------------------------------------------------------------------------------------------------

    def integrity(self, tables: Iterable[Iterable[int]]) -> Iterator[None]:
        """As `KvCacheManager.integrity`, of the tables of this group."""
        yield from self.pool.integrity(tables)
        yield from self.cache.integrity()
        num_keyed, cached = 0, iter(self.cache.blocks)
        while some := list(islice(cached, SLICE)):
            num_keyed += sum(not self.pool.num_references(block) for block in some)
            yield
        if num_keyed != self.pool.num_kept:
            raise RuntimeError(f"{num_keyed} free blocks have a key, {self.pool.num_kept} are kept")
