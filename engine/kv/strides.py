"""`StrideFinder`: how the tables of a sequence that decodes go on, known for many blocks at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence as SequenceOf

from engine.block_table import DROP, KEEP, TAKE, TURN, Span, Stride, Way
from engine.kv.block_group import BlockGroup
from engine.kv.cache_points import next_rolling, rolling_point
from engine.sequence import Sequence

_TAKES = Span(sys.maxsize, 0, 0, 0)


class StrideFinder:
    """Finds strides in the tables of all groups of a layout, and writes them. Owned by KvCacheManager."""

    def __init__(self, groups: SequenceOf[BlockGroup], block_size: int) -> None:
        self._groups = groups
        self._block_size = block_size
        self._takers: dict[tuple[Way, ...], tuple[int, ...]] = {}
        """`Stride.takers` of the ways met so far."""

    def find(self, seq: Sequence, begin: int, settled: int) -> Stride | None:
        """How the tables of a sequence go on from the block with index `begin`, if all of them do. `settled`: the block in which
        it is settled. `change_ways` sets the stride's first ways."""
        for table in seq.block_tables:
            if table.first + len(table.blocks) != begin:
                return None
        size = self._block_size
        latest = rolling_point(seq, settled * size, size)
        # Behind it there may be a point that ends the time of this one.
        until = begin + next_rolling(settled * size) // size - settled
        spans: list[Span] = []
        for group in self._groups:
            if group.window is None:
                spans.append(_TAKES)
                continue
            if (way_on := group.way_on(seq, settled, latest)) is None:
                return None
            spans.append(way_on[0])
            until = min(until, way_on[1])
        return Stride(begin - settled, until, tuple(spans))

    def change_ways(self, stride: Stride, begin: int) -> None:
        """Look up in its spans how a stride goes on from the block with index `begin`."""
        until = stride.end
        joint: list[Way] = []
        for take_end, keep, keep_end, drop_end in stride.spans:
            way, end = TURN, sys.maxsize
            if begin < take_end:
                way, end = TAKE, take_end
            elif keep <= begin < keep_end:
                way, end = KEEP, keep_end
            else:
                if begin < drop_end:
                    way, end = DROP, drop_end
                if begin < keep < end:
                    end = keep
            joint.append(way)
            if end < until:
                until = end
        stride.until, stride.ways = until, tuple(joint)
        if (takers := self._takers.get(stride.ways)) is None:
            takers = self._takers[stride.ways] = tuple(i for i, way in enumerate(joint) if way is not TURN)
        stride.takers = takers
