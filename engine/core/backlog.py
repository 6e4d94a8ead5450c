"""`Backlog`: how much waits to be begun, and how long that will take by what was measured."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from engine.core.sequence import Sequence, SequenceStatus

_MEMORY = 10.0
"""Seconds of computing after which a measurement counts 1/e."""
MAX_RETRY_AFTER = 300
"""Seconds. Longer estimates are guesses about requests that have not come yet."""


class Backlog:
    """Sequences that were submitted and never admitted. Written by callers (`enter`) and by the loop task, on one event
    loop.

    - `count` of them, and `tokens` of their prompts.
    """

    def __init__(self) -> None:
        self.count = 0
        self.tokens = 0
        self._seconds = 0.0
        self._computed = 0.0
        self._ended = 0.0
        self._deadlines: list[tuple[float, int, Sequence]] = []

    def enter(self, seq: Sequence) -> None:
        """It waits from now on."""
        self.count += 1
        self.tokens += seq.prompt_len
        if seq.request.deadline is not None:
            heapq.heappush(self._deadlines, (seq.request.deadline, seq.seq_id, seq))

    def leave(self, seq: Sequence) -> None:
        """It was admitted for the first time, or ended before."""
        self.count -= 1
        self.tokens -= seq.prompt_len
        if not self.count:
            self._deadlines.clear()

    def observe(self, seconds: float, tokens: int, ended: int) -> None:
        """A step took so long for so many tokens, and so many sequences ended with it."""
        kept = math.exp(-seconds / _MEMORY)
        self._seconds = self._seconds * kept + seconds
        self._computed = self._computed * kept + tokens
        self._ended = self._ended * kept + ended

    def wait(self, tokens: int = 0) -> float:
        """Seconds, about, until a request that comes now with so many tokens is begun: what waits must be computed, and where
        sequences wait it is for others to end. 0 before anything was measured."""
        by_tokens = (self.tokens + tokens) * self._seconds / self._computed if self._computed else 0.0
        by_ends = self.count * self._seconds / self._ended if self._ended else 0.0
        return max(by_tokens, by_ends) if self.count else 0.0

    def retry_after(self) -> int:
        """Whole seconds after which what waits now will have been begun, at least 1."""
        return max(1, math.ceil(min(MAX_RETRY_AFTER, self.wait())))

    def expired(self, now: float) -> Iterator[Sequence]:
        """Sequences still waiting whose deadline has passed, each once."""
        while self._deadlines and self._deadlines[0][0] <= now:
            seq = heapq.heappop(self._deadlines)[2]
            if seq.status is SequenceStatus.WAITING:
                yield seq
