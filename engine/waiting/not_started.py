"""`Unbegun`: sequences that were never admitted, and when waiting has taken too long."""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Callable, Iterator

from engine.mailbox import Mailbox
from engine.sequence import Sequence

_SPARE = 64
"""Entries of sequences that wait no more, which are not worth a look at how many there are."""


class Unbegun:
    """Who waits, since when, and until when at most. Written by `Backlog` alone.

    A sequence has waited too long `patience` seconds after it came, or at its request's own deadline. A call is served whole:
    once one of its sequences was begun, none of the others is given up, for it would lose what it has, and the work on it.
    """

    def __init__(self, patience: float = math.inf, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._patience = patience
        self._clock = clock
        self._came: dict[Sequence, float] = {}
        """By the clock; the one that waits longest first."""
        self._deadlines: list[tuple[float, int, Sequence]] = []
        """A heap, in which some wait no more."""
        self._with_deadline: set[Sequence] = set()
        """Those of the heap that still wait."""
        self._calls_begun: weakref.WeakSet[Mailbox] = weakref.WeakSet()
        """Of calls of which a sequence was admitted."""

    def add(self, seq: Sequence) -> None:
        """It waits from now on."""
        # What has output (a stream that is resumed) was begun elsewhere.
        if not seq.output_token_ids:
            self._came[seq] = self._clock()
        if seq.request.deadline is not None:
            heapq.heappush(self._deadlines, (seq.request.deadline, seq.seq_id, seq))
            self._with_deadline.add(seq)

    def begin(self, seq: Sequence) -> None:
        """It was admitted, after `add`."""
        self._calls_begun.add(seq.mailbox)
        self.remove(seq)

    def remove(self, seq: Sequence) -> None:
        """It waits no more."""
        self._came.pop(seq, None)
        self._with_deadline.discard(seq)
        if len(self._deadlines) > 2 * len(self._with_deadline) + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._with_deadline]
            heapq.heapify(self._deadlines)
        elif not self._with_deadline:
            self._deadlines.clear()

    def past_deadline(self, now: float) -> Iterator[Sequence]:
        """Sequences still waiting whose own deadline has passed, each once."""
        while self._deadlines and self._deadlines[0][0] <= now:
            seq = heapq.heappop(self._deadlines)[2]
            waits = seq in self._with_deadline
            self._with_deadline.discard(seq)
            if waits and seq.mailbox not in self._calls_begun:
                yield seq

    def out_of_patience(self, now: float) -> Iterator[Sequence]:
        """Sequences that have waited for `patience` seconds, each once."""
        while self._came:
            seq, came = next(iter(self._came.items()))
            if now < came + self._patience:
                return
            del self._came[seq]
            if seq.mailbox not in self._calls_begun:
                yield seq

    def next_at(self) -> float | None:
        """By the clock: when to look again for sequences over their limit, at the latest. None if no sequence waits."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self._came and self._patience != math.inf:
            times.append(next(iter(self._came.values())) + self._patience)
        return min(times, default=None)
