"""How many guesses of a drafter a step verifies: as many as pay, by what was accepted and by what steps took.

A sequence whose drafts are accepted with probability a, each if those before it are, gains a + a^2 + ... + a^k tokens by k of
them.
A step of n sequences with d drafts in all takes `verify(n, d)` seconds instead of `verify(n, 0)`, and a draft model takes
`rounds * draft(n)` beside it. Tokens per second are

    (n + gains) / (verify(n, d) + rounds * draft(n))

Where steps overlap, those without drafts need not wait for the host: `draft_rests.py` says when they do not. Then n tokens
compete that take `ahead(n)` seconds, if that is less than `verify(n, 0)`.

The most is reached where every draft that is verified has a chance a^i of at least some number, the same for all sequences; so a
few such numbers are tried. Where none gives more than no drafts do, none are made: a batch that fills the machine gains nothing.
(The formula for one sequence: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023.)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from engine.policies.draft_rests import DraftRests
from engine.policies.draft_room import within_room
from engine.request import DraftStats
from engine.sequence import Sequence
from executors.contract import Pace, interpolated

_CHANCES = tuple(0.95 * 0.85**i for i in range(19))
"""Chances of a draft to be accepted, down to 0.05, that are tried as the least one that is verified."""
_WORTH = 1.03
"""Drafts must give so many times the tokens per second of steps without."""
_SMOOTHING = 0.1
_SHORT = 3.0
"""A step that took so many times what was expected counts as this many times: a stall says little."""
_FRESH = 256
"""Steps after which a measured time is no longer believed."""
_PLAIN_EVERY = 64
"""Steps with drafts after which one without is taken, if there was none: what drafts cost is known by comparing."""
_TRIES = (0.7, 4.0)
"""What is believed of a sequence before any of its drafts was judged: a chance, and how many judged drafts it is worth."""
_MEMORY = 0.9
"""Weight of what was judged before, per judgement."""
_RETRY_AFTER = 48
"""Tokens after which a sequence whose drafts were not worth it gets another chance."""
_RETRY_CHANCE = 0.6
_MOST_HOPEFUL = 0.95
"""Chance of a draft with which it is asked whether a batch could gain at all."""


@dataclass(slots=True)
class _Record:
    """What is known of a sequence's drafts.

    `right` and `judged`: drafts, weighted, that were right, of those that were compared with the tokens that came. `last`: the
    last proposal, and the number of known tokens that it was made for. `given_up`: the number of known tokens when its drafts
    were last found not to pay; None while they do.
    """

    right: float
    judged: float
    last: tuple[int, list[int]] = (0, [])
    given_up: int | None = None

    @property
    def chance(self) -> float:
        """Probability that a draft is accepted if those before it are."""
        return min(0.99, self.right / self.judged)


class _StepTimes:
    """Seconds of steps by their rows: measured ratios to what the executor's pace says, for steps of about as many sequences."""

    def __init__(self, points: SequenceOf[tuple[int, float]], row: float) -> None:
        """`points`: rows and seconds, by rising rows. `row`: seconds of each row beyond them."""
        self._points = points
        self._row = row
        self._ratios: dict[tuple[int, int], tuple[float, int]] = {}
        self._step = 0

    def expected(self, rows: int) -> float:
        """What the pace says."""
        last_rows, last = self._points[-1]
        return last + (rows - last_rows) * self._row if rows > last_rows else interpolated(self._points, rows)

    def observe(self, num_seqs: int, rows: int, seconds: float) -> None:
        """A step took so long. One that was taken in together with the step before it seems to have taken no time."""
        self._step += 1
        if seconds <= 0.0:
            return
        key, ratio = (num_seqs.bit_length(), rows), seconds / self.expected(rows)
        record = self._ratios.get(key)
        if record is not None and self._step - record[1] < _FRESH:
            ratio = record[0] + _SMOOTHING * (min(ratio, _SHORT * record[0]) - record[0])
        self._ratios[key] = ratio, self._step

    def of(self, num_seqs: int) -> Callable[[int], float]:
        """What a step of so many sequences takes, by its rows."""
        size, fresh = num_seqs.bit_length(), self._step - _FRESH
        ratios = sorted(
            (at, ratio) for (of, at), (ratio, step) in self._ratios.items() if of == size and step >= fresh
        )
        if not ratios:
            return self.expected
        return lambda rows: self.expected(rows) * interpolated(ratios, rows)


