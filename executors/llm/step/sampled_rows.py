"""`SampledRows`: the rows that a step samples, with those behind drafts, and which of their tokens count."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from executors.contract.batch import UnifiedBatch
from executors.llm.sampling.slot_grammars import ItemMasks
from executors.llm.step_arrays import StepArrays

NO_GUESS = -1
"""Stands behind the last sampled row of an item, which verifies no draft. No token has this id."""


class SampledRows(NamedTuple):
    """Rows of a step that are sampled: of each final item the one behind its last known token, and one behind each draft.

        inputs of an item    t5  t6  d7  d8      drafts = 2, pos_offset = 5
        sampled rows             r0  r1  r2      for positions 7, 8, 9
        guesses                  d7  d8  -1      of what r0, r1, r2 will give

    Per item, int64 [n]: `drafts`, `counts` of rows, and `starts`, the first of those rows. Per row: int64 its `item`, its
    `place` among the item's rows, its number among the step's `rows`, and the `position` of its token; int32 `guesses`: the draft
    behind it, `NO_GUESS` behind the last. `masks`: the pending token masks of items under a grammar, or None if there are no such
    items.
    """

    drafts: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    item: np.ndarray
    place: np.ndarray
    rows: np.ndarray
    positions: np.ndarray
    guesses: np.ndarray
    masks: Future[dict[int, ItemMasks]] | None = None

    @staticmethod
    def of(batch: UnifiedBatch, step: StepArrays, sampled: np.ndarray) -> SampledRows:
        """Find the rows of the items that are `sampled`, bool [n]."""
        drafts = batch.num_draft_tokens.astype(np.int64)
        counts = np.where(sampled, drafts + 1, 0)
        item = np.repeat(np.arange(len(batch)), counts)
        starts = np.cumsum(counts) - counts
        place = np.arange(len(item)) - starts[item]
        rows = (step.q_starts + step.q_lens - 1 - drafts)[item] + place
        guesses = np.full(len(rows), NO_GUESS, np.int32)
        if drafts.any():
            behind = np.flatnonzero(place < drafts[item])
            guesses[behind] = batch.token_ids[rows[behind] + 1]
        return SampledRows(drafts, counts, starts, item, place, rows, step.positions[rows] + 1, guesses)

    def keep(self, tokens: np.ndarray, bad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows count (bool), and, int32 [n], how many of each item: its accepted drafts and one more.

        `tokens` int32: what each row gave; `bad` bool: rows that gave none. A draft is accepted iff it is what the row before it
        gave, and so are the drafts before it: in the example d7 iff r0 = d7, and d8 iff r1 = d8 as well. A bad row is its item's
        last one.
        """
        # The first row that stops an item is its last one that counts; the row behind the last draft always stops.
        stop_place = np.where((tokens != self.guesses) | bad, self.place, len(self.place))
        num_tokens = np.zeros(len(self.counts), np.int32)
        nonempty = self.counts > 0
        if nonempty.any():
            num_tokens[nonempty] = np.minimum.reduceat(stop_place, self.starts[nonempty]) + 1
        return self.place < num_tokens[self.item], num_tokens
