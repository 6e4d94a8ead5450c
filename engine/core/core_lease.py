"""`CoreLease`: engines whose executors share the cores of a machine take turns, one step at a time.

    turn of a   |step|        |step|
    turn of b         |step 1 |      |step 2|        a step is cut to `STEP_SECONDS` while another engine waits

Two executors that compute at once would share cores and caches, and take longer together than one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

STEP_SECONDS = 0.1
"""What a step may take while another engine waits, by the measured cost of tokens."""
LEAST_TOKENS = 64
"""A step is not cut to less: what a step costs beside its tokens would be most of it."""
_SMOOTHING = 0.3


class CoreLease:
    """One for all engines of a process, on one event loop. The turn goes around among engines with work."""

    def __init__(self) -> None:
        self._holder: Turn | None = None
        self._queue: deque[Turn] = deque()

    def join(self, wake: Callable[[], None]) -> Turn:
        """A new engine. `wake` is called when its turn has come."""
        return Turn(self, wake)

    @property
    def is_contended(self) -> bool:
        """Whether an engine waits for its turn."""
        return bool(self._queue)

    def _ask(self, turn: Turn) -> bool:
        if self._holder is None:
            self._holder = turn
        if self._holder is turn:
            return True
        if turn not in self._queue:
            self._queue.append(turn)
        return False

    def _give(self, turn: Turn) -> None:
        if self._holder is turn:
            self._holder = self._queue.popleft() if self._queue else None
            if self._holder is not None:
                self._holder.wake()

    def _leave(self, turn: Turn) -> None:
        if turn in self._queue:
            self._queue.remove(turn)
        self._give(turn)


class Turn:
    """One engine's place. Used by its loop task only."""

    def __init__(self, lease: CoreLease, wake: Callable[[], None]) -> None:
        self.wake = wake
        self._lease = lease
        self._cost: float | None = None
        """Seconds per token of the largest steps."""

    def take(self) -> bool:
        """Whether the engine may submit a step. If not, it is woken when its turn has come."""
        return self._lease._ask(self)

    def give(self) -> None:
        """The step has landed, or there is nothing to compute: the next engine's turn. Harmless without a turn."""
        self._lease._give(self)

    def leave(self) -> None:
        """The engine ends, or does not compute for a while."""
        self._lease._leave(self)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if num_tokens >= LEAST_TOKENS:
            cost = seconds / num_tokens
            self._cost = cost if self._cost is None else self._cost + _SMOOTHING * (cost - self._cost)

    def most_tokens(self) -> int | None:
        """Tokens that a step may have now; None: no limit, since no other engine waits or nothing was measured."""
        if self._cost is None or not self._lease.is_contended:
            return None
        return max(LEAST_TOKENS, int(STEP_SECONDS / self._cost))
