"""`Work`: one packed forward of a fake, whichever member of the contract asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import Int32Array
from executors.contract.errors import InvalidInput
from executors.testing.fakes import oracle


@dataclass(slots=True)
class Work:
    """n items, packed as in `UnifiedBatch`.

    - `rows` int32 [n]: the sequences' rows in the fake's own arrays (memory, sampled tokens).
    - `pos` and `counts` int32 [n], `tokens` int32 [total], `salts` uint64 [n] (adapters; 0 for none).
    - `tables` int32 [groups, n, max_blocks], `table_lengths` int32 [groups, n]: block tables of a paged fake.
    - `state_src` and `state_dst` int32 [n], `snapshots` int32 [m, 3]: as in the batch, of a fake with states; None in a forward
      of its own members, without a batch.
    """

    rows: Int32Array
    pos: Int32Array
    counts: Int32Array
    tokens: Int32Array
    salts: NDArray[np.uint64]
    tables: Int32Array | None = None
    table_lengths: Int32Array | None = None
    state_src: Int32Array | None = None
    state_dst: Int32Array | None = None
    snapshots: Int32Array | None = None
    starts: Int32Array = field(init=False)
    item_of: NDArray[np.intp] = field(init=False)
    positions: Int32Array = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.rows)
        self.starts = np.zeros(n + 1, np.int32)
        np.cumsum(self.counts, out=self.starts[1:])
        if len(self.tokens) == n:  # a pure decode step, the case that must be fast
            self.item_of = np.arange(n)
            self.positions = self.pos
        else:
            self.item_of = np.repeat(np.arange(n), self.counts)
            within = np.arange(len(self.tokens), dtype=np.int32) - self.starts[self.item_of]
            self.positions = (self.pos[self.item_of] + within).astype(np.int32)

    @property
    def ends(self) -> Int32Array:
        """int32 [n]: length of each sequence once its tokens are written."""
        ends: Int32Array = self.pos + self.counts
        return ends


@dataclass(slots=True)
class Computed:
    """What the forward of a `Work` gave, per token: prefix and digest after it, and the cell to write for it."""

    prefix: NDArray[np.uint64]
    digest: NDArray[np.uint64]
    cell: NDArray[np.uint64]


def compute(work: Work, prefix: NDArray[np.uint64], digest: NDArray[np.uint64]) -> Computed:
    """The forward: running sums within each item, from each item's `prefix` and `digest` uint64 [n] before it."""
    c = oracle.contributions(work.tokens, work.positions, work.salts[work.item_of])
    after = running_sum(work, c, prefix)
    cell = oracle.cells(c, after - c)
    return Computed(after, running_sum(work, cell, digest), cell)


def running_sum(work: Work, values: NDArray[np.uint64], before: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sums of `values`, one per token, within each item, from `before` uint64 [n] on."""
    if len(values) == len(before):
        return before + values
    total = np.cumsum(values)
    first = work.starts[:-1]
    # Take out what earlier items added to the sum, put in what this item starts from (modulo 2^64).
    shift = before - (total[first] - values[first])
    return total + shift[work.item_of]


def check_tokens(work: Work, vocab_size: int, max_sequence_length: int) -> None:
    """Raises InvalidInput for tokens out of range or a sequence that would be too long."""
    if len(work.tokens) and (work.tokens.min() < 0 or work.tokens.max() >= vocab_size):
        raise InvalidInput(f"a token id is outside 0..{vocab_size - 1}")
    if len(work.pos) and (work.pos.min() < 0 or int(work.ends.max()) > max_sequence_length):
        raise InvalidInput(f"a sequence would exceed {max_sequence_length} tokens")
