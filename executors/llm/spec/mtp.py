"""`MtpCompanion`: the MTP head of the model's own checkpoint guesses the next tokens of sequences, for the next step to verify.

Its keys and values lie in the model's blocks (`PagedCompanion`). In each step it computes what the model has computed there: the
hidden state of position p and the token of position p + 1, which is known then, give its KV of position p. So it has seen the
whole prompt, however that was cut, and nothing is computed twice.

    step          tokens  t4 t5 d6 d7      positions 4 .. 7; d6 is accepted, d7 is not, x7 is sampled in its place
    first round   h4+t5  h5+d6  h6+x7      -> a draft for position 8; h: hidden states of the model
    second round  y6+draft                 -> a draft for position 9; y6: what the first round gave at position 6

KV of the second round and later ones is written again by the next step, with hidden states of the model.

What the head cannot compute is zeros: a block is cleared when it gets a new owner. That is KV of prompts that are pooled, and of
blocks that a process adopts. The last cell of a block that sequences share holds the token with which its first owner went on:
one of all cells that a guess looks at. Neither changes a token of the answer, for all guesses are verified.
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


@dataclass(slots=True)
class _Wish:
    """An item that gets `count` drafts: its known tokens end at `num_known`; `row`: its last one in the first round."""

    item: int
    slot: int
    num_known: int
    row: int
    count: int


class MtpCompanion(PagedCompanion):
    """See the module."""

    reads_hidden = True
    """Every row's hidden state makes KV here."""

    def __init__(
        self, runner: ModelRunner, model: ModelSide, max_model_len: int, samples: np.ndarray, hidden_size: int
    ) -> None:
        """`samples` bool [slots] marks the sequences that sample; others write it. `hidden_size` of the model."""
        super().__init__(runner, model, max_model_len)
        self._samples = samples
        self._hidden_size = hidden_size

    # -- state ---------------------------------------------------------------------------------------------------------

    def note(self, batch: UnifiedBatch) -> None:
        """Take in which blocks change hands and which are copied, before the step's forward."""
        if len(batch.tables.slots):
            self._clear_new_blocks(batch)
        if len(batch.block_copies):
            self._copy_blocks(batch)

    def _clear_new_blocks(self, batch: UnifiedBatch) -> None:
        """Clear the blocks that a table got for tokens still to be computed; those before are shared."""
        for _, first, blocks, computed in self._table_updates(batch):
            for cache in self._caches:
                cache.zero_blocks(self._new_blocks(first, blocks, computed))

    def forget(self, slot: int) -> None:
        """A sequence is gone from its slot, or begins in it: nothing here is by slot."""

    def clear(self) -> None:
        """Forget every sequence: their blocks are cleared when they get new owners."""

    # -- a step --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def draft(
        self, batch: UnifiedBatch, output: UnifiedOutput, step: StepArrays, hidden: torch.Tensor
    ) -> Drafts | None:
        """Compute KV of all that the step has computed, and guess the tokens after those that it gave, for items that want it.
        None if no item does. `hidden` [T, hidden] of the step's rows."""
        began = time.perf_counter()
        counts = self._counts(batch, output)
        items = np.flatnonzero(counts)
        wishes = self._wishes(batch, items, counts)
        drafts: dict[int, list[int]] = {wish.item: [] for wish in wishes}
        if len(items):
            self._rounds(wishes, self._first_round(batch, step, items, counts[items], hidden), drafts)
        if batch.drafts_wanted is None or not batch.drafts_wanted.any():
            return None
        rounds = max((wish.count for wish in wishes), default=0)
        return drafts_of(len(batch), drafts, rounds, time.perf_counter() - began)

    def _counts(self, batch: UnifiedBatch, output: UnifiedOutput) -> np.ndarray:
        """Return how many rows of each item, from its first one on, have a known next token: int64 [n]."""
        new = output.num_tokens
        of_final = np.where(new > 0, batch.num_q_tokens - batch.num_draft_tokens + new - 1, 0)
        counts = np.where(batch.is_final_chunk, of_final, batch.num_q_tokens)
        return np.where(self._samples[batch.slots], counts, 0).astype(np.int64)

    def _wishes(self, batch: UnifiedBatch, items: np.ndarray, counts: np.ndarray) -> list[_Wish]:
        if batch.drafts_wanted is None:
            return []
        wishes = []
        ends = np.cumsum(counts[items])
        for item, end in zip(items.tolist(), ends.tolist(), strict=True):
            most = int(batch.drafts_wanted[item])
            if not most or not batch.is_final_chunk[item]:
                continue
            slot = int(batch.slots[item])
            num_known = int(batch.pos_offsets[item] + counts[item]) + 1
            cells = min(int(self._slots.num_blocks[self._group, slot]) * self._block_size, self.max_model_len)
            # The table covers the drafts but the last, as for a draft model.
            count = min(most, 1 + cells - num_known)
            if count > 0:
                wishes.append(_Wish(item, slot, num_known, end - 1, count))
        return wishes

    def _first_round(
        self, batch: UnifiedBatch, step: StepArrays, items: np.ndarray, counts: np.ndarray, hidden: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """Return what the head gives for the first `counts` rows of these items, [sum of counts, hidden]."""
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = place + np.repeat(step.q_starts[items], counts)
        if len(rows) < len(hidden):
            hidden = hidden.index_select(0, self.runner.to_device(rows))
        slots, offsets = batch.slots[items].astype(np.int64), step.pos_offsets[items]
        following = place + np.repeat(offsets, counts) + 1
        return self._forward(
            self._history[np.repeat(slots, counts), following], counts, offsets, slots, hidden
        )

    def _rounds(self, wishes: list[_Wish], y: torch.Tensor, drafts: dict[int, list[int]]) -> None:
        """Draft after draft, given what the first round gave; writes `drafts`."""
        rows, place = np.array([wish.row for wish in wishes], np.int64), 0
        while wishes:
            slots = np.array([wish.slot for wish in wishes], np.int64)
            ends = np.array([wish.num_known for wish in wishes], np.int64)
            tokens = self._choose(y, rows, slots, ends + place)
            place += 1
            going: list[int] = []
            for i, (wish, token) in enumerate(zip(wishes, tokens, strict=True)):
                if token is not None:
                    drafts[wish.item].append(token)
                    if place < wish.count:
                        going.append(i)
            wishes = [wishes[i] for i in going]
            if wishes:
                hidden = y.index_select(0, self.runner.to_device(rows[going]))
                last = np.array([drafts[wish.item][-1] for wish in wishes], np.int64)
                offsets, ones = ends[going] + place - 2, np.ones(len(going), np.int64)
                y, rows = self._forward(last, ones, offsets, slots[going], hidden), np.arange(len(going))

    def _forward(
        self,
        tokens: np.ndarray,
        lens: np.ndarray,
        offsets: np.ndarray,
        slots: np.ndarray,
        hidden: torch.Tensor,
    ) -> torch.Tensor:
        """Compute rows, of n items with `lens` int64 [n] each from the positions `offsets` on; their KV is written."""
        tables = self._tables_until(int((offsets + lens).max()), slots)
        step = self._step(tokens.astype(np.int64), lens, offsets, tables)
        return self.runner.forward(step, hidden=hidden)

    def _blank_hidden(self, count: int) -> torch.Tensor:
        spec = self.runner.cache.spec
        return torch.zeros(count, self._hidden_size, dtype=spec.dtype, device=spec.device)
