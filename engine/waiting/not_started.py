"""`NotStarted`: sequences that were never admitted, and the times until which they may wait."""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Callable, Iterator

from engine.mailbox import Outlet
from engine.sequence import Sequence

_SPARE = 64
"""Number of outdated heap entries below which the heap is not cleaned up."""


class NotStarted:
    """The time since which each sequence waits to be started, and its deadline. Written by `WaitingQueue` alone.

    A sequence has waited too long `patience` seconds after it came, or at its request's own deadline. A call is served whole:
    once one of its sequences has started, none of the others is dropped, because the call would lose the tokens it already has.
    """

    def __init__(self, patience: float = math.inf, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._patience = patience
        self._clock = clock
        self._arrivals: dict[Sequence, float] = {}
        """Time of the clock; the sequence that waits longest comes first. Those over `patience` are gone from it."""
        self._since: dict[Sequence, float] = {}
        """The same for all that wait."""
        self._deadlines: list[tuple[float, int, Sequence]] = []
        """A heap, which may have entries of sequences that no longer wait."""
        self._with_deadline: set[Sequence] = set()
        """Sequences of the heap that still wait."""
        self._calls_started: weakref.WeakSet[Outlet] = weakref.WeakSet()
        """Mailboxes of calls with at least one admitted sequence."""

    def add(self, seq: Sequence) -> None:
        """Record that a sequence waits."""
        if seq.output_token_ids:
            return  # a resumed stream: it was started elsewhere
        self._arrivals[seq] = self._since[seq] = self._clock()
        if seq.context.deadline is not None:
            heapq.heappush(self._deadlines, (seq.context.deadline, seq.seq_id, seq))
            self._with_deadline.add(seq)

    def call_started(self, mailbox: Outlet) -> None:
        """Record that a sequence of this call was admitted, here or elsewhere: the call's others may wait for any time."""
        self._calls_started.add(mailbox)

    def may_drop(self, seq: Sequence) -> bool:
        """Whether a sequence waits to be started whose call was not."""
        return seq in self._since and seq.mailbox not in self._calls_started

    def start(self, seq: Sequence) -> None:
        """Record that a sequence was admitted, after `add`."""
        self.call_started(seq.mailbox)
        self.remove(seq)

    def remove(self, seq: Sequence) -> None:
        """Record that a sequence no longer waits."""
        self._arrivals.pop(seq, None)
        self._since.pop(seq, None)
        self._with_deadline.discard(seq)
        if len(self._deadlines) > 2 * len(self._with_deadline) + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._with_deadline]
            heapq.heapify(self._deadlines)
        elif not self._with_deadline:
            self._deadlines.clear()

    def extend(self, seconds: float) -> None:
        """Do not count the last seconds of the waits so far. Deadlines stay."""
        for seq in self._arrivals:
            self._arrivals[seq] += seconds

    def past_deadline(self, now: float) -> Iterator[Sequence]:
        """Sequences still waiting whose own deadline has passed, each once."""
        while self._deadlines and self._deadlines[0][0] <= now:
            seq = heapq.heappop(self._deadlines)[2]
            waits = seq in self._with_deadline
            self._with_deadline.discard(seq)
            if waits and seq.mailbox not in self._calls_started:
                yield seq

    def out_of_patience(self, now: float) -> Iterator[Sequence]:
        """Sequences that have waited for `patience` seconds, each once."""
        while self._arrivals:
            seq, arrival = next(iter(self._arrivals.items()))
            if now < arrival + self._patience:
                return
            del self._arrivals[seq]
            if seq.mailbox not in self._calls_started:
                yield seq

    def oldest_wait(self) -> float:
        """Seconds for which the oldest of them has waited; 0 if none waits."""
        return self._clock() - next(iter(self._since.values())) if self._since else 0.0

    def next_at(self) -> float | None:
        """By the clock: when to look again for sequences over their limit, at the latest. None if no sequence waits."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self._arrivals and self._patience != math.inf:
            times.append(next(iter(self._arrivals.values())) + self._patience)
        return min(times, default=None)
