"""`RepeatedStep`: a packed decode step that is reused for the next one with the same sequences.

From one decode step to the next most of the packed data stays: slots, settings and padding. Data that changes with every
token is rewritten from the batch, so that none of it can be stale. After a step that starts a sequence, or that does not
repeat the one before for another reason, the next step is packed from scratch.

    | dest | shaped, masked | ends | guessed, temperature ... | u | ids | source | positions | cells | slots | lengths | pieces |
      new                     new                              new  new   new      new         new             new       new
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from executors.contract import noise
from executors.contract.batch import UnifiedBatch
from executors.llm.attention.key_pieces import WORDS
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.sampling.shaped_slots import Following, ShapedSlots
from executors.llm.step.launched.graphs import StepGraph
from executors.llm.step.launched.inputs import StepShape, cells_of, num_words, section_of

MOVING = ("token_ids", "source", "positions", "cells", "lengths", "pieces", "dest", "ends", "u")
"""Sections that are rewritten in every step; of `cells` there are as many as groups of KV blocks."""
STAYING = (
    "slots",
    "shaped",
    "masked",
    "guessed",
    "lora_rows",
    "lora_owners",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)
"""Sections that depend only on the step's sequences; an adapter keeps its place as long as a sequence has it. A step that repeats
has no other sections."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Data that the rows of a step share with those of the next, each array [n] in the order of rows: `pool` int64, the start
    of each slot in the token pool; `tables` int64, the start of its blocks in the flattened block tables; `keys` uint64 of
    its noise."""

    pool: np.ndarray
    tables: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True, slots=True)
class _KeptPieces:
    """Pieces cut when the first row had `first` keys; they are valid until it has `lasts` more. `places` int64 of the words
    with the ends of rows' last pieces, which grow; `ends` int32: their values at the cut."""

    first: int
    lasts: int
    places: np.ndarray
    ends: np.ndarray


