"""`DraftCompanion`: a smaller model that guesses the next tokens of sequences, for the next step to verify.

Its keys and values lie in tensors of their own under the block ids and block tables of the model's layers that keep all tokens: a
block that is shared, copied or found again by its prefix has the draft model's KV too, if it was computed. What is missing is
computed when a step asks for drafts. Layers with heads of different sizes have tensors of their own under the same ids.

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
from executors.contract.slots import SlotTable
from executors.llm.memory.paged_kv import copied_pairs
from executors.llm.sampling.sampler import SamplingRows, SamplingTable, sample
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays

CATCH_UP = 256
"""Tokens that a sequence may compute in a step beside those that the step itself adds to it."""


@dataclass(slots=True)
class _Ahead:
    """Token ids at positions `begin`, `begin + 1`, ... whose KV was computed before they were known."""

    begin: int
    token_ids: list[int]


@dataclass(slots=True)
class _Wish:
    """An item that gets drafts: its known tokens end at `num_known`, those before `begin` are filled, and its first forward
    computes those before `end`. `count`: drafts, 0 if `end` is before `num_known`."""

    item: int
    slot: int
    num_known: int
    begin: int
    end: int
    count: int


class DraftCompanion:
    """See the module. `history` int32 [slots, positions] holds the tokens of each slot, up to the last one sampled; its owner
    writes it. `group`: the group of blocks in which its KV lies. Only `note`, `draft`, `forget`, `give_back` and `clear` write
    the state here."""

    reads_hidden = False
    """Its forwards begin with tokens alone."""

    def __init__(
        self, runner: ModelRunner, slots: SlotTable, group: int, sampling: SamplingTable, history: np.ndarray,
        max_model_len: int, width: int, max_tokens: int,
    ) -> None:  # fmt: skip
        """`max_model_len`: of the draft model. `width`: of the model's logits, which a draft must be below. `max_tokens` of a
        forward."""
        self.runner = runner
        self.max_model_len = max_model_len
        self._slots = slots
        self._group = group
        self._sampling = sampling
        self._history = history
        self._width = width
        self._max_tokens = max_tokens
        self._block_size = runner.cache.block_size
        self._caches = [runner.cache.of_group(own) for own in range(len(runner.cache.caches))]
        self._num_blocks = self._caches[0].num_blocks
        self._filled = np.zeros(self._num_blocks, np.int32)
        self._ahead: dict[int, _Ahead] = {}

    @property
    def kv_bytes(self) -> int:
        """Bytes of its KV."""
        return self.runner.cache.num_bytes

    @property
    def _tables(self) -> np.ndarray:
        return self._slots.block_tables[self._group]

    def _blocks_of(self, slot: int) -> np.ndarray:
        """Block ids int32 of a slot's sequence."""
        return self._tables[slot, : self._slots.num_blocks[self._group, slot]]

    # -- state ---------------------------------------------------------------------------------------------------------

    def note(self, batch: UnifiedBatch) -> None:
        """Take in which blocks change hands and which are copied, before the step's forward; the tables are those of the step."""
        if len(batch.tables.slots):
            self._note_tables(batch)
        if len(batch.block_copies):
            pairs = copied_pairs(batch.block_copies, self._group)
            source, destination = pairs.T
            self._filled[destination] = self._filled[source]
            for cache in self._caches:
                cache.copy_blocks(pairs)
            self._cut_copies(batch, pairs)

    def _note_tables(self, batch: UnifiedBatch) -> None:
        """Blocks that a table got for tokens still to be computed hold those of another sequence; those before are shared."""
        computed = dict(zip(batch.slots.tolist(), batch.pos_offsets.tolist(), strict=True))
        tables, size, at = batch.tables, self._block_size, 0
        updates = (tables.slots, tables.groups, tables.starts, tables.counts)
        for slot, group, first, count in zip(*(part.tolist() for part in updates), strict=True):
            blocks, at = tables.block_ids[at : at + count], at + count
            if group != self._group:
                continue
            shared = computed.get(slot, 0)
            self._filled[blocks[max(0, -(-shared // size) - first) :]] = 0
            if shared % size and first <= shared // size < first + count:
                self._cut(int(blocks[shared // size - first]), shared)
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
        if group == self._group:
            for cache in self._caches:
                cache.give_back(block_ids)
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
        wishes = self._wishes(batch, output)
        drafts: dict[int, list[int]] = {wish.item: [] for wish in wishes if wish.count}
        rounds = 0
        if wishes:
            self._rounds(wishes, drafts)
            rounds = max(1, *(wish.count for wish in wishes))
        return drafts_of(len(batch), drafts, rounds, time.perf_counter() - began)

    def _wishes(self, batch: UnifiedBatch, output: UnifiedOutput) -> list[_Wish]:
        """What each item that wants drafts has to compute, at most `max_tokens` in all."""
        wishes, room = [], self._max_tokens
        assert batch.drafts_wanted is not None
        for item in np.flatnonzero(batch.drafts_wanted).tolist():
            slot, final = int(batch.slots[item]), bool(batch.is_final_chunk[item])
            computed = int(batch.num_q_tokens[item])
            num_known = int(batch.pos_offsets[item]) + computed
            if final:
                if not output.num_tokens[item]:
                    continue  # it failed, or is pooled
                num_known += int(output.num_tokens[item]) - int(batch.num_draft_tokens[item])
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
            wishes.append(_Wish(item, slot, num_known, begin, end, count))
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

    def _rounds(self, wishes: list[_Wish], drafts: dict[int, list[int]]) -> None:
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
            tokens = self._choose(hidden, rows, drafting, place)
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
                self._ahead[wish.slot] = _Ahead(wish.num_known, drafts[wish.item][: max(0, wish.count - 1)])

    def _forward(self, tokens: list[np.ndarray], wishes: list[_Wish], begins: list[int]) -> torch.Tensor:
        """Hidden states of these tokens, whose KV is written. The rows behind each sequence's last one hold nothing."""
        lens = np.array([len(one) for one in tokens], np.int64)
        offsets = np.array(begins, np.int64)
        width = -(-int((offsets + lens).max()) // self._block_size)
        slots = np.array([wish.slot for wish in wishes], np.int64)
        step = self._step(
            np.concatenate(tokens).astype(np.int64), lens, offsets, self._tables[:, :width][slots]
        )
        if lens.max() > 1:
            step.used_rows = np.cumsum(lens) - 1
        return self.runner.forward(step)

    def _step(
        self, token_ids: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray, tables: np.ndarray
    ) -> StepArrays:
        """Return a step whose tables are those of each group of the draft model's KV."""
        more_tables = (tables,) * (len(self._caches) - 1)
        return StepArrays(token_ids, q_lens, pos_offsets, tables, more_tables=more_tables)

    def _choose(
        self, hidden: torch.Tensor, rows: np.ndarray, wishes: list[_Wish], place: int
    ) -> list[int | None]:
        """The draft of each wish's place; None if the draft model has none."""
        slots = np.array([wish.slot for wish in wishes], np.int64)
        positions = np.array([wish.num_known + place for wish in wishes], np.int64)
        return chosen(self.runner, hidden, rows, self._sampling.rows(slots, positions), self._width)

    def time_forward(self, count: int, past: int) -> float:
        """Seconds of a forward of one token for each of `count` sequences of `past` tokens; overwrites the first blocks."""
        blocks = -(-(past + 1) // self._block_size)
        tables = np.tile(np.arange(blocks, dtype=np.int32) % self._num_blocks, (count, 1))
        step = self._step(
            np.zeros(count, np.int64), np.ones(count, np.int64), np.full(count, past, np.int64), tables
        )
        began = time.perf_counter()
        with torch.inference_mode():
            draw(self.runner, self.runner.forward(step), count, past)
        return time.perf_counter() - began


def chosen(
    runner: ModelRunner, hidden: torch.Tensor, rows: np.ndarray, settings: SamplingRows, width: int
) -> list[int | None]:
    """Return the draft of each of the `rows` of hidden states, chosen with the settings of its place; None if there is none
    below `width`."""
    logits, maxima = runner.logits_for_sampling(hidden, rows)
    settings.logprobs[:] = -1
    sampled = sample(logits, settings, None, maxima)
    return [
        None if bad or token >= width else token
        for token, bad in zip(sampled.tokens.tolist(), sampled.bad.tolist(), strict=True)
    ]


def draw(runner: ModelRunner, hidden: torch.Tensor, count: int, past: int) -> None:
    """Choose a token for each of `count` sequences of `past` tokens, to time it."""
    rows = np.arange(count)
    logits, maxima = runner.logits_for_sampling(hidden, rows)
    sample(logits, SamplingTable(count).rows(rows, np.full(count, past + 1)), None, maxima)


def drafts_of(num_items: int, drafts: dict[int, list[int]], rounds: int, seconds: float) -> Drafts:
    """Return the drafts of a step's items, given by item."""
    counts = np.zeros(num_items, np.int32)
    for item, tokens in drafts.items():
        counts[item] = len(tokens)
    ids = [token for item in sorted(drafts) for token in drafts[item]]
    return Drafts(counts, np.array(ids, np.int32), rounds, seconds)
