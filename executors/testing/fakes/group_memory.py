"""`GroupMemory`: the blocks of one KV group of the paged fake."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executors.contract.errors import InvalidInput
from executors.testing.fakes import oracle
from executors.testing.fakes.work import Work, running_sum

_NO_MASK = np.uint64(0)
Cells = NDArray[np.int64]
"""Places in the flat memory of a group."""


class GroupMemory:
    """Cells in blocks, which it reads and writes where the caller says.

    - `written` bool [num_blocks, block_size]: False where a cell is poisoned. `cells` uint64: what was written for a token.
    - `prefix` uint64: the running prefix after the cell's token. `tainted` bool: the cell holds no number; an item that failed
      alone has written it.

    `cells` and `prefix` are xored with `mask`.
    """

    def __init__(
        self, index: int, window: int | None, num_blocks: int, block_size: int, mask: np.uint64 = _NO_MASK
    ) -> None:
        shape = (num_blocks, block_size)
        self.index = index
        self.mask = mask
        self.window = window
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.written = np.zeros(shape, np.bool_)
        self.cells = np.zeros(shape, np.uint64)
        self.prefix = np.zeros(shape, np.uint64)
        self.tainted = np.zeros(shape, np.bool_)

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """All that the blocks hold; each array [num_blocks, block_size]."""
        return self.written, self.cells, self.prefix, self.tainted

    def copy(self, source: NDArray[np.int32], destination: NDArray[np.int32]) -> None:
        """Copy whole blocks, poisoned cells included."""
        for memory in self.arrays():
            memory[destination] = memory[source]

    def poison(self, blocks: NDArray[np.int32]) -> None:
        """Who reads these blocks is refused from now on. Raises InvalidInput for one that does not exist."""
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < self.num_blocks:
            raise InvalidInput(f"release_memory names a block outside 0..{self.num_blocks - 1}")
        self.written[blocks] = False
        self.tainted[blocks] = False

    # -- reading -------------------------------------------------------------------------------------------------------

    def begins(self, positions: NDArray[np.int32]) -> NDArray[np.int64]:
        """int64: the first position that a token at each of `positions` reads."""
        if self.window is None:
            return np.zeros(len(positions), np.int64)
        return np.maximum(0, positions.astype(np.int64) - self.window + 1)

    def check_written(self, cell: Cells, rows: NDArray[np.int32], position: NDArray[np.int64]) -> None:
        """Raises InvalidInput if one of these cells was not written; it is read for this row and position."""
        unwritten = ~self.written.reshape(-1)[cell]
        if unwritten.any():
            bad = int(np.flatnonzero(unwritten)[0])
            block = int(cell[bad]) // self.block_size
            raise InvalidInput(
                f"row {rows[bad]} reads position {position[bad]} in group {self.index}, block {block}: not written"
            )

    def values(self, cell: Cells) -> NDArray[np.uint64]:
        """uint64: what was written for the tokens of these cells."""
        values: NDArray[np.uint64] = self.cells.reshape(-1)[cell] ^ self.mask
        return values

    def prefixes(self, cell: Cells) -> NDArray[np.uint64]:
        """uint64: the running prefix after the tokens of these cells."""
        prefixes: NDArray[np.uint64] = self.prefix.reshape(-1)[cell] ^ self.mask
        return prefixes

    def totals(self, cell: Cells, counts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """uint64 [n]: sums of the first counts[0] of these cells, of the next counts[1], ..."""
        total = np.zeros(len(counts), np.uint64)
        some = np.flatnonzero(counts)
        if len(some):
            begin = np.cumsum(counts) - counts
            total[some] = np.add.reduceat(self.values(cell), begin[some])
        return total

    def sums(
        self, work: Work, first_cells: NDArray[np.uint64], cell: Cells, counts: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """This group's part of the digest after each token of the step. `first_cells`: what the first group writes for these
        tokens; `cell`, `counts`: the history that each item's first token reads."""
        own = oracle.group_cells(first_cells, self.index)
        total = running_sum(work, own, self.totals(cell, counts))
        if self.window is None:
            return total
        ends = np.cumsum(counts)
        for i in np.flatnonzero((work.counts > 1) & (work.ends > self.window)).tolist():
            # Of the history and the item's own cells in a line, each token adds one and leaves those behind its window.
            of_item = slice(int(work.starts[i]), int(work.starts[i + 1]))
            past = self.values(cell[ends[i] - counts[i] : ends[i]])
            line = np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.concatenate([past, own[of_item]]))])
            behind = np.arange(len(past) + 1, len(line))
            total[of_item] = line[behind] - line[np.maximum(0, behind - self.window)]
        return total

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, cell: Cells, first_cells: NDArray[np.uint64], prefix: NDArray[np.uint64]) -> None:
        """Keep what was computed for the tokens of these cells."""
        own = oracle.group_cells(first_cells, self.index) ^ self.mask
        same = self.written.reshape(-1)[cell] & (self.cells.reshape(-1)[cell] == own)
        self.cells.reshape(-1)[cell] = own
        self.prefix.reshape(-1)[cell] = prefix ^ self.mask
        # Behind its new content a block has that of an earlier owner, which no step may read.
        block, offset = cell[~same] // self.block_size, cell[~same] % self.block_size
        last = np.full(self.num_blocks, -1)
        np.maximum.at(last, block, offset)
        touched = np.flatnonzero(last >= 0)
        self.written[touched] &= np.arange(self.block_size) <= last[touched, None]
        self.written.reshape(-1)[cell] = True
