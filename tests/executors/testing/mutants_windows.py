"""Broken fakes: KV groups with windows go wrong. Each is named with the cases that must catch it."""

import numpy as np

from executors.testing.fakes.group_memory import GroupMemory
from executors.testing.fakes.paged import PagedFakeExecutor
from tests.executors.testing.conformance_subjects import caught_by


class _Windowed(PagedFakeExecutor):
    def __init__(self, config):
        super().__init__(config)
        self.windows = (None, 21)


@caught_by("blocks_behind_a_window_are_not_read")
class ReadsATokenBehindTheWindow(_Windowed):
    """The window has this size in the layout, and is read one token wider."""

    def _allocate(self):
        super()._allocate()
        self.memories[1] = GroupMemory(1, 22, self.num_blocks, self.block_size)


@caught_by("table_of_a_window_begins_at_the_hit")
class TakesTablesToBeginAt0(_Windowed):
    """The blocks of a table are taken for those of the sequence's beginning."""

    def _native_step(self, batch, *failing):
        tables, first_of = batch.tables, {}
        for slot, group, start in zip(tables.slots, tables.groups, tables.starts, strict=True):
            if any(one.slot == slot for one in batch.starts):
                first_of[int(slot), int(group)] = int(start)
        output = super()._native_step(batch, *failing)
        for (slot, group), first in first_of.items():
            row = self.table.block_tables[group][slot]
            row[:] = np.roll(row, -first)
        return output


@caught_by("groups_keep_their_own_blocks")
class UsesOneTableForAllGroups(_Windowed):
    def _cells_of(self, work, item, position, group=0):
        return super()._cells_of(work, item, position, 0)


@caught_by("groups_keep_their_own_blocks")
class CopiesInTheFirstGroup(_Windowed):
    def copy_blocks(self, copies):
        copies = copies.copy()
        copies[:, 0] = 0
        super().copy_blocks(copies)
