"""Masks, biases and penalties: changes of single logits in a few rows, made before a token is chosen.

`LogitEdits` holds the changes of one step as flat lists over (row, token); `SlotShapers` builds it from the state it keeps
per slot. Slots whose settings change no logits do not appear in it. `executors/contract/sampling.py` defines the order of the
changes.

    most ids allowed       the row's few changes are made in place, in its logits
    most ids not allowed   the allowed logits are copied out of the row (allowed_token_ids; usually a grammar)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from executors.contract.batch import SamplingParams, SequenceStart
from executors.contract.token_history import TokenHistory
from executors.llm.sampling.grammar import Mask

_NARROWEST = 256
"""Smallest width of a row of allowed ids, in columns; larger widths are this times powers of four. A row's width depends only
on the row itself."""


@dataclass(frozen=True, slots=True)
class _Flat:
    """Entries (row, place, value): `row` int64 indices into `EditedRows.rows`, ascending; `place` int64, the column; `value`
    float32."""

    row: np.ndarray
    place: np.ndarray
    value: np.ndarray
    repeated: np.ndarray
    """bool: repetition_penalty applies (penalties only)."""

    def within(self, at: torch.Tensor, width: int):
        """Select the entries of the rows `at` of some logits, on the device of `at`: index into `at`, place in the flattened
        logits, value and `repeated`."""
        device = at.device
        row = torch.from_numpy(self.row).to(device)
        place = at[row] * width + torch.from_numpy(self.place).to(device)
        return (
            row,
            place,
            torch.from_numpy(self.value).to(device),
            torch.from_numpy(self.repeated).to(device),
        )


@dataclass(frozen=True, slots=True)
class EditedRows:
    """Rows of the step whose logits change: `rows` int64 [m], ascending. `penalties` float32 [m, 3]: repetition, frequency,
    presence. In `counted` the value is the number of times the token is in the output.

    `allowed` int64 [m, K]: the only ids of each row, ascending; `lengths` int64 [m]: how many there are (zeros follow).
    Columns of the entries then index `allowed`. None: all ids are allowed, and columns are ids.
    """

    rows: np.ndarray
    allowed: np.ndarray | None
    lengths: np.ndarray
    penalties: np.ndarray
    banned: _Flat
    biased: _Flat
    counted: _Flat

    @property
    def only_masks(self) -> bool:
        """True if no logit changes to another finite value; any float dtype is sufficient then."""
        return not (len(self.biased.row) or len(self.counted.row))

    def places(self, at: torch.Tensor, width: int) -> torch.Tensor:
        """int64: the places in the flattened logits that change; a place may occur twice."""
        return torch.cat([part.within(at, width)[1] for part in (self.banned, self.biased, self.counted)])

    def apply(self, work: torch.Tensor, at: torch.Tensor) -> None:
        """Change rows `at` of `work` [k, V], contiguous, float32 unless `only_masks`: the raw logits of `rows`."""
        width, flat = work.shape[1], work.view(-1)
        place = self.banned.within(at, width)[1]
        if len(place):
            flat.index_fill_(0, place, -torch.inf)
        _, place, bias, _ = self.biased.within(at, width)
        if len(place):
            flat[place] += bias
        row, place, count, is_repeated = self.counted.within(at, width)
        if len(place):
            penalties = torch.from_numpy(self.penalties).to(work.device)[row]
            repetition, frequency, presence = penalties.unbind(-1)
            logit = flat[place]
            repeated = torch.where(logit > 0, logit / repetition, logit * repetition)
            logit = torch.where(is_repeated, repeated, logit)
            flat[place] = logit - frequency * count - presence * (count > 0)

    def taken_out(self, logits: torch.Tensor) -> torch.Tensor:
        """Copy the raw logits of each row's allowed ids: float32 [m, K], followed by -inf."""
        assert self.allowed is not None
        device, width = logits.device, logits.shape[1]
        place = self.allowed + self.rows[:, None] * width
        work = logits.view(-1)[torch.from_numpy(place).to(device)].float()
        past = np.arange(self.allowed.shape[1]) >= self.lengths[:, None]
        return work.masked_fill_(torch.from_numpy(past).to(device), -torch.inf)


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """All edits of a step: `rows` int64, ascending, are all rows whose logits change. Each row is in one of `parts`; the part
    without `allowed`, if there is one, comes first."""

    rows: np.ndarray
    parts: tuple[EditedRows, ...]

    @property
    def whole(self) -> EditedRows | None:
        """Rows in which all ids are allowed."""
        return self.parts[0] if self.parts[0].allowed is None else None

    @property
    def narrowed(self) -> tuple[EditedRows, ...]:
        """Rows in which only some ids are allowed."""
        return self.parts if self.whole is None else self.parts[1:]


