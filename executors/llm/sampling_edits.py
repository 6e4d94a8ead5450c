"""Masks, bias and penalties: single logits of a few rows, changed before a token is chosen.

`LogitEdits` is what one step changes, as flat lists over (row, token); `SlotShapers` makes it from what it keeps per slot.
Slots whose settings change no logits are not in it at all. The order is that of `executors/sampling_params.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from executors.batch import SamplingParams, SequenceStart
from executors.token_history import TokenHistory


@dataclass(frozen=True, slots=True)
class _Flat:
    """Entries (row, token, value): `row` int64 indices into `LogitEdits.rows`, rising; `token` int64; `value` float32."""

    row: np.ndarray
    token: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    """bool: repetition_penalty applies (penalties only)."""

    def within(self, begin: int, end: int, at: torch.Tensor, width: int):
        """Entries of rows begin..end-1, which are the rows `at` of the logits: index into `at`, place in the flattened logits,
        value and `seen`, on its device."""
        part, device = slice(*np.searchsorted(self.row, (begin, end))), at.device
        row = torch.from_numpy(self.row[part] - begin).to(device)
        place = at[row] * width + torch.from_numpy(self.token[part]).to(device)
        return (
            row,
            place,
            torch.from_numpy(self.value[part]).to(device),
            torch.from_numpy(self.seen[part]).to(device),
        )


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """`rows` int64 [m], rising: the rows of the step whose logits change. `penalties` float32 [m, 3]: repetition, frequency,
    presence; in `counted` the value is the number of times the token is in the output."""

    rows: np.ndarray
    penalties: np.ndarray
    allowed: _Flat
    banned: _Flat
    biased: _Flat
    counted: _Flat

    def places(self, at: torch.Tensor, width: int) -> torch.Tensor:
        """int64: the places in the flattened logits that change, each once, but for rows with allowed ids."""
        found = [
            part.within(0, len(self.rows), at, width)[1] for part in (self.banned, self.biased, self.counted)
        ]
        return torch.cat(found).unique()

    def apply(self, work: torch.Tensor, begin: int, at: torch.Tensor) -> None:
        """Change rows `at` of `work` float32 [k, V], contiguous: the raw logits of rows[begin : begin + len(at)]."""
        end, width = begin + len(at), work.shape[1]
        flat = work.view(-1)
        row, place, _, _ = self.allowed.within(begin, end, at, width)
        if len(row):
            kept = flat[place]
            work.index_fill_(0, at[row.unique()], -torch.inf)
            flat[place] = kept
        place = self.banned.within(begin, end, at, width)[1]
        if len(place):
            flat[place] = -torch.inf
        _, place, bias, _ = self.biased.within(begin, end, at, width)
        if len(place):
            flat[place] += bias
        row, place, count, seen = self.counted.within(begin, end, at, width)
        if len(place):
            penalties = torch.from_numpy(self.penalties[begin:end]).to(work.device)[row]
            repetition, frequency, presence = penalties.unbind(-1)
            logit = flat[place]
            repeated = torch.where(logit > 0, logit / repetition, logit * repetition)
            logit = torch.where(seen, repeated, logit)
            flat[place] = logit - frequency * count - presence * (count > 0)


@dataclass(slots=True)
class _Entries:
    """Entries in the making, an array for each row."""

    rows: list[int] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    seen: list[np.ndarray] = field(default_factory=list)

    def add(
        self, row: int, tokens: np.ndarray, values: np.ndarray | None = None, seen: np.ndarray | None = None
    ) -> None:
        """More entries of a row. The arrays are copied when the step's rows are complete: views will do until then."""
        if len(tokens):
            self.rows.append(row)
            self.tokens.append(tokens)
            if values is not None:
                self.values.append(values)
            if seen is not None:
                self.seen.append(seen)

    def flat(self) -> _Flat:
        """All entries as arrays."""
        if not self.rows:
            none = np.empty(0, np.int64)
            return _Flat(none, none, none.astype(np.float32), none.astype(np.bool_))
        lengths = [len(tokens) for tokens in self.tokens]
        tokens = np.concatenate(self.tokens)
        values = np.concatenate(self.values) if self.values else np.zeros(len(tokens))
        seen = np.concatenate(self.seen) if self.seen else np.zeros(len(tokens), np.bool_)
        return _Flat(
            np.repeat(np.array(self.rows, np.int64), lengths), tokens, values.astype(np.float32), seen
        )


