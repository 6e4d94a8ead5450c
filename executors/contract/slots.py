"""`SlotTable`: the persistent half of a `UnifiedBatch`, kept by the executor. Standard library and NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import Int32Array, SequenceStart, TableUpdates, UnifiedBatch
from executors.contract.errors import InvalidInput
from executors.contract.token_history import TokenHistory


class SlotTable:
    """A row per slot: the sequence's start and its block tables.

    Written only by `apply` or `update` (before a step) and `release`; read by the runner and by `UnifiedBatch.items`.

    - `block_tables[group]`: int32 [num_slots, max_blocks], rows valid up to `num_blocks[group, slot]`. Entries of a window group
      that lie behind the window of the sequence's next token are stale, and must not be read.
    - `failed`: a step of this epoch failed; set by the split path, which answers `Skipped` from then on.
    """

    def __init__(self, num_slots: int, max_blocks: int, windows: Sequence[int | None] = (None,)) -> None:
        """`windows`: of each KV group, as in `KvGroup`."""
        self.num_slots = num_slots
        self._tables = np.zeros((len(windows), num_slots, max_blocks), np.int32)
        self.block_tables = [*self._tables]
        self.num_blocks = np.zeros((len(windows), num_slots), np.int32)
        self._may_skip = [window is not None for window in windows]
        """By group: whether an update may begin behind the table's end, because what is between is not read."""
        self._starts: list[SequenceStart | None] = [None] * num_slots
        self.failed = False
        self._slot_of: dict[int, int] = {}
        self._sampled: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._hidden: dict[int, tuple[int, NDArray[np.float64]]] = {}
        self._histories: dict[int, TokenHistory] = {}

    def apply(self, batch: UnifiedBatch) -> None:
        """Apply the batch's starts and block-table deltas. Call once, before the forward.

        Raises InvalidInput, and changes nothing, if a slot is out of range, taken, or unknown, or a table would have a hole.
        """
        one_each = self._check(batch)
        for start in batch.starts:
            self._admit(start)
        self._write(batch.tables, one_each)

    def update(self, tables: TableUpdates) -> None:
        """Apply the block-table deltas of a batch without starts, whose sequences are known to be in their slots.

        Raises InvalidInput as `apply`, and then changes nothing.
        """
        self._write(tables, self._check_tables(tables, {}))

    def _write(self, tables: TableUpdates, one_each: bool) -> None:
        if one_each:
            self._tables[tables.groups, tables.slots, tables.starts] = tables.block_ids
            self.num_blocks[tables.groups, tables.slots] = tables.starts + 1
            return
        begin = 0
        for i in range(len(tables.slots)):
            slot, group, first, count = (
                int(a[i]) for a in (tables.slots, tables.groups, tables.starts, tables.counts)
            )
            self.block_tables[group][slot, first : first + count] = tables.block_ids[begin : begin + count]
            self.num_blocks[group, slot] = first + count
            begin += count

    def check(self, batch: UnifiedBatch) -> None:
        """Check whether `apply` accepts this batch. Changes nothing; raises InvalidInput as `apply` does."""
        self._check(batch)

    def _check(self, batch: UnifiedBatch) -> bool:
        """As `_check_tables`."""
        started = self._check_starts(batch)
        slot_of = self._slot_of
        for seq_id, slot in zip(batch.seq_ids.tolist(), batch.slots.tolist(), strict=True):
            if slot_of.get(seq_id) != slot and started.get(slot) != seq_id:
                raise InvalidInput(f"sequence {seq_id} was never started in slot {slot}")
        return self._check_tables(batch.tables, started)

    def _check_tables(self, tables: TableUpdates, started: dict[int, int]) -> bool:
        """Whether the deltas are one block each for different tables. `started`: the slots of the same batch's starts, whose
        tables are empty. Raises InvalidInput."""
        if not started and self._one_block_each(tables):
            return True
        if int(tables.counts.sum()) != len(tables.block_ids):
            raise InvalidInput(
                f"table updates count {int(tables.counts.sum())} ids, there are {len(tables.block_ids)}"
            )
        # Several updates may follow one another on one table: what the earlier ones make of it is tracked here.
        lengths: dict[tuple[int, int], int] = {}
        for i in range(len(tables.slots)):
            slot, group, first, count = (
                int(a[i]) for a in (tables.slots, tables.groups, tables.starts, tables.counts)
            )
            if not (0 <= slot < self.num_slots and 0 <= group < len(self.block_tables)):
                raise InvalidInput(f"there is no block table of slot {slot}, group {group}")
            if slot not in started and self._starts[slot] is None:
                raise InvalidInput(f"block table of slot {slot}: the slot is empty")
            length = lengths.get((group, slot), 0 if slot in started else int(self.num_blocks[group, slot]))
            hole = first > length and not self._may_skip[group]
            if count < 0 or first < 0 or hole or first + count > self.block_tables[group].shape[1]:
                raise InvalidInput(
                    f"block table of slot {slot}: cannot write {count} ids from index {first} on"
                )
            lengths[group, slot] = first + count
        return False

    def _one_block_each(self, tables: TableUpdates) -> bool:
        """Whether the deltas have the usual form of decode steps and are valid: one block for each of some tables, within the
        table or where it may go on."""
        slots, groups, starts = tables.slots.tolist(), tables.groups.tolist(), tables.starts.tolist()
        if not slots or not len(slots) == len(groups) == len(starts) == len(tables.block_ids):
            return False
        if tables.counts.tolist() != [1] * len(slots):
            return False
        if len(set(zip(groups, slots, strict=True)) if any(groups) else set(slots)) != len(slots):
            return False
        if min(slots) < 0 or max(slots) >= self.num_slots or min(starts) < 0:
            return False
        num_groups, _, max_blocks = self._tables.shape
        if min(groups) < 0 or max(groups) >= num_groups or max(starts) >= max_blocks:
            return False
        lengths = self.num_blocks[tables.groups, tables.slots].tolist()
        return all(
            (start <= blocks or self._may_skip[group]) and self._starts[slot] is not None
            for slot, group, start, blocks in zip(slots, groups, starts, lengths, strict=True)
        )

    def _check_starts(self, batch: UnifiedBatch) -> dict[int, int]:
        """{slot: sequence} of the batch's starts."""
        started: dict[int, int] = {}
        seq_ids: set[int] = set()
        for start in batch.starts:
            if not 0 <= start.slot < self.num_slots:
                raise InvalidInput(f"slot {start.slot} is outside 0..{self.num_slots - 1}")
            owner = self._starts[start.slot]
            if owner is not None and owner.seq_id != start.seq_id:
                raise InvalidInput(f"slot {start.slot} still belongs to sequence {owner.seq_id}")
            if start.slot in started or start.seq_id in seq_ids:
                raise InvalidInput(f"sequence {start.seq_id} or slot {start.slot} is started twice")
            if self._slot_of.get(start.seq_id, start.slot) != start.slot:
                raise InvalidInput(
                    f"sequence {start.seq_id} holds slot {self._slot_of[start.seq_id]} already"
                )
            started[start.slot] = start.seq_id
            seq_ids.add(start.seq_id)
        return started

    def _admit(self, start: SequenceStart) -> None:
        self._starts[start.slot] = start
        self._slot_of[start.seq_id] = start.slot
        self.num_blocks[:, start.slot] = 0
        self._sampled.pop(start.slot, None)
        self._hidden.pop(start.slot, None)
        self._histories.pop(start.slot, None)

    def remember(self, seq_id: int, position: int, token_ids: Sequence[int]) -> None:
        """Keep the tokens just sampled for `position` and those after it, for a later step's `pending` inputs."""
        self._sampled[self._slot_of[seq_id]] = (position, tuple(token_ids))

    def recall(self, seq_id: int, position: int) -> int:
        """The token sampled last for a sequence and position. Raises InvalidInput if it is not known."""
        first, tokens = self._sampled.get(self._slot_of[seq_id], (0, ()))
        if not first <= position < first + len(tokens):
            raise InvalidInput(
                f"sequence {seq_id}: no token was sampled for position {position}, it cannot be pending"
            )
        return tokens[position - first]

    def add_hidden(
        self, slot: int, position: int, total: NDArray[np.float64], count: int
    ) -> NDArray[np.float64]:
        """Add hidden states of `count` tokens from `position` on; returns the sum since position 0 (mean pooling).

        Raises InvalidInput when the tokens before `position` were never added.
        """
        length, total_before = self._hidden.get(slot, (0, np.zeros_like(total)))
        if position == 0:
            length, total_before = 0, np.zeros_like(total)
        if length != position:
            raise InvalidInput(
                f"slot {slot}: mean pooling from position {position} on, but {length} tokens were seen"
            )
        self._hidden[slot] = (length + count, total_before + total)
        return total_before + total

    def history_of(self, slot: int) -> TokenHistory:
        """The tokens of the sequence in a slot, created from its start on the first call; the caller keeps it up to date.

        Raises InvalidInput for an empty slot.
        """
        history = self._histories.get(slot)
        if history is None:
            history = self._histories[slot] = TokenHistory.of(self.start_of(slot))
        return history

    def release(self, seq_id: int) -> int | None:
        """Forget a sequence; returns the slot it held, None if it is unknown (harmless)."""
        slot = self._slot_of.pop(seq_id, None)
        if slot is not None:
            self._starts[slot] = None
            self._sampled.pop(slot, None)
            self._hidden.pop(slot, None)
            self._histories.pop(slot, None)
            self.num_blocks[:, slot] = 0
        return slot

    def clear(self) -> None:
        """Forget all sequences, at the beginning of a new epoch."""
        self.failed = False
        for seq_id in list(self._slot_of):
            self.release(seq_id)

    def slot_of(self, seq_id: int) -> int | None:
        """The slot of a known sequence."""
        return self._slot_of.get(seq_id)

    def holds(self, slot: int) -> bool:
        """Whether a sequence is in the slot."""
        return self._starts[slot] is not None

    def start_of(self, slot: int) -> SequenceStart:
        """The start of the sequence in a slot. Raises InvalidInput for an empty slot."""
        start = self._starts[slot]
        if start is None:
            raise InvalidInput(f"slot {slot} is empty")
        return start

    def block_tables_of(self, slot: int) -> tuple[Int32Array, ...]:
        """One int32 view per KV group, as long as the table is, stale entries included. Empty when the executor owns its KV."""
        return tuple(
            table[slot, : self.num_blocks[group, slot]]
            for group, table in enumerate(self.block_tables)
            if table.shape[1]
        )

    def __len__(self) -> int:
        return len(self._slot_of)