@dataclass(slots=True)
class _Entries:
    """Builder of entries, with one array for each row."""

    rows: list[int] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    repeated: list[np.ndarray] = field(default_factory=list)

    def add(
        self,
        row: int,
        places: np.ndarray,
        values: np.ndarray | None = None,
        repeated: np.ndarray | None = None,
    ) -> None:
        """Add entries of a row. The arrays are copied when the step's rows are complete, so views are sufficient until then."""
        if len(places):
            self.rows.append(row)
            self.places.append(places)
            if values is not None:
                self.values.append(values)
            if repeated is not None:
                self.repeated.append(repeated)

    def flat(self) -> _Flat:
        """Return all entries as arrays."""
        if not self.rows:
            none = np.empty(0, np.int64)
            return _Flat(none, none, none.astype(np.float32), none.astype(np.bool_))
        lengths = [len(places) for places in self.places]
        places = np.concatenate(self.places)
        values = np.concatenate(self.values) if self.values else np.zeros(len(places))
        repeated = np.concatenate(self.repeated) if self.repeated else np.zeros(len(places), np.bool_)
        return _Flat(
            np.repeat(np.array(self.rows, np.int64), lengths), places, values.astype(np.float32), repeated
        )


@dataclass(slots=True)
class _Part:
    """Builder of `EditedRows`."""

    rows: list[int] = field(default_factory=list)
    allowed: list[np.ndarray] = field(default_factory=list)
    penalties: list[tuple[float, float, float]] = field(default_factory=list)
    banned: _Entries = field(default_factory=_Entries)
    biased: _Entries = field(default_factory=_Entries)
    counted: _Entries = field(default_factory=_Entries)

    def build(self, width: int) -> EditedRows:
        """Build the rows with `width` columns of allowed ids, 0 if all ids are allowed."""
        allowed, lengths = None, np.array([len(ids) for ids in self.allowed], np.int64)
        if width:
            allowed = np.zeros((len(self.rows), width), np.int64)
            for row, ids in zip(allowed, self.allowed, strict=True):
                row[: len(ids)] = ids
        return EditedRows(
            np.array(self.rows, np.int64), allowed, lengths, np.array(self.penalties, np.float32),
            self.banned.flat(), self.biased.flat(), self.counted.flat(),
        )  # fmt: skip


class EditsBuilder:
    """Builds the edits of a step row by row, in ascending order of rows."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        """Parts by the width of their rows: 0 if all ids are allowed."""
        self._rows: list[int] = []

    def add(self, row: int, shaper: Shaper, mask: Mask | None = None) -> None:
        """Add a row that is sampled after all tokens of the shaper's history; `mask` is that of its grammar."""
        allowed, banned = _allowed(shaper.allowed, mask), shaper.banned()
        if mask is not None and mask.negated:
            banned = np.concatenate([banned, mask.ids])
        part = self._parts.setdefault(0 if allowed is None else _width(len(allowed)), _Part())
        at, params = len(part.rows), shaper.params
        self._rows.append(row)
        part.rows.append(row)
        if allowed is not None:
            part.allowed.append(allowed)
        part.penalties.append((params.repetition_penalty, params.frequency_penalty, params.presence_penalty))
        part.banned.add(at, *_among(allowed, banned))
        part.biased.add(at, *_among(allowed, shaper.bias_ids, shaper.bias))
        history = shaper.history
        if params.penalized and history is not None:
            counts = history.counts.copy()  # later rows of a sequence with drafts change them
            repeated = (counts > 0) | history.in_prompt
            part.counted.add(at, *_among(allowed, history.ids, counts, repeated))

    def build(self) -> LogitEdits | None:
        """Return the edits; None if no row was added."""
        if not self._rows:
            return None
        parts = tuple(self._parts[width].build(width) for width in sorted(self._parts))
        return LogitEdits(np.array(self._rows, np.int64), parts)


