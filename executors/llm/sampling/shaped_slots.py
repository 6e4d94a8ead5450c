"""`ShapedSlots`: the slots whose logits the device shapes itself, and the updates that the host sends for them.

    begin     a sequence takes a row of the table, if its settings fit into one
    prepare   before a step: selects the inputs that the device counts; rewrites rows that the device does not know or whose
              contents changed (another token at a position, a shorter sequence); counts drafts that a step accepted
    record    after a step: stores the tokens it sampled, so that a row can be rewritten or the host can take over

For most steps the host only sends which item uses which row: the device counts the tokens that it has sampled
(`device_shaping.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from executors.contract.batch import SamplingParams, SequenceStart, UnifiedBatch
from executors.contract.errors import InvalidInput
from executors.contract.token_history import TokenHistory
from executors.kernels import shaping_layout as layout
from executors.llm.sampling.row_images import RowImage, UnsentRows
from executors.llm.step_arrays import StepArrays

TABLE_BYTES = 512 << 20
"""Largest size of the table in the device's memory, in bytes; the host shapes a sequence without a row."""
_ROWS = 2
"""Rows per sequence of the largest batch: preempted sequences keep their rows."""
_LARGEST = 1e30
"""Largest bias or penalty that keeps finite logits finite."""
_NEVER = np.iinfo(np.int32).max
_FORBIDDEN = 1
"""Entry that forbids a token permanently."""
_UNKNOWN = -1
_FEW = 64
"""Most tokens that are counted in a row without rewriting it: more than the drafts of a step."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of one sequence: `ids` int64, ascending, and for each the int32 number of its entry in `numbers` (0: the token
    may be sampled unchanged). `biases` float32 and `until` int32 are the contents of the entries, from the first.
    `otherwise`: the entry of all other ids."""

    ids: np.ndarray
    numbers: np.ndarray
    biases: np.ndarray
    until: np.ndarray
    otherwise: int

    def of(self, ids: np.ndarray) -> np.ndarray:
        """int64 [n]: the numbers of the entries of these `ids`."""
        if not len(self.ids):
            return np.full(len(ids), self.otherwise, np.int64)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.numbers[places], self.otherwise)


