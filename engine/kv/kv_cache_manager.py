"""Who holds which KV block. The engine's side of paged KV: ids and counts only, the tensors are the executor's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine.core.sequence import Sequence
from engine.kv.block_pool import BlockPool
from executors.contract import KvLayout, TableUpdates


class KvCacheManager:
    """Grows and frees block tables; collects what changed for the next step.

    The only writer of `Sequence.block_table`. With an executor that owns its KV (`num_blocks == 0`) every table stays
    empty and every request for room succeeds.
    """

    def __init__(self, layout: KvLayout) -> None:
        self.layout = layout
        self.pool = BlockPool(layout.num_blocks)
        self._grown: list[tuple[int, int, list[int]]] = []

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.layout.block_size) if self.layout.num_blocks else 0

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make the sequence's table cover `num_tokens`. False, and nothing changed, if the pool has too few blocks.

        The sequence must have its slot already.
        """
        missing = self.blocks_for(num_tokens) - len(seq.block_table)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        assert seq.slot is not None, "blocks are laid out for a slot"
        self._grown.append((seq.slot, len(seq.block_table), blocks))
        seq.block_table.extend(blocks)
        return True

    def free(self, seq: Sequence) -> None:
        """Give back all blocks of a sequence that no step in flight uses. Last blocks first: a prefix is kept longest."""
        if seq.block_table:
            self._grown = [entry for entry in self._grown if entry[0] != seq.slot]
            self.pool.release(reversed(seq.block_table))
            seq.block_table = []

    def take_updates(self) -> TableUpdates:
        """Block-table deltas since the last call, for the next batch."""
        if not self._grown:
            return TableUpdates.empty()
        grown, self._grown = self._grown, []
        return TableUpdates(
            slots=np.array([slot for slot, _, _ in grown], np.int32),
            groups=np.zeros(len(grown), np.int32),
            starts=np.array([start for _, start, _ in grown], np.int32),
            counts=np.array([len(blocks) for _, _, blocks in grown], np.int32),
            block_ids=np.array([block for _, _, blocks in grown for block in blocks], np.int32),
        )

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises RuntimeError unless free + used = total and references equal the tables of these sequences."""
        self.pool.check_integrity(seq.block_table for seq in sequences)
