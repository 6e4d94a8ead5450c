"""`TableChanges`: what the next step must tell the executor of block tables and copies."""

from __future__ import annotations

import numpy as np

from executors.contract import Int32Array, TableUpdates


class TableChanges:
    """Collected while a step is put together. Owned by KvCacheManager.

    - `grown`: (slot, group, index of the first block, blocks) of tables that go on.
    - `copies`: (group, source, destination) of blocks.
    """

    def __init__(self) -> None:
        self.copies: list[tuple[int, int, int]] = []
        self.grown: list[tuple[int, int, int, list[int]]] = []

    def drop(self, slot: int | None) -> None:
        """Forget what was collected for the tables of a slot, which are free."""
        self.grown = [entry for entry in self.grown if entry[0] != slot]

    def clear(self) -> None:
        """Forget everything."""
        self.grown.clear()
        self.copies.clear()

    def take_copies(self) -> Int32Array:
        """int32 [m, 3] of (group, source, destination) blocks since the last call."""
        copies, self.copies = self.copies, []
        return np.array(copies, np.int32).reshape(-1, 3)

    def take_updates(self) -> TableUpdates:
        """Block-table deltas since the last call."""
        if not self.grown:
            return TableUpdates.empty()
        grown, self.grown = self.grown, []
        return TableUpdates(
            slots=np.array([slot for slot, _, _, _ in grown], np.int32),
            groups=np.array([group for _, group, _, _ in grown], np.int32),
            starts=np.array([begin for _, _, begin, _ in grown], np.int32),
            counts=np.array([len(blocks) for _, _, _, blocks in grown], np.int32),
            block_ids=np.array([block for _, _, _, blocks in grown for block in blocks], np.int32),
        )