class DraftLengths:
    """See the module. Without the executor's pace every draft is verified: there is nothing to weigh it against. Where steps
    overlap they rest then, too, while there are none."""

    def __init__(self, most: int, from_model: bool) -> None:
        """`most`: drafts of a sequence in a step. `from_model`: whether a draft model makes them, which costs time of its own."""
        self.most = most
        self.from_model = from_model
        self.stats = DraftStats(accepted_at=[0] * most)
        self._records: weakref.WeakKeyDictionary[Sequence, _Record] = weakref.WeakKeyDictionary()
        self._all = _Record(*_start())
        self._verify: _StepTimes | None = None
        self._draft: _StepTimes | None = None
        self._ahead: _StepTimes | None = None
        """Of steps without drafts that are launched before those before them have ended."""
        self._rests: DraftRests | None = None
        """None where steps do not overlap."""
        self._room: int | None = None
        """Most drafts of a step, of all sequences; None: no limit."""
        self._since_plain: dict[int, int] = {}
        """Steps with drafts since the last one without, by powers of two of the number of sequences."""
        self._hopes: dict[int, tuple[int, bool]] = {}
        self._step = 0

    def expect(self, pace: Pace | None, overlaps: bool = False, room: int | None = None) -> None:
        """The executor's pace, after its warmup; `overlaps`: whether steps without drafts are launched ahead of their tokens;
        `room`: most drafts of a step, of all sequences."""
        self._room = room
        if overlaps:
            self._rests = DraftRests()
        if pace is None:
            return
        if overlaps:
            self._ahead = _StepTimes(pace.decode_steps, pace.prompt_token)
        self._verify = _StepTimes(pace.decode_steps, pace.prompt_token)
        if self.from_model and pace.draft_steps:
            self._draft = _StepTimes(pace.draft_steps, 0.0)

    # -- decisions -----------------------------------------------------------------------------------------------------

    @property
    def overlaps(self) -> bool:
        """Whether steps without drafts are launched ahead of their tokens."""
        return self._rests is not None

    def verified(
        self, num_seqs: int, proposals: SequenceOf[tuple[Sequence, list[int]]], is_settled: bool = True
    ) -> list[list[int]]:
        """Which part of each proposal to verify, in a step of `num_seqs` sequences with a token each. `is_settled`: False where a
        drafter is to have proposals soon, so that their lack says nothing."""
        for seq, token_ids in proposals:
            self._judge(seq, token_ids)
        if self._verify is None:
            parts = self._cut(proposals, [len(token_ids) for _, token_ids in proposals])
        else:
            parts = self._worth(num_seqs, proposals)
        if self._rests is not None and num_seqs and (is_settled or any(parts)):
            self._rests.decided(num_seqs, any(parts))
        return parts

    def _worth(self, num_seqs: int, proposals: SequenceOf[tuple[Sequence, list[int]]]) -> list[list[int]]:
        """The part of each proposal that pays."""
        if not any(token_ids for _, token_ids in proposals) or self._is_plain_due(num_seqs):
            return [[] for _ in proposals]
        chances = [self._record(seq).chance for seq, _ in proposals]
        lengths = self._best(num_seqs, chances, [len(token_ids) for _, token_ids in proposals], False)
        return self._cut(proposals, lengths)

    def _cut(self, proposals: SequenceOf[tuple[Sequence, list[int]]], lengths: list[int]) -> list[list[int]]:
        """The first `lengths` tokens of each proposal, fewer where a step has no room for all of them."""
        lengths = self._within_room([seq for seq, _ in proposals], lengths)
        return [token_ids[:length] for (_, token_ids), length in zip(proposals, lengths, strict=True)]

    def _within_room(self, seqs: SequenceOf[Sequence], lengths: list[int]) -> list[int]:
        """How many drafts of each sequence a step has room for, of those that are worth it."""
        if self._room is None or sum(lengths) <= self._room:
            return lengths
        return within_room(lengths, [self._record(seq).chance for seq in seqs], self._room)

    def wanted(self, num_seqs: int, seqs: SequenceOf[Sequence]) -> list[int]:
        """How many drafts to ask of the draft model for each of these sequences, of a batch of `num_seqs`."""
        if self._verify is None:
            return self._within_room(seqs, [self.most] * len(seqs))
        chances = [self._hoped(seq) for seq in seqs]
        lengths = self._best(num_seqs, chances, [self.most] * len(seqs), True)
        for seq, length in zip(seqs, lengths, strict=True):
            record = self._record(seq)
            if length:
                record.given_up = None
            elif record.given_up is None:
                record.given_up = seq.num_known_tokens
        return self._within_room(seqs, lengths)

    def could_pay(self, num_seqs: int) -> bool:
        """Whether drafts pay in a batch of `num_seqs` if nearly all are right. If not, nothing is to be spent on them."""
        if num_seqs and self._rests is not None and self._rests.resting(num_seqs):
            return False
        if self._verify is None:
            return True
        if not num_seqs:
            return False
        entry = self._hopes.get(num_seqs)
        if entry is None or self._step - entry[0] >= _PLAIN_EVERY:
            chances = [_MOST_HOPEFUL] * num_seqs
            hope = any(self._best(num_seqs, chances, [self.most] * num_seqs, self.from_model))
            entry = self._hopes[num_seqs] = self._step, hope
        return entry[1]

    def _is_plain_due(self, num_seqs: int) -> bool:
        """Whether a step without drafts is to be measured. A rest begins with one."""
        if self._rests is not None:
            return False
        return self._since_plain.get(num_seqs.bit_length(), 0) >= _PLAIN_EVERY

    def _hoped(self, seq: Sequence) -> float:
        """The chance of a sequence's drafts, or a better one where it has not been tried for long."""
        record = self._record(seq)
        if record.given_up is not None and seq.num_known_tokens - record.given_up >= _RETRY_AFTER:
            record.given_up = None
            record.judged = min(record.judged, _TRIES[1])
            record.right = max(record.right, _RETRY_CHANCE * record.judged)
        return record.chance

    def _best(
        self, num_seqs: int, chances: SequenceOf[float], most: SequenceOf[int], drafting: bool
    ) -> list[int]:
        """Drafts of each sequence with the most tokens per second; `drafting`: they are still to be made."""
        assert self._verify is not None
        verify = self._verify.of(num_seqs)
        plain = verify(num_seqs)
        if self._ahead is not None:
            plain = min(plain, self._ahead.of(num_seqs)(num_seqs))
        best, lengths = _WORTH * num_seqs / plain, [0] * len(chances)
        logs = [math.log(chance) if chance > 0.0 else -math.inf for chance in chances]
        before: list[int] | None = None
        for least in _CHANCES:
            log = math.log(least)
            tried = [min(top, int(log / one)) for one, top in zip(logs, most, strict=True)]
            if tried == before or not any(tried):
                continue
            before = tried
            gain = sum(a * (1 - a**k) / (1 - a) for a, k in zip(chances, tried, strict=True))
            seconds = verify(num_seqs + sum(tried))
            if drafting and self._draft is not None:
                drafters = sum(map(bool, tried))
                seconds += max(tried) * self._draft.of(drafters)(drafters)
            if (num_seqs + gain) / seconds > best:
                best, lengths = (num_seqs + gain) / seconds, tried
        return lengths

    # -- what is learned -----------------------------------------------------------------------------------------------

    def _record(self, seq: Sequence) -> _Record:
        record = self._records.get(seq)
        if record is None:
            chance, weight = self._all.right / self._all.judged, _TRIES[1]
            record = self._records[seq] = _Record(chance * weight, weight)
        return record

    def _judge(self, seq: Sequence, token_ids: list[int]) -> None:
        """Compare the last proposal with the tokens that came since, verified or not, and note the new one."""
        record, num_known = self._record(seq), seq.num_known_tokens
        made_for, guessed = record.last
        record.last = num_known, token_ids
        following = seq.token_ids(made_for, min(num_known, made_for + len(guessed))) if guessed else []
        if not following:
            return
        right = 0
        while right < len(following) and following[right] == guessed[right]:
            right += 1
        for one in (record, self._all):
            weight = _MEMORY if one is record else _MEMORY ** (1 / 8)
            one.right = weight * one.right + right
            one.judged = weight * one.judged + min(len(following), right + 1)

    def verdict(self, num_drafts: int, num_accepted: int) -> None:
        """A step verified drafts of a sequence."""
        stats = self.stats
        stats.num_drafts += 1
        stats.num_draft_tokens += num_drafts
        stats.num_accepted_tokens += num_accepted
        for place in range(min(num_accepted, self.most)):
            stats.accepted_at[place] += 1

    def step_landed(self) -> None:
        """A step of decodes has landed."""
        self._step += 1
        if self._rests is not None:
            self._rests.step_landed()

    def observe(
        self, num_seqs: int, num_drafts: int, seconds: float, host: float = 0.0, ahead: bool = False
    ) -> None:
        """A step of one token and `num_drafts` drafts in all of `num_seqs` sequences, and nothing else, took so long, without the
        time of a draft model. `host`: seconds for which the executor had waited for it; `ahead`: it was launched before its
        tokens were known, so that there were none."""
        self.step_landed()
        if self._ahead is not None:
            if ahead:
                self._ahead.observe(num_seqs, num_seqs, seconds)
                return
            seconds += host
        size = num_seqs.bit_length()
        self._since_plain[size] = self._since_plain.get(size, 0) + 1 if num_drafts else 0
        if self._verify is not None:
            self._verify.observe(num_seqs, num_seqs + num_drafts, seconds)

    def observe_drafting(self, num_seqs: int, rounds: int, seconds: float) -> None:
        """The draft model took so long for `rounds` forwards, for `num_seqs` sequences, whose KV it had."""
        if self._draft is not None and rounds:
            self._draft.observe(num_seqs, num_seqs, seconds / rounds)


def _start() -> tuple[float, float]:
    return _TRIES[0] * _TRIES[1], _TRIES[1]