@dataclass
class _Slot:
    """A sequence that has a row."""

    start: SequenceStart
    params: SamplingParams
    entries: _Entries
    hosted: TokenHistory | None = None
    """History that the host keeps up to date since a step that the host sampled; None if there was none."""

    @cached_property
    def in_prompt(self) -> np.ndarray:
        """int64, ascending: the tokens of the prompt."""
        return np.unique(np.asarray(self.start.prompt_token_ids, np.int64))

    @property
    def prompt_len(self) -> int:
        return len(self.start.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class Recording:
    """Sampled tokens to record: their `places` in the step's samples, and `slots`, `positions`, `turns` of each."""

    places: np.ndarray
    slots: np.ndarray
    positions: np.ndarray
    turns: np.ndarray


@dataclass(frozen=True, slots=True)
class Following:
    """Items whose settings depend on earlier tokens, in steps with the same sequences: their `places` in the batch, `slots`
    and `turns` of each."""

    places: np.ndarray
    slots: np.ndarray
    turns: np.ndarray


def table_bytes(max_batch_size: int, width: int, limit: int = TABLE_BYTES, drafts: int = 0) -> int:
    """Return the bytes of a table for batches of `max_batch_size` sequences, `width` logits each, and of the results of up to
    `drafts` rows behind drafts."""
    results = 4 * layout.result_words(width) * _drafts_with_results(width, limit, drafts)
    return min(limit, _ROWS * max_batch_size * 4 * layout.row_words(width) + results)


def _drafts_with_results(width: int, limit: int, drafts: int) -> int:
    """Return how many rows behind drafts have results: all `drafts`, unless these take more than half of the `limit` in bytes."""
    return min(drafts, limit // 2 // (4 * layout.result_words(width)))


class ShapedSlots:
    """Device tables of shaped slots. Only the executor's step writes them.

    `table` int32 [rows + 1, row_words] on the device; the last row belongs to no slot. The next step transfers `sending` to
    it. `settle` waits until all steps in flight are recorded. `results` float32 [max_drafts or 1, result_words] on the device: of
    rows behind drafts, of which a step may shape `max_drafts`.
    """

    def __init__(
        self, num_slots: int, max_batch_size: int, max_model_len: int, width: int, device: torch.device,
        settle: Callable[[], None], limit: int = TABLE_BYTES, drafts: int = 0,
    ) -> None:  # fmt: skip
        """`limit`: largest size of the table and the results in bytes; `drafts`: most drafts of a step."""
        words, result_words = layout.row_words(width), layout.result_words(width)
        self.max_drafts = _drafts_with_results(width, limit, drafts)
        for_rows = table_bytes(max_batch_size, width, limit, drafts) - 4 * result_words * self.max_drafts
        rows = min(num_slots, for_rows // (4 * words))
        if max_model_len >= layout.IN_PROMPT:
            rows = self.max_drafts = 0
        self.table = torch.zeros(rows + 1, words, dtype=torch.int32, device=device)
        self.results = torch.zeros(max(1, self.max_drafts), result_words, dtype=torch.float32, device=device)
        self.row_of = np.full(num_slots, -1, np.int32)
        self.sending = UnsentRows(self.table, layout.HEADER, layout.HEADER + width)
        self._settle = settle
        self._width = width
        self._free = list(range(rows))[::-1]
        self._slots: dict[int, _Slot] = {}
        self._follows = np.zeros(num_slots, np.bool_)
        """Slots whose settings depend on earlier tokens."""
        self._tokens = np.zeros((num_slots, max_model_len + 1), np.int32)
        """Output tokens by position; sampled ones are `_UNKNOWN` until they are recorded."""
        self._length = np.zeros(num_slots, np.int64)
        """Number of tokens of the prompt, plus those of the output that `_tokens` covers."""
        self._counted = np.full(num_slots, -1, np.int64)
        """Number of inputs that the row accounts for; -1: the row must be rewritten."""
        self._turn = np.zeros(num_slots, np.int64)
        """Number of times that the slot was taken; results for an earlier sequence of the slot are ignored."""

    # -- sequences -------------------------------------------------------------------------------------------------------

    def begin(self, start: SequenceStart) -> bool:
        """Return whether the device will shape the logits of this sequence."""
        self.drop(start.slot)
        params = start.sampling
        if params is None or not self._free or not _fits(params):
            return False
        if len(start.prompt_token_ids) + len(start.output_token_ids) > self._tokens.shape[1]:
            return False  # whoever computes it will say so
        entries = _entries(params, len(start.prompt_token_ids))
        if len(entries.biases) > layout.ENTRIES:
            return False
        slot, output = start.slot, start.output_token_ids
        self._slots[slot] = _Slot(start, params, entries)
        self.row_of[slot] = self._free.pop()
        self._follows[slot] = params.needs_history
        end = len(start.prompt_token_ids) + len(output)
        self._tokens[slot, end - len(output) : end] = output
        self._length[slot] = end
        self._counted[slot] = -1
        return True

    def drop(self, slot: int) -> None:
        """Free the slot."""
        self._turn[slot] += 1
        if self._slots.pop(slot, None) is not None:
            self._free.append(int(self.row_of[slot]))
            self.row_of[slot] = -1
            self._follows[slot] = False

    def clear(self) -> None:
        """Free all slots."""
        for slot in list(self._slots):
            self.drop(slot)

    # -- steps -----------------------------------------------------------------------------------------------------------

    def prepare(self, batch: UnifiedBatch, step: StepArrays, sampled: np.ndarray) -> None:
        """Prepare the rows of the items that are `sampled`, bool [n], for this step. Raises InvalidInput as
        `TokenHistory.sync`."""
        slots = batch.slots
        shaped = sampled & (self.row_of[slots] >= 0)
        if not shaped.any():
            return
        ends = step.pos_offsets + step.q_lens
        for i in np.flatnonzero(shaped & ~self._follows[slots] & (self._counted[slots] < 0)).tolist():
            self._write(int(slots[i]), _NEVER)
        shaped &= self._follows[slots]
        last = step.q_starts + step.q_lens - 1
        tokens = batch.token_ids[last]
        if batch.pending is not None:
            tokens = np.where(batch.pending[last], _UNKNOWN, tokens)
        # One input that follows those before: nearly always.
        usual = shaped & (step.q_lens == 1) & (self._counted[slots] == ends - 1)
        at, positions = slots[usual], ends[usual] - 1
        if (self._unrecorded(at, positions) & (tokens[usual] != _UNKNOWN)).any():
            self._settle()  # the batch's tokens replace those that the steps sampled
        merged = np.where(tokens[usual] == _UNKNOWN, self._tokens[at, positions], tokens[usual])
        self._tokens[at, positions] = merged
        # Not the larger length: what was sampled behind a rejected draft is no part of it.
        self._counted[at] = self._length[at] = ends[usual]
        for i in np.flatnonzero(shaped & ~usual).tolist():
            self._follow(batch, step, i)

    def following(self, slots: np.ndarray) -> Following:
        """Return the followed items of a prepared batch with items in these `slots`; valid until a sequence begins or ends."""
        places = np.flatnonzero(self._follows[slots])
        return Following(places, slots[places], self._turn[slots[places]])

    def advance(self, items: Following, positions: np.ndarray) -> bool:
        """Do the same as `prepare` for another step of the batch that `items` belong to, with one pending input for each.
        `positions` [items] are those of the inputs. Return False and change nothing if `prepare` has more to do."""
        slots = items.slots
        if (self._counted[slots] != positions).any():
            return False
        ends = positions + 1
        self._counted[slots] = ends
        self._length[slots] = np.maximum(self._length[slots], ends)
        return True

    def recording_of(self, items: Following, positions: np.ndarray) -> Recording | None:
        """Do the same as `recording` for all `items`, at `positions` [items]."""
        if not len(items.places):
            return None
        self._tokens[items.slots, positions] = _UNKNOWN
        return Recording(items.places, items.slots, positions, items.turns)

    def recording(self, slots: np.ndarray, positions: np.ndarray) -> Recording | None:
        """Return what to record of a step that samples for `slots` at `positions` int64; None if nothing."""
        items = self.following(slots)
        return self.recording_of(items, positions[items.places])

    def record(self, recording: Recording, tokens: np.ndarray) -> None:
        """Record tokens out of all `tokens`, int32 [n], that a step sampled."""
        still, tokens = self._turn[recording.slots] == recording.turns, tokens[recording.places]
        slots, positions = recording.slots[still], recording.positions[still]
        self._tokens[slots, positions] = tokens[still]
        self._length[slots] = np.maximum(self._length[slots], positions + 1)

    def histories(self, batch: UnifiedBatch, sampled: np.ndarray) -> dict[int, TokenHistory]:
        """Return, by slot, the histories that the host needs to shape the logits of this step's `sampled` items. The host
        keeps them up to date until the device shapes the slot again."""
        histories: dict[int, TokenHistory] = {}
        slots = batch.slots[sampled]
        for slot in slots[self._follows[slots]].tolist():
            one = self._slots[slot]
            if one.hosted is None:
                self._settle()
                output = self._tokens[slot, one.prompt_len : self._length[slot]]
                one.hosted = TokenHistory(one.start.prompt_token_ids, output)
                self._counted[slot] = -1
                histories[slot] = one.hosted
        return histories

    def _unrecorded(self, slots: np.ndarray | int, positions: np.ndarray) -> np.ndarray:
        unrecorded: np.ndarray = self._tokens[slots, positions] == _UNKNOWN
        return unrecorded

    # -- the uncommon ----------------------------------------------------------------------------------------------------

    def _follow(self, batch: UnifiedBatch, step: StepArrays, i: int) -> None:
        """Follow an item with several inputs, or one whose row does not account for the tokens before it. Its drafts are no
        inputs that count: the device adds them for the rows behind them, see `device_shaping.py`."""
        slot, begin = int(batch.slots[i]), int(step.pos_offsets[i])
        length = int(step.q_lens[i] - batch.num_draft_tokens[i])
        one, end = self._slots[slot], begin + length
        part = slice(int(step.q_starts[i]), int(step.q_starts[i]) + length)
        tokens = batch.token_ids[part]
        pending = np.zeros(len(tokens), np.bool_) if batch.pending is None else batch.pending[part]
        if one.hosted is not None:
            self._take_back(slot, one.hosted)
            one.hosted = None
        first = min(max(begin, one.prompt_len), end)
        tokens, pending = tokens[first - begin :], pending[first - begin :]
        waiting = first + np.flatnonzero(pending)
        unrecorded = self._unrecorded(slot, np.arange(first, end)) & ~pending
        if self._length[slot] < first or (waiting >= self._length[slot]).any() or unrecorded.any():
            self._settle()
        if self._length[slot] < first:
            raise InvalidInput(
                f"the sampler knows {self._length[slot]} tokens of a sequence that is at {begin}"
            )
        if (waiting >= self._length[slot]).any():
            raise InvalidInput(f"no token was sampled for position {waiting[-1]}, it cannot be pending")
        counted, old = int(self._counted[slot]), self._tokens[slot, first:end]
        tokens = np.where(pending, old, tokens)
        same = bool((old == tokens)[: max(0, counted - first)].all())
        self._tokens[slot, first:end] = tokens
        if same and counted in (end - 1, end):
            self._counted[slot] = end
        elif same and 0 <= counted < end - 1 <= counted + _FEW and int(self.row_of[slot]) not in self.sending:
            self._count(slot, counted, end - 1)
            self._counted[slot] = end
        else:
            self._write(slot, end)
        self._length[slot] = end

    def _take_back(self, slot: int, history: TokenHistory) -> None:
        self._tokens[slot, history.prompt_len : len(history)] = history.output
        self._length[slot] = len(history)

    def _count(self, slot: int, begin: int, end: int) -> None:
        """Count the tokens at the positions from `begin` to `end` in a row that accounts for those before: drafts that were
        accepted."""
        one, row = self._slots[slot], int(self.row_of[slot])
        if self._unrecorded(slot, np.arange(max(begin, one.prompt_len), end)).any():
            self._settle()
        places, values = np.zeros(1, np.int64), np.array([end])
        if one.params.penalized:
            output = self._tokens[slot, one.prompt_len : end]
            ids = np.unique(self._tokens[slot, max(begin, one.prompt_len) : end]).astype(np.int64)
            words = (output == ids[:, None]).sum(1) + layout.IN_PROMPT * np.isin(ids, one.in_prompt)
            places = np.concatenate([places, layout.HEADER + ids])
            values = np.concatenate([values, words + (one.entries.of(ids) << layout.ENTRY_SHIFT)])
        self.sending.put(row, RowImage(places + row * self.table.shape[1], values.astype(np.int32), None))

    def _write(self, slot: int, length: int) -> None:
        """Rewrite the row of a sequence whose first `length` tokens were given or sampled."""
        one, row = self._slots[slot], int(self.row_of[slot])
        if self._follows[slot] and self._unrecorded(slot, np.arange(one.prompt_len, length)).any():
            self._settle()
        entries, params = one.entries, one.params
        ids, values = entries.ids, entries.numbers << layout.ENTRY_SHIFT
        if params.penalized:
            in_prompt = one.in_prompt
            in_output, counts = np.unique(self._tokens[slot, one.prompt_len : length], return_counts=True)
            everything = np.unique(np.concatenate([ids, in_prompt, in_output]))
            words = np.full(len(everything), entries.otherwise << layout.ENTRY_SHIFT, np.int64)
            words[np.searchsorted(everything, ids)] = values
            words[np.searchsorted(everything, in_prompt)] += layout.IN_PROMPT
            words[np.searchsorted(everything, in_output)] += counts
            ids, values = everything, words
        header = np.zeros(layout.HEADER, np.int32)
        header[0] = length
        floats = header.view(np.float32)
        floats[layout.REPETITION] = params.repetition_penalty
        floats[layout.FREQUENCY] = params.frequency_penalty
        floats[layout.PRESENCE] = params.presence_penalty
        used = len(entries.biases)
        floats[layout.BIASES : layout.BIASES + used] = entries.biases
        header[layout.UNTIL : layout.UNTIL + used] = entries.until
        at = np.flatnonzero(header)
        places = np.concatenate([at, layout.HEADER + ids]) + row * self.table.shape[1]
        written = np.concatenate([header[at], values]).astype(np.int32)
        self.sending.put(row, RowImage(places, written, entries.otherwise << layout.ENTRY_SHIFT))
        self._counted[slot] = length


def _fits(params: SamplingParams) -> bool:
    """Return whether a row of the table can express these settings, provided that they have few enough entries."""
    if not params.edits_logits or any(len(word) > 1 for word in params.bad_words):
        return False
    numbers = [params.frequency_penalty, params.presence_penalty, *(bias for _, bias in params.logit_bias)]
    return max(map(abs, numbers)) <= _LARGEST


def _entries(params: SamplingParams, prompt_len: int) -> _Entries:
    """Return the effects of these settings on single tokens that do not depend on earlier tokens."""
    biases = dict(params.logit_bias)
    never = {word[0] for word in params.bad_words}
    until = min(prompt_len + params.min_tokens, _NEVER)
    early = set(params.stop_token_ids) if params.min_tokens else set()
    allowed = None if params.allowed_token_ids is None else set(params.allowed_token_ids)
    places: dict[tuple[float, int], int] = {(0.0, 0): 0, (-np.inf, 0): _FORBIDDEN}
    numbers: dict[int, int] = dict.fromkeys(allowed or (), 0)
    for token in sorted(biases.keys() | never | early):
        if token in never or (allowed is not None and token not in allowed):
            entry = (-np.inf, 0)
        else:
            entry = (biases.get(token, 0.0), until if token in early else 0)
        numbers[token] = places.setdefault(entry, len(places))
    ids = np.array(sorted(numbers), np.int64)
    return _Entries(
        ids,
        np.array([numbers[token] for token in ids.tolist()], np.int64),
        np.array([bias for bias, _ in places], np.float32),
        np.array([until for _, until in places], np.int32),
        0 if allowed is None else _FORBIDDEN,
    )