class RepeatedStep:
    """`words` int32: the step as it was packed last. `sampled` bool [n] and `places` int64 [n], the row of each item, for its
    result; `logprobs`: those to read, None if there are none; `shaped`: the device shapes logits of the step and has to know
    which inputs count; `grammar_items` int64 [k]: items that follow a grammar, in the order of rows."""

    def __init__(
        self, batch: UnifiedBatch, order: np.ndarray, rows: Callable[[], Rows],
        cut: Callable[[np.ndarray], np.ndarray], lasts: Callable[[np.ndarray], int],
        words: np.ndarray, program: tuple[StepShape, StepGraph], places: np.ndarray, logprobs: LogprobRows | None, shaped: bool,
        grammar_items: np.ndarray,
    ) -> None:  # fmt: skip
        """`batch`: a step of single tokens, all of which are sampled; `order` int64 [n]: its items in the order of their
        rows; `words` int32: the packed step for the graph in `program`; it is copied. `rows` is called only once a step repeats
        this one, because many steps are followed by different ones.

        `cut` returns the pieces, int32 [k, WORDS], of rows of given lengths; `lasts`: see `PieceRule.lasts`.
        """
        self.shape, self.graph = program
        self.words = words[: num_words(self.shape)].copy()
        self.sampled = np.ones(len(batch), np.bool_)
        self.places = places
        self.logprobs = logprobs
        self.shaped = shaped
        self.grammar_items = grammar_items
        self._batch = batch
        self._key = _key(batch)
        self._order = order
        self._first, self._last = int(order[0]), int(order[-1])
        self._make_rows = rows
        self._cut, self._lasts = cut, lasts
        self._last_pieces: _KeptPieces | None = None
        self._following: Following | None = None

    @cached_property
    def _rows(self) -> Rows:
        return self._make_rows()

    @cached_property
    def _of(self) -> dict[str, np.ndarray]:
        """Return the sections that are rewritten, without padding, by name."""
        names = (*MOVING, *(cells_of(group) for group in range(1, self.shape.groups)))
        sections = {name: section_of(self.words, self.shape, name) for name in names}
        # How many pieces there are may change.
        return {name: one if name == "pieces" else one[: len(self._order)] for name, one in sections.items()}

    @cached_property
    def _in_order(self) -> bool:
        """Whether rows are in the order of items."""
        return bool((self._order == np.arange(len(self._order))).all())

    @cached_property
    def _pending(self) -> np.ndarray | None:
        """bool [n]: the rows whose token the host does not know; None if it knows all."""
        pending = self._batch.pending
        return None if pending is None or not pending.any() else pending[self._order]

    @cached_property
    def all_pending(self) -> bool:
        """Whether the host knows none of the step's tokens."""
        return self._pending is not None and bool(self._pending.all())

    def following(self, slots: ShapedSlots) -> Following:
        """Return the items whose settings depend on earlier tokens. Slots keep their sequences as long as there is a step to
        repeat."""
        if self._following is None:
            self._following = slots.following(self._batch.slots)
        return self._following

    def repeats(self, batch: UnifiedBatch, width: int, longest: int) -> bool:
        """Return whether a step differs from this one only in what is rewritten. Return False also for a step that must be
        refused, because a token is not below `width` or a sequence has more than `longest` tokens. Its tables are checked
        later."""
        offsets, before = batch.pos_offsets, self._batch.pos_offsets
        if batch.starts or _key(batch) != self._key or len(offsets) != len(before):
            return False
        # All moved on by as much: those with most keys are the same, and the first row has the most.
        moved = offsets - before
        if not (moved == moved[0]).all() or offsets[self._last] < 0 or offsets[self._first] >= longest:
            return False
        if len(batch.token_ids) != len(offsets):
            return False
        if self.all_pending:
            return True
        ids = batch.token_ids if batch.pending is None else batch.token_ids[~batch.pending]
        return bool(ids.min() >= 0 and ids.max() < width)

    def move(self, batch: UnifiedBatch, tables: Sequence[np.ndarray], size: int) -> None:
        """Rewrite every section of `MOVING` in `words` from a step that repeats this one. `tables` int32: the host's
        flattened block tables of each group, of blocks of `size` tokens."""
        rows, of = self._rows, self._of
        positions, lengths = of["positions"], of["lengths"]
        of["token_ids"][:] = self._ordered(batch.token_ids)
        positions[:] = self._ordered(batch.pos_offsets)
        np.add(positions, 1, out=lengths)
        of["ends"][:] = lengths
        if self.shape.pieces:
            self._move_pieces(of["pieces"], lengths)
        if self.all_pending:
            np.add(rows.pool, positions, out=of["source"])
        elif self._pending is not None:
            of["source"][:] = np.where(self._pending, rows.pool + positions, -1)
        page, place = np.divmod(positions, size)
        page += rows.tables
        for group, one in enumerate(tables):
            cells = of[cells_of(group)]
            np.multiply(one[page], size, out=cells)
            cells += place
        np.add(rows.pool, lengths, out=of["dest"])
        of["u"][:] = noise.at(rows.keys, lengths.astype(np.uint64))

    def _move_pieces(self, words: np.ndarray, lengths: np.ndarray) -> None:
        """Write the pieces of rows of these lengths. All rows grow equally, so one row shows how long the cut is valid."""
        first, before = int(lengths[0]), self._last_pieces
        if before is not None and 0 <= first - before.first < before.lasts:
            words[before.places] = before.ends + (first - before.first)
            return
        pieces = self._cut(lengths)
        words[: pieces.size] = pieces.ravel()
        words[pieces.size :] = -1
        # Rows of padding have pieces too, which stay empty.
        padded = np.zeros(int(pieces[:, 0].max()) + 1, np.int32)
        padded[: len(lengths)] = lengths
        last = np.flatnonzero((pieces[:, 2] == padded[pieces[:, 0]]) & (pieces[:, 0] < len(lengths)))
        self._last_pieces = _KeptPieces(first, self._lasts(lengths), last * WORDS + 2, pieces[last, 2])

    def write(self, words: np.ndarray) -> None:
        """Copy the current step into the packed array of the next."""
        words[: len(self.words)] = self.words

    def _ordered(self, values: np.ndarray) -> np.ndarray:
        return values if self._in_order else values[self._order]


def _key(batch: UnifiedBatch) -> tuple[bytes, ...]:
    """Return a key that is equal for steps that repeat each other, apart from settings: the sequences, their slots and
    numbers of tokens, which tokens are known, and what is requested of them."""
    return (
        batch.seq_ids.tobytes(), batch.slots.tobytes(), batch.num_q_tokens.tobytes(), batch.is_final_chunk.tobytes(),
        batch.num_draft_tokens.tobytes(), b"" if batch.pending is None else batch.pending.tobytes(),
    )  # fmt: skip
