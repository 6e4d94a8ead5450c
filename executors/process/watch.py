"""`HangWatch`: detects a hung child. Pure bookkeeping over a clock that is passed in; `life.py` queries it at each tick.

    loading     silence longer than `loading_silence_s` (an import may hold the GIL for long, and the disk be cold) is a
                hang; than `reloading_silence_s` if it was loaded before: there must be time for another try
    afterwards  silence longer than `silence_s` is one, and so is a call that takes longer than its deadline:

    a step        max(step_floor_s, step_factor x seconds per query token, as measured, x query tokens)
    not measured, no tokens (adapters, a new epoch), or while a progress report stands open (compilation, graph
    capture)      slow_call_s, from the last report on

A progress report stands open until one with done == total or the end of the call. Time in which a call waits for its turn at the
cores does not count.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Intervals in seconds. Only tests change them."""

    heartbeat_s: float = 1.0
    tick_s: float = 0.5
    silence_s: float = 5.0
    loading_silence_s: float = 120.0
    reloading_silence_s: float = 20.0
    step_floor_s: float = 30.0
    step_factor: float = 10.0
    slow_call_s: float = 600.0
    shutdown_s: float = 2.0
    """Time after which a child that was asked to end is killed, in seconds."""
    grace_s: float = 0.5
    """Time to wait for the other half of a death, in seconds: the exit after the socket's end, or the end after the exit."""


@dataclass(slots=True)
class TokenCost:
    """Seconds per query token, a moving average; None until a step was measured. Outlives restarts of the child."""

    seconds_per_token: float | None = None

    def measured(self, seconds: float, tokens: int) -> None:
        """Record one step."""
        cost = seconds / max(tokens, 1)
        before = self.seconds_per_token
        self.seconds_per_token = cost if before is None else 0.8 * before + 0.2 * cost


@dataclass(slots=True)
class _Sent:
    tokens: int | None
    reported: bool = False
    """Whether a progress report came while the call ran: then its time does not measure the cost of tokens."""


class HangWatch:
    """Written by the life of one child. All times are seconds of one clock."""

    def __init__(self, limits: Limits, cost: TokenCost, now: float, *, again: bool = False) -> None:
        """`again`: an earlier child was loaded."""
        self._limits = limits
        self._cost = cost
        self._loading = True
        self._loading_silence_s = limits.reloading_silence_s if again else limits.loading_silence_s
        self._heard_at = now
        self._calls: deque[_Sent] = deque()
        self._since = now  # when the first of the calls became the first, or reported last
        self._stage_open = False

    def heard(self, now: float) -> None:
        """Record that bytes were received."""
        self._heard_at = now

    def loaded(self) -> None:
        """Record that loading is over."""
        self._loading = False
        self._stage_open = False

    def sent(self, now: float, tokens: int | None) -> None:
        """Record that a call was sent; `tokens` is None if its time does not depend on tokens."""
        if not self._calls:
            self._since = now
        self._calls.append(_Sent(tokens))

    def reported(self, now: float, done: int, total: int) -> None:
        """Record a progress report."""
        self._stage_open = not 0 < total <= done
        self._since = now
        if self._calls:
            self._calls[0].reported = True

    def waits(self, now: float) -> None:
        """Record that the first call waits for its turn: its time begins later."""
        self._since = now

    def answered(self, now: float, seconds: float, *, step: bool) -> None:
        """Record the answer to the first call after `seconds` of work; `step`: it succeeded and measures the token cost."""
        first = self._calls.popleft()
        if step and first.tokens is not None and not first.reported:
            self._cost.measured(seconds, first.tokens)
        self._since = now
        self._stage_open = False

    def forgive(self, seconds: float, now: float) -> None:
        """Do not count a time for which this process itself was stopped until now."""
        self._heard_at = min(now, self._heard_at + seconds)
        self._since = min(now, self._since + seconds)

    def deadline_s(self) -> float | None:
        """Seconds that the first call may take; None if it has no deadline."""
        if not self._calls:
            return None
        tokens, cost = self._calls[0].tokens, self._cost.seconds_per_token
        if self._stage_open or tokens is None or cost is None:
            return self._limits.slow_call_s
        return max(self._limits.step_floor_s, self._limits.step_factor * cost * tokens)

    def is_silent(self, now: float) -> bool:
        """Whether the child has sent nothing for too long: its I/O thread is blocked, too, as in a stopped process."""
        allowed = self._loading_silence_s if self._loading else self._limits.silence_s
        return now - self._heard_at > allowed

    def verdict(self, now: float) -> str | None:
        """The reason why the child counts as hung, None if it does not."""
        if self.is_silent(now):
            return f"no heartbeat for {now - self._heard_at:.1f} s"
        deadline = self.deadline_s()
        if deadline is not None and now - self._since > deadline:
            return f"a step took longer than its deadline of {deadline:.1f} s"
        return None