def _allowed(ids: np.ndarray | None, mask: Mask | None) -> np.ndarray | None:
    """Return the ids that a setting and a grammar allow together, ascending; None if all ids are allowed, or all but those of
    a negated `mask`."""
    if mask is None or mask.negated:
        return ids
    return mask.ids if ids is None else np.intersect1d(ids, mask.ids, assume_unique=True)


def _width(count: int) -> int:
    width = _NARROWEST
    while width < count:
        width *= 4
    return width


def _among(allowed: np.ndarray | None, ids: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the columns of `ids` and their values, without ids that are not allowed."""
    if allowed is None:
        return ids, *values
    places = np.searchsorted(allowed, ids)
    hits = np.flatnonzero(np.append(allowed, -1)[places] == ids)
    return places[hits], *(value[hits] for value in values)


class Shaper:
    """One sequence's settings that change logits, prepared for use, and its history if they depend on earlier tokens."""

    def __init__(self, params: SamplingParams, history: TokenHistory | None) -> None:
        self.params = params
        self.history = history if params.needs_history else None
        ids = params.allowed_token_ids
        self.allowed = None if ids is None else np.unique(np.array(ids, np.int64))
        self.bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._never = np.array([word[0] for word in params.bad_words if len(word) == 1], np.int64)
        self._words = [(word[:-1], word[-1]) for word in params.bad_words if len(word) > 1]
        self._stops = np.array(params.stop_token_ids, np.int64)

    def banned(self) -> np.ndarray:
        """int64: ids that must not be sampled next."""
        if self.history is None:
            return self._never
        parts = [self._never]
        if len(self.history.output) < self.params.min_tokens:
            parts.append(self._stops)
        last = [token for before, token in self._words if self.history.ends_with(before)]
        parts.append(np.array(last, np.int64))
        return np.concatenate(parts)


class SlotShapers:
    """`Shaper`s by slot. Their histories are rebuilt from a sequence's start and follow the inputs of each step and the
    tokens kept of it, so they survive preemption. Only the stages of a step write them."""

    def __init__(self) -> None:
        self._of: dict[int, Shaper] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self, start: SequenceStart, follows: bool = True) -> None:
        """Assign the slot to a sequence. If `follows` is False, its history is set later, if it is needed."""
        self._of.pop(start.slot, None)
        params = start.sampling
        if params is None or start.pooling is not None:
            return
        if params.edits_logits or start.grammar is not None:
            history = TokenHistory.of(start) if follows and params.needs_history else None
            self._of[start.slot] = Shaper(params, history)

    def follow(self, slot: int, history: TokenHistory) -> None:
        """Set the history of a slot's sequence and keep it up to date from now on."""
        self._of[slot].history = history

    def drop(self, slot: int) -> None:
        """Free the slot."""
        self._of.pop(slot, None)

    def clear(self) -> None:
        """Free all slots."""
        self._of.clear()

    def items(self, slots: np.ndarray, counts: np.ndarray) -> list[int]:
        """Return the items of a step that sample (`counts` above 0) and whose slot has a shaper."""
        return [i for i, slot in enumerate(slots.tolist()) if slot in self._of and counts[i]]

    def add_rows(
        self, builder: EditsBuilder, slot: int, first_row: int, inputs: tuple[int, list[int], list[bool] | None],
        num_drafts: int, masks: Sequence[Mask | None] | None = None,
    ) -> None:  # fmt: skip
        """Add edits of one item's rows; each row sees the drafts before it.

        `inputs` are the item's position, its tokens (drafts last) and which of them are pending; `masks` holds one mask per
        row, from its grammar. Afterwards the history ends before the drafts.
        """
        shaper, (position, tokens, pending) = self._of[slot], inputs
        num_known = len(tokens) - num_drafts
        if shaper.history is not None:
            shaper.history.sync(position, tokens[:num_known], pending)
        masks = masks or [None] * (1 + num_drafts)
        builder.add(first_row, shaper, masks[0])
        for i in range(num_drafts):
            if shaper.history is not None:
                shaper.history.append(tokens[num_known + i])
            builder.add(first_row + 1 + i, shaper, masks[1 + i])
        if shaper.history is not None:
            shaper.history.truncate(position + num_known)

    def keep(self, slot: int, tokens: list[int]) -> None:
        """Append the tokens that sampling and verification of a step kept for an item."""
        history = self._of[slot].history
        if history is not None:
            for token in tokens:
                history.append(token)
