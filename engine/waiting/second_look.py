"""`SecondLook`: takes back an admission that was a mistake, while its caller can still go elsewhere.

Calls that arrive together are queued before any of their steps is done, by a pace that was measured at warm-up. A machine that is
busier now may be several times slower, which the first steps show. Calls that cannot be started in time by the new estimate are
refused within seconds, as on arrival, instead of waiting in vain until their patience is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from engine.sequence import Sequence, SequenceStatus

_YOUNG = 3.0
"""Seconds, at most, for which an admission can be taken back. Streams have sent no headers before: the answer is a 429."""
_SHARE = 0.2
"""The same as a share of the time that a request may wait."""
_DOUBT = 1.1
"""Factor by which the estimate has to be over what a sequence may wait."""
_PAUSE = 0.05
"""Seconds between two looks."""
_MOST = 32
"""Estimates in one look, which holds up the loop: an estimate takes 0.03 ms, and 3 ms where a thousand keys wait."""


class SecondLook:
    """The sequences that came last, and a look at whether they can still be started in time. Used by `WaitingQueue`."""

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        """`patience`: seconds that a sequence may wait to be started."""
        self._patience = patience
        self._young_for = min(_YOUNG, _SHARE * patience)
        self._clock = clock
        self._young: deque[tuple[float, Sequence]] = deque()
        """When each of them came, the oldest first."""
        self._next_at = 0.0

    def add(self, seq: Sequence) -> None:
        """A new sequence waits."""
        self._young.append((self._clock(), seq))

    def overdue(
        self, now: float, group: Callable[[Sequence], str | int], wait: Callable[[Sequence], float]
    ) -> Iterator[tuple[Sequence, float, float]]:
        """Yield sequences that cannot be started in time, with the estimate from now on and what they have waited, in seconds:
        of each `group` the last first, until one can be; a look makes few estimates, and the next one goes on. `wait`: the
        estimate for one that waits. The caller drops each before the next is looked at."""
        while self._young and self._young[0][0] < now - self._young_for:
            self._young.popleft()
        if not self._young or now < self._next_at:
            return
        self._next_at = now + _PAUSE
        in_time, looks = set[str | int](), 0
        for arrival, seq in reversed(list(self._young)):
            if looks == _MOST:
                return
            if seq.status is not SequenceStatus.WAITING or (own := group(seq)) in in_time:
                continue
            looks += 1
            seconds, waited = wait(seq), now - arrival
            if seconds <= _DOUBT * (self._patience - waited):
                in_time.add(own)
            else:
                yield seq, seconds, waited
