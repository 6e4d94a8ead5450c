"""`SharedCores`: engines whose executors compute on the same cores know of each other.

The executors take turns at the cores themselves, one step at a time (`executors/process/core_turns.py`): so each engine may have
its next step out while another computes, and its own work on the host costs no turn. What is left to the engines is the length of
a step: while another engine has work, a step is cut to `STEP_SECONDS`.
"""

from __future__ import annotations

STEP_SECONDS = 0.1
"""What a step may take while another engine has work, by the measured cost of tokens."""
LEAST_TOKENS = 64
"""A step is not cut to less: what a step costs beside its tokens would be most of it."""
_SMOOTHING = 0.3


class SharedCores:
    """One for all engines of a process, on one event loop. `turns`: where executors find the file of their turns, None if they
    take none."""

    def __init__(self, turns: str | None = None) -> None:
        self.turns = turns
        self._working: set[CoreShare] = set()

    def join(self) -> CoreShare:
        """A new engine."""
        return CoreShare(self._working)


class CoreShare:
    """One engine's part. Used by its loop task only."""

    def __init__(self, working: set[CoreShare]) -> None:
        self._working = working
        self._cost: float | None = None
        """Seconds per token of the largest steps."""

    def work(self, has_work: bool) -> None:
        """Whether the engine has something to compute now."""
        if has_work:
            self._working.add(self)
        else:
            self._working.discard(self)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took the executor so long, its wait for the cores aside."""
        if num_tokens >= LEAST_TOKENS:
            cost = seconds / num_tokens
            self._cost = cost if self._cost is None else self._cost + _SMOOTHING * (cost - self._cost)

    def most_tokens(self) -> int | None:
        """Tokens that a step may have now; None: no limit, since no other engine has work or nothing was measured."""
        if self._cost is None or not self._working - {self}:
            return None
        return max(LEAST_TOKENS, int(STEP_SECONDS / self._cost))