class EditsBuilder:
    """The edits of a step, put together row by row, rows rising."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._penalties: list[tuple[float, float, float]] = []
        self._allowed, self._banned, self._biased, self._counted = (_Entries() for _ in range(4))

    def add(self, row: int, shaper: Shaper) -> None:
        """A row sampled after all tokens of the shaper's history."""
        at, params = len(self._rows), shaper.params
        self._rows.append(row)
        self._penalties.append((params.repetition_penalty, params.frequency_penalty, params.presence_penalty))
        self._allowed.add(at, shaper.allowed)
        self._banned.add(at, shaper.banned())
        self._biased.add(at, shaper.bias_ids, shaper.bias)
        history = shaper.history
        if params.penalized and history is not None:
            counts = history.counts.copy()  # later rows of a sequence with drafts change them
            self._counted.add(at, history.ids, counts, (counts > 0) | history.in_prompt)

    def build(self) -> LogitEdits | None:
        """The edits; None if no row was added."""
        if not self._rows:
            return None
        return LogitEdits(
            np.array(self._rows, np.int64),
            np.array(self._penalties, np.float32),
            self._allowed.flat(),
            self._banned.flat(),
            self._biased.flat(),
            self._counted.flat(),
        )


class Shaper:
    """One sequence's settings that change logits, ready to be used, and its history where they look back."""

    def __init__(self, params: SamplingParams, history: TokenHistory | None) -> None:
        self.params = params
        self.history = history if params.needs_history else None
        self.allowed = np.unique(np.array(params.allowed_token_ids or (), np.int64))
        self.bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._never = np.array([word[0] for word in params.bad_words if len(word) == 1], np.int64)
        self._words = [(word[:-1], word[-1]) for word in params.bad_words if len(word) > 1]
        self._stops = np.array(params.stop_token_ids, np.int64)

    def banned(self) -> np.ndarray:
        """int64: ids that must not come next."""
        if self.history is None:
            return self._never
        parts = [self._never]
        if len(self.history.output) < self.params.min_tokens:
            parts.append(self._stops)
        last = [token for before, token in self._words if self.history.ends_with(before)]
        parts.append(np.array(last, np.int64))
        return np.concatenate(parts)


class SlotShapers:
    """`Shaper`s by slot. Its histories are rebuilt from the start a sequence comes with, follow the inputs of each step and
    the tokens kept of it, and so outlive preemption. One writer: `UnifiedRunner`."""

    def __init__(self) -> None:
        self._of: dict[int, Shaper] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self, start: SequenceStart) -> None:
        """A sequence takes the slot."""
        self._of.pop(start.slot, None)
        params = start.sampling
        if params is not None and params.edits_logits and start.pooling is None:
            self._of[start.slot] = Shaper(params, TokenHistory.of(start) if params.needs_history else None)

    def drop(self, slot: int) -> None:
        """The slot is free."""
        self._of.pop(slot, None)

    def clear(self) -> None:
        """All slots are free."""
        self._of.clear()

    def items(self, slots: np.ndarray, counts: np.ndarray) -> list[int]:
        """Those of a step's items that sample (`counts` above 0) and whose slot is here."""
        return [i for i, slot in enumerate(slots.tolist()) if slot in self._of and counts[i]]

    def add_rows(
        self, builder: EditsBuilder, slot: int, first_row: int, inputs: tuple[int, list[int], list[bool] | None],
        num_drafts: int,
    ) -> None:  # fmt: skip
        """Edits of one item's rows: each sees the drafts before it. `inputs` are the item's position, its tokens (drafts
        last) and which of them are pending. Afterwards the history ends before the drafts."""
        shaper, (position, tokens, pending) = self._of[slot], inputs
        known = len(tokens) - num_drafts
        if shaper.history is not None:
            shaper.history.sync(position, tokens[:known], pending)
        builder.add(first_row, shaper)
        for i in range(num_drafts):
            if shaper.history is not None:
                shaper.history.append(tokens[known + i])
            builder.add(first_row + 1 + i, shaper)
        if shaper.history is not None:
            shaper.history.truncate(position + known)

    def keep(self, slot: int, tokens: list[int]) -> None:
        """The tokens that a step's sampling and verification left of an item."""
        history = self._of[slot].history
        if history is not None:
            for token in tokens:
                history.append(token)
