"""`WaitingQueue`: the waiting sequences, their order of admission, their number, and their estimated wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

from engine.refusal import Because, Refusal
from engine.request import Request
from engine.sequence import Sequence
from engine.story import WaitReason
from engine.waiting.answers import OutputLimits
from engine.waiting.forecast import Forecast, SharedPrefixes, streams
from engine.waiting.not_started import NotStarted
from engine.waiting.order import Fcfs, QueuePolicy
from engine.waiting.reasons import WaitReasons
from engine.waiting.second_look import SecondLook
from engine.waiting.wait_estimate import WaitEstimate, Waiting

MAX_RETRY_AFTER = 300
"""Seconds. Longer estimates are guesses about requests that have not come yet."""


class WaitingQueue:
    """All sequences that wait. Written by callers (`submit`) and by the loop task, on one event loop.

        submit -> counted, limited in time ---- start ---.
           add -> in the policy's order ------- remove --+-> running
                        ^------- add (preempted) --------'

    - A sequence that was submitted and never admitted is *not started*: `count` of them have `tokens` prompt tokens, as they were
      submitted, for what the cache holds of them is not known before. Choices that share a prompt have its tokens once.
      `not_started` has the start and the deadline of each wait.
    - The order holds the sequences that the loop task has queued, preempted ones too.

    `estimate` says how long a new request would wait. The scheduler reports steps to it, and this queue reports sequences.
    """

    def __init__(
        self,
        policy: QueuePolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        patience: float = math.inf,
    ) -> None:
        """`patience`: maximum seconds that a sequence may wait to be started, see `NotStarted`."""
        self.policy = Fcfs() if policy is None else policy
        self.not_started = NotStarted(patience, clock)
        self.second_look = SecondLook(patience, clock)
        self.estimate = WaitEstimate(clock)
        self.clock = clock
        self.reasons = WaitReasons(clock)
        self.count = 0
        self.tokens = 0
        self._groups: dict[str | int, Waiting] = {}
        """Counts of sequences that are not started, by `QueuePolicy.group`."""
        self._fresh: dict[Sequence, int] = {}
        """Of each sequence that is not started: prompt tokens that earlier prompts do not share."""
        self._prefixes = SharedPrefixes(0)
        self._shares_prompts = False
        self._num_slots = 1

    def open(self, num_slots: int, shares_prompts: bool = False, kv_tokens: float = math.inf) -> None:
        """`num_slots` sequences can run at once, if the pool has room for them: it has `kv_tokens` tokens. `shares_prompts`:
        choices of one prompt share its KV."""
        self._shares_prompts = shares_prompts
        self._num_slots = num_slots
        self.estimate.open(num_slots, kv_tokens)

    def expect(self, forecast: Forecast, prefix_block_size: int = 0) -> None:
        """Use `forecast` for times that were not measured yet. Prompts share blocks of `prefix_block_size` tokens; 0: none."""
        self.estimate.forecast = forecast
        self._prefixes = SharedPrefixes(prefix_block_size)

    # -- sequences come and go -----------------------------------------------------------------------------------------

    def submit(self, seq: Sequence) -> None:
        """Record that a new sequence waits. The loop task gives it its place later, by `add`."""
        self._fresh[seq] = self._prefixes.fresh(seq.request) if self.prompt_tokens(seq) else 0
        self._count(seq, 1)
        self.not_started.add(seq)
        if self.estimate.forecast is not None and self.not_started.may_drop(seq):
            self.second_look.add(seq)
        self.reasons.begin(seq)

    def add(self, seq: Sequence) -> None:
        """Give a new or a preempted sequence its place in the order."""
        self.policy.add(seq)
        self.reasons.begin(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out of the order. Raises ValueError if it has no place there. Not allowed while iterating."""
        self.policy.remove(seq)

    def extend_waits(self, seconds: float) -> None:
        """Do not count the last seconds, in which nothing could be computed on purpose, for `patience`. Deadlines stay."""
        self.not_started.extend(seconds)

    def start(self, seq: Sequence) -> None:
        """Record that a sequence was admitted for the first time."""
        self._uncount(seq)
        self.not_started.start(seq)
        self.estimate.start(seq)

    def admitted(self, seq: Sequence) -> tuple[float, dict[WaitReason, float]]:
        """Record that a sequence was admitted, for the first time or again. Returns the time, and the seconds that it has waited
        by reason."""
        return self.reasons.end(seq)

    def end(self, seq: Sequence) -> dict[WaitReason, float]:
        """A sequence has ended, started or not; it has no place in the order any more. Returns the seconds that it has waited by
        reason, {} if it was not waiting."""
        _, waits = self.reasons.end(seq)
        if seq in self._fresh:
            self._uncount(seq)
            self.not_started.remove(seq)
        else:
            self.estimate.end(seq)
        self.policy.gone(seq)
        return waits

    def charge(self, seq: Sequence, begin: int, end: int) -> None:
        """Charge the policy with those of positions begin .. end - 1 that it was not charged with before."""
        policy = self.policy
        if policy.charges and (count := seq.charge(begin, end)):
            policy.charge(seq, count)

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences in order, from the first to be admitted on."""
        return iter(self.policy)

    def __len__(self) -> int:
        """Return how many sequences are in the order."""
        return len(self.policy)

    # -- how many ------------------------------------------------------------------------------------------------------

    def prompt_tokens(self, seq: Sequence) -> int:
        """Tokens of the sequence's prompt; 0 if another choice computes the prompt for both."""
        shared = self._shares_prompts and not seq.is_first
        return 0 if shared and not seq.request.needs_whole_prompt else seq.prompt_len

    def _uncount(self, seq: Sequence) -> None:
        self._count(seq, -1)
        del self._fresh[seq]
        if not self.count:
            self.estimate.emptied()

    def _count(self, seq: Sequence, change: int) -> None:
        tokens = change * self.prompt_tokens(seq)
        self.count += change
        self.tokens += tokens
        key = self.policy.group(seq.request)
        group = self._groups.setdefault(key, Waiting())
        group.count += change
        group.tokens += tokens
        group.fresh += change * self._fresh[seq]
        group.joining += change * streams(seq.request)
        group.limits.add(seq.request, change)
        if not group.count:
            del self._groups[key]

    def within_share(self, request: Request, max_seqs: int, max_tokens: int) -> bool:
        """True if the policy serves tenants in turn and this one has less of a full queue than its equal share. So a tenant with
        a thousand requests shuts no other out, and the queue is at most twice as long as it may be."""
        if self.policy.ranked:
            return False
        own, tenants = self._groups.get(self.policy.group(request)), len(self._groups)
        if own is None:
            return tenants > 0
        return own.count * tenants < max_seqs and own.tokens * tenants < max_tokens and tenants > 1

    def refusal(
        self, request: Request, because: Because, limit: float | None, estimated_wait: float | None = None,
        waited: float | None = None,
    ) -> Refusal:  # fmt: skip
        """Return why a request is refused, with the numbers of the queue."""
        own = self._groups.get(self.policy.group(request))
        shares = None if self.policy.ranked or not self.policy.keeps_slots else len(self._groups)
        of_key = None if shares is None else own.count if own is not None else 0
        return Refusal(because, limit, estimated_wait, waited, self.count, self.tokens, of_key, shares)

    # -- how long ------------------------------------------------------------------------------------------------------

    def ahead(self, request: Request) -> Waiting:
        """What is started before a request that comes now: the policy's order, simplified."""
        own = self.policy.group(request)
        if self.policy.ranked:
            return _sum(group for key, group in self._groups.items() if self._precedes(key, own))
        mine = self._groups.get(own, Waiting())
        # Of others no more than of its own, and one of each that may come before it.
        others = [
            _first(group, mine.count + 1, mine.tokens + group.tokens // group.count)
            for key, group in self._groups.items()
            if key != own
        ]
        return _sum((mine, *others))

    def _precedes(self, key: str | int, own: str | int) -> bool:
        """Whether the prompts of a group come before a new request of group `own`."""
        return key <= own if self.policy.ranked else key == own  # type: ignore[operator]  # ranks are numbers

    def wait(self, request: Request) -> float:
        """Seconds, about, until a request that comes now is started. 0 if nothing is before it, or nothing was measured yet and
        there is no forecast."""
        own, group = self.policy.group(request), self.policy.group
        ahead, num_kept = self.ahead(request), 0
        if self.policy.keeps_slots:
            ahead, num_kept = self._with_kept_slots(own, ahead)
        return self.estimate.wait(ahead, lambda started: self._precedes(group(started), own), num_kept)

    def _with_kept_slots(self, own: str | int, ahead: Waiting) -> tuple[Waiting, int]:
        """Return what is started before a request of group `own`, and how many free slots are kept for others. If there is a
        free slot for it, those that may have none now are not before it, however many they are."""
        free = self._num_slots - self.estimate.num_started
        mine = self._groups.get(own, Waiting())
        room = self.policy.room(own, self._num_slots)
        others = []
        for key, group in self._groups.items():
            if key != own and (most := min(mine.count + 1, self.policy.room(key, self._num_slots))):
                others.append(_first(group, most, group.tokens * most // group.count))
        before = _sum((mine, *others))
        if mine.count < room and before.count < free:
            return before, 0
        return ahead, max(0, free - room - sum(one.count for one in others))

    def overdue(self, now: float) -> Iterator[tuple[Sequence, float, float]]:
        """See `SecondLook`."""
        for seq, seconds, waited in self.second_look.overdue(
            now, lambda seq: self.policy.group(seq.request), self._wait_of
        ):
            if self.not_started.may_drop(seq):
                yield seq, seconds, waited

    def _wait_of(self, seq: Sequence) -> float:
        """Seconds, about, from now on until a sequence is started that waits and came last of its group."""
        self._count(seq, -1)
        seconds = self.wait(seq.request)
        self._count(seq, 1)
        return seconds

    def retry_after(self, request: Request, wait: float | None = None) -> int:
        """Whole seconds, at least 1, after which half of what is before this request now will have been started: there is room
        then, and no client has waited in vain for more of it. `wait`: what `wait` returned for it just now."""
        return max(1, math.ceil(min(MAX_RETRY_AFTER, (self.wait(request) if wait is None else wait) / 2)))


def _sum(groups: Iterable[Waiting]) -> Waiting:
    total = Waiting()
    for one in groups:
        total.count += one.count
        total.tokens += one.tokens
        total.fresh += one.fresh
        total.joining += one.joining
        total.limits = total.limits.plus(one.limits)
    return total


def _first(group: Waiting, most: int, most_tokens: int) -> Waiting:
    """Return the first sequences of a group, up to a number of sequences and tokens; all are assumed to be alike."""
    count, tokens = min(group.count, most), min(group.tokens, most_tokens)
    share = tokens / group.tokens if group.tokens else 0.0
    limits = group.limits.part(count / group.count) if group.count else OutputLimits()
    return Waiting(count, tokens, group.fresh * share, min(group.joining, count), limits)
