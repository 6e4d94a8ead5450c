"""`TableChanges`: what the next step must tell the executor of block tables and copies."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

import numpy as np

from executors.contract import Int32Array, TableUpdates


class TableChanges:
    """Collected while a step is put together. Owned by KvCacheManager.

    - `grown`: (slot, group, index of the first block, blocks) of tables that go on.
    - `stepped`: (slot, index of the block, a block of each group) where all tables of a slot go on by one; later than `grown`.
    - `copies`: (group, source, destination) of blocks.
    """

    def __init__(self) -> None:
        self.copies: list[tuple[int, int, int]] = []
        self.grown: list[tuple[int, int, int, list[int]]] = []
        self.stepped: list[tuple[int, ...]] = []

    def grow(self, slot: int, group: int, begin: int, blocks: list[int]) -> None:
        """A table goes on with these blocks from index `begin` on."""
        # A table ends with its latest entry: one that steps and then grows must be told so in this order.
        for step in self.stepped:
            self.grown += [(step[0], index, step[1], [block]) for index, block in enumerate(step[2:])]
        self.stepped.clear()
        self.grown.append((slot, group, begin, blocks))

    def drop(self, slot: int | None) -> None:
        """Forget what was collected for the tables of a slot, which are free."""
        self.grown = [entry for entry in self.grown if entry[0] != slot]
        self.stepped = [entry for entry in self.stepped if entry[0] != slot]

    def clear(self) -> None:
        """Forget everything."""
        self.grown.clear()
        self.stepped.clear()
        self.copies.clear()

    def take_copies(self) -> Int32Array:
        """int32 [m, 3] of (group, source, destination) blocks since the last call."""
        copies, self.copies = self.copies, []
        return np.array(copies, np.int32).reshape(-1, 3)

    def take_updates(self) -> TableUpdates:
        """Block-table deltas since the last call."""
        if not self.grown:
            return self._take_stepped() if self.stepped else TableUpdates.empty()
        grown, self.grown = self.grown, []
        updates = TableUpdates(
            slots=np.array([slot for slot, _, _, _ in grown], np.int32),
            groups=np.array([group for _, group, _, _ in grown], np.int32),
            starts=np.array([begin for _, _, begin, _ in grown], np.int32),
            counts=np.array([len(blocks) for _, _, _, blocks in grown], np.int32),
            block_ids=np.array([block for _, _, _, blocks in grown for block in blocks], np.int32),
        )
        return _joined(updates, self._take_stepped()) if self.stepped else updates

    def _take_stepped(self) -> TableUpdates:
        """Those of `stepped`, slot by slot, in order of the groups."""
        stepped, self.stepped = self.stepped, []
        width = len(stepped[0])
        rows = np.fromiter(chain.from_iterable(stepped), np.int32, len(stepped) * width).reshape(-1, width)
        groups, counts = _each(width - 2, len(stepped))
        slots, starts = rows[:, :2].T.repeat(width - 2, axis=1)
        return TableUpdates(slots, groups, starts, counts, rows[:, 2:].ravel())


@lru_cache(maxsize=1024)
def _each(num_groups: int, num_rows: int) -> tuple[Int32Array, Int32Array]:
    """`groups` and `counts` where all groups of so many tables go on by a block: the same in most steps."""
    groups = np.tile(np.arange(num_groups, dtype=np.int32), num_rows)
    counts = np.ones(num_groups * num_rows, np.int32)
    groups.flags.writeable = counts.flags.writeable = False
    return groups, counts


def _joined(first: TableUpdates, then: TableUpdates) -> TableUpdates:
    return TableUpdates(
        *(
            np.concatenate([getattr(first, name), getattr(then, name)])
            for name in ("slots", "groups", "starts", "counts", "block_ids")
        )
    )
