"""`DraftCompanion`: a smaller model that guesses the next tokens of sequences, for the next step to verify.

Its keys and values lie in the model's blocks (`PagedCompanion`). What is missing there is computed when a step asks for drafts.
Layers with heads of different sizes have tensors of their own under the same ids.

    filled[block]   how many of the block's first cells hold KV of the tokens that the model has there
    ahead[slot]     the tokens behind the known ones whose KV the last drafting wrote: those that were accepted are filled, too

    known tokens    t0 .. t6 | x          x: sampled by this very step, at the position `known - 1`
    filled          t0 .. t4
    first forward   t5 t6 x               -> d1
    second forward  d1                    -> d2, and so on: the KV of the last draft is not computed

A draft is chosen with the settings and the noise of the token that it guesses. Penalties and grammars are left out: a draft that
they forbid is not accepted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from executors.contract.batch import Drafts, UnifiedBatch, UnifiedOutput
from executors.llm.spec.base import ModelSide, PagedCompanion, drafts_of
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays

CATCH_UP = 256
"""Tokens that a sequence may compute in a step beside those that the step itself adds to it."""


@dataclass(slots=True)
class Ahead:
    """Token ids at positions `begin`, `begin + 1`, ... whose KV was computed before they were known."""

    begin: int
    token_ids: list[int]


@dataclass(slots=True)
class Wish:
    """An item that gets drafts: its known tokens end at `num_known`, those before `begin` are filled, and its first forward
    computes those before `end`. `count`: drafts, 0 if `end` is before `num_known`."""

    item: int
    slot: int
    num_known: int
    begin: int
    end: int
    count: int


class DraftCompanion(PagedCompanion):
    """See the module. Only `note`, `draft`, `forget`, `give_back` and `clear` write the state here."""

    reads_hidden = False
    """Its forwards begin with tokens alone."""

    def __init__(self, runner: ModelRunner, model: ModelSide, max_model_len: int, max_tokens: int) -> None:
        """`max_model_len`: of the draft model. `max_tokens` of a forward."""
        super().__init__(runner, model, max_model_len)
        self._max_tokens = max_tokens
        self._filled = np.zeros(self._num_blocks, np.int32)
        self._ahead: dict[int, Ahead] = {}

    def _blocks_of(self, slot: int) -> np.ndarray:
        """Block ids int32 of a slot's sequence."""
        return self._tables[slot, : self._slots.num_blocks[self._group, slot]]

    # -- state ---------------------------------------------------------------------------------------------------------

    def note(self, batch: UnifiedBatch) -> None:
        """Take in which blocks change hands and which are copied, before the step's forward; the tables are those of the step."""
        if len(batch.tables.slots):
            self._note_tables(batch)
        if len(batch.block_copies):
            pairs = self._copy_blocks(batch)
            source, destination = pairs.T
            self._filled[destination] = self._filled[source]
            self._cut_copies(batch, pairs)

    def _note_tables(self, batch: UnifiedBatch) -> None:
        """Blocks that a table got for tokens still to be computed hold those of another sequence; those before are shared."""
        size = self._block_size
        for slot, first, blocks, computed in self._table_updates(batch):
            self._filled[self._new_blocks(first, blocks, computed)] = 0
            if computed % size and first <= computed // size < first + len(blocks):
                self._cut(int(blocks[computed // size - first]), computed)
            if first == 0:
                self._ahead.pop(slot, None)

    def _cut_copies(self, batch: UnifiedBatch, pairs: np.ndarray) -> None:
        """A copied block's cells from the first token that its new owner computes on are not its own."""
        size, copied = self._block_size, set(pairs[:, 1].tolist())
        for slot, begin in zip(batch.slots.tolist(), batch.pos_offsets.tolist(), strict=True):
            block = int(self._tables[slot, begin // size])
            if block in copied:
                self._cut(block, begin)

    def _cut(self, block: int, position: int) -> None:
        """The block's cells from a position on are not filled."""
        self._filled[block] = min(int(self._filled[block]), position % self._block_size)

    def forget(self, slot: int) -> None:
        """A sequence is gone from its slot, or begins in it."""
        self._ahead.pop(slot, None)

    def give_back(self, group: int, block_ids: np.ndarray) -> None:
        """Return the memory of these blocks of a group."""
        super().give_back(group, block_ids)
        if group == self._group:
            self._filled[block_ids] = 0

    def clear(self) -> None:
        """Forget every sequence and all KV."""
        self._filled[:] = 0
        self._ahead.clear()

    # -- a step --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def draft(
        self, batch: UnifiedBatch, output: UnifiedOutput, step: StepArrays, hidden: torch.Tensor
    ) -> Drafts | None:
        """Guess the tokens after those that the step gave, for items that want it. None if no item does. `step` and `hidden` are
        the model's, which a draft model does not read."""
        if batch.drafts_wanted is None or not batch.drafts_wanted.any():
            return None
        began = time.perf_counter()
        wishes = self._wishes(batch, np.flatnonzero(batch.drafts_wanted), output.num_tokens)
        drafts: dict[int, list[int]] = {wish.item: [] for wish in wishes if wish.count}
        rounds = 0
        if wishes:
            self._rounds(wishes, drafts)
            rounds = max(1, *(wish.count for wish in wishes))
        return drafts_of(len(batch), drafts, rounds, time.perf_counter() - began)

    def _wishes(self, batch: UnifiedBatch, items: np.ndarray, num_tokens: np.ndarray | None) -> list[Wish]:
        """What each of these `items`, which want drafts, has to compute, at most `max_tokens` in all. `num_tokens` int32 [n]: how
        many tokens the step gave each item of the batch; None: the inputs are known, and nothing behind them."""
        wishes, room = [], self._max_tokens
        assert batch.drafts_wanted is not None
        for item in items.tolist():
            slot, final = int(batch.slots[item]), bool(batch.is_final_chunk[item])
            computed = int(batch.num_q_tokens[item])
            num_known = int(batch.pos_offsets[item]) + computed
            if num_tokens is None:
                num_known, final = num_known - int(batch.num_draft_tokens[item]), False
            elif final:
                if not num_tokens[item]:
                    continue  # it failed, or is pooled
                num_known += int(num_tokens[item]) - int(batch.num_draft_tokens[item])
            blocks = self._blocks_of(slot)
            cells = min(len(blocks) * self._block_size, self.max_model_len)
            if num_known > cells:
                continue
            begin = self._first_missing(slot, blocks, num_known)
            end = min(num_known, begin + computed + CATCH_UP, begin + room)
            if end <= begin:
                continue
            room -= end - begin
            whole = final and end == num_known
            count = min(int(batch.drafts_wanted[item]), 1 + cells - num_known) if whole else 0
            wishes.append(Wish(item, slot, num_known, begin, end, count))
        return wishes

    def _first_missing(self, slot: int, blocks: np.ndarray, num_known: int) -> int:
        """The first of a sequence's known positions without KV here; the last one is never counted as computed."""
        size = self._block_size
        ahead = self._ahead.pop(slot, None)
        if ahead is not None and ahead.begin <= num_known:
            tokens = self._history[slot, ahead.begin : num_known].tolist()
            right = 0
            while right < min(len(tokens), len(ahead.token_ids)) and tokens[right] == ahead.token_ids[right]:
                right += 1
            if self._is_filled(blocks, ahead.begin):
                self._fill(blocks, ahead.begin, ahead.begin + right)
        whole = (num_known - 1) // size
        missing = np.flatnonzero(self._filled[blocks[:whole]] < size)
        block = int(missing[0]) if len(missing) else whole
        return min(block * size + int(self._filled[blocks[block]]), num_known - 1)

    def _is_filled(self, blocks: np.ndarray, end: int) -> bool:
        """Whether the block of the position before `end` is filled so far."""
        last = end - 1
        return end == 0 or bool(self._filled[blocks[last // self._block_size]] > last % self._block_size)

    def _fill(self, blocks: np.ndarray, begin: int, end: int) -> None:
        """The KV of positions begin .. end - 1 is there."""
        if end <= begin:
            return
        first, last = begin // self._block_size, (end - 1) // self._block_size
        self._filled[blocks[first:last]] = self._block_size
        self._filled[blocks[last]] = end - last * self._block_size

    def _rounds(self, wishes: list[Wish], drafts: dict[int, list[int]]) -> None:
        """Compute what is missing, then draft after draft; writes `drafts`."""
        hidden = self._forward(
            [self._history[wish.slot, wish.begin : wish.end] for wish in wishes], wishes, [w.begin for w in wishes]
        )  # fmt: skip
        for wish in wishes:
            self._fill(self._blocks_of(wish.slot), wish.begin, wish.end)
        ends = np.cumsum([wish.end - wish.begin for wish in wishes]) - 1
        rows = np.array(
            [end for end, wish in zip(ends.tolist(), wishes, strict=True) if wish.count], np.int64
        )
        drafting = [wish for wish in wishes if wish.count]
        place = 0
        while drafting:
            slots = np.array([wish.slot for wish in drafting], np.int64)
            positions = np.array([wish.num_known + place for wish in drafting], np.int64)
            tokens = self._choose(hidden, rows, slots, positions)
            for wish, token in zip(drafting, tokens, strict=True):
                if token is not None:
                    drafts[wish.item].append(token)
            place += 1
            drafting = [wish for wish in drafting if len(drafts[wish.item]) == place < wish.count]
            if drafting:
                inputs = [np.array(drafts[wish.item][-1:], np.int64) for wish in drafting]
                hidden = self._forward(inputs, drafting, [wish.num_known + place - 1 for wish in drafting])
                rows = np.arange(len(drafting))
        for wish in wishes:
            if wish.count:
                self._ahead[wish.slot] = Ahead(wish.num_known, drafts[wish.item][: max(0, wish.count - 1)])

    def _forward(self, tokens: list[np.ndarray], wishes: list[Wish], begins: list[int]) -> torch.Tensor:
        """Hidden states of these tokens, whose KV is written. The rows behind each sequence's last one hold nothing."""
        lens = np.array([len(one) for one in tokens], np.int64)
        offsets = np.array(begins, np.int64)
        slots = np.array([wish.slot for wish in wishes], np.int64)
        tables = self._tables_until(int((offsets + lens).max()), slots)
        step = self._step(np.concatenate(tokens).astype(np.int64), lens, offsets, tables)
        if lens.max() > 1:
            step.used_rows = np.cumsum(lens) - 1
        return self.runner.forward(step)
