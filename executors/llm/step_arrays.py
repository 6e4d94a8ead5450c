"""`StepArrays`: the items of one forward in NumPy, the same for every kind of call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from executors.contract.batch import Int32Array, TableUpdates
from executors.contract.errors import InvalidInput
from executors.llm.row_loras import StepLoras


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where the states of n items lie: int64 [n] `sources` (-1: zeros) and `destinations`, and `snapshots` int64 [m, 3] of (item,
    position, slot), see `UnifiedBatch`."""

    sources: np.ndarray
    destinations: np.ndarray
    snapshots: np.ndarray

    def subset(self, items: np.ndarray) -> StateSlots:
        """Return those of the given items, int64 [k], rising."""
        snapshots = self.snapshots[np.isin(self.snapshots[:, 0], items)]
        snapshots = np.column_stack((np.searchsorted(items, snapshots[:, 0]), snapshots[:, 1:]))
        return StateSlots(self.sources[items], self.destinations[items], snapshots)


@dataclass
class StepArrays:
    """The packed items of one forward; n items, T tokens.

    `token_ids` int64 [T]; `q_lens`, `pos_offsets` int64 [n]; `tables` int32 [n, at least the longest item's blocks] of the first
    group of blocks, `more_tables` of the others; entries of a window group below an item's window are stale.
    `rotary_positions` int64 [T] if they differ from the positions in the cache, else None. `used_rows` int64, ascending: the
    rows whose hidden states are used; None for all rows. `adapters`: LoRA adapters of the rows, None if no row has one.
    `states`: where the items' states lie; None if the step names no slots of states.
    """

    token_ids: np.ndarray
    q_lens: np.ndarray
    pos_offsets: np.ndarray
    tables: np.ndarray
    rotary_positions: np.ndarray | None = None
    used_rows: np.ndarray | None = None
    adapters: StepLoras | None = None
    states: StateSlots | None = None
    more_tables: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.q_lens)

    @cached_property
    def q_starts(self) -> np.ndarray:
        """int64 [n]: the first row of each item."""
        return np.cumsum(self.q_lens) - self.q_lens

    @cached_property
    def item_of_row(self) -> np.ndarray:
        """int64 [T]: the item each row belongs to."""
        return np.repeat(np.arange(len(self.q_lens)), self.q_lens)

    @cached_property
    def positions(self) -> np.ndarray:
        """int64 [T]: the position of each token in its sequence."""
        return np.arange(len(self.token_ids)) + np.repeat(self.pos_offsets - self.q_starts, self.q_lens)

    def of_group(self, group: int) -> StepArrays:
        """Return the same items with the block tables of one group."""
        if group == 0:
            return self
        step = copy.copy(self)  # with what was computed of it
        step.tables = self.more_tables[group - 1]
        return step

    def rows_of(self, items: np.ndarray) -> np.ndarray:
        """int64: all rows of the given items, item by item."""
        lens = self.q_lens[items]
        ends = np.cumsum(lens)
        return np.arange(ends[-1]) + np.repeat(self.q_starts[items] - ends + lens, lens)

    def subset(self, items: np.ndarray) -> StepArrays:
        """Return the given items as a step of their own."""
        rows = self.rows_of(items)
        rotary = None if self.rotary_positions is None else self.rotary_positions[rows]
        return StepArrays(
            self.token_ids[rows],
            self.q_lens[items],
            self.pos_offsets[items],
            self.tables[items],
            rotary,
            adapters=None if self.adapters is None else self.adapters.subset(rows),
            states=None if self.states is None else self.states.subset(items),
            more_tables=tuple(tables[items] for tables in self.more_tables),
        )


def pack_tables(tables: list[np.ndarray], lengths: list[int], block_size: int, num_blocks: int) -> np.ndarray:
    """int32 [n, widest]: block tables of different lengths as one array. Each table must cover its `lengths` tokens.

    Raises InvalidInput for a table that is too short or names a block that does not exist.
    """
    needed = [-(-length // block_size) for length in lengths]
    packed = np.zeros((len(tables), max(needed, default=0)), np.int32)
    for i, (table, count) in enumerate(zip(tables, needed, strict=True)):
        if len(table) < count:
            raise InvalidInput(
                f"item {i}: {len(table)} blocks of {block_size} do not hold {lengths[i]} tokens"
            )
        packed[i, :count] = table[:count]
    if packed.size and (packed.min() < 0 or packed.max() >= num_blocks):
        raise InvalidInput(f"a block id is outside 0..{num_blocks - 1}")
    return packed


def whole_tables(slots: Int32Array, tables: Sequence[np.ndarray]) -> TableUpdates:
    """Return the updates that write whole block tables: int32 [n, blocks] for each group, of sequences in `slots`."""
    count, groups = len(slots), len(tables)
    return TableUpdates(
        np.tile(slots, groups),
        np.repeat(np.arange(groups, dtype=np.int32), count),
        np.zeros(groups * count, np.int32),
        np.repeat([table.shape[1] for table in tables], count).astype(np.int32),
        np.concatenate([table.reshape(-1) for table in tables]).astype(np.int32),
    )
