"""Budget policies: how many prompt tokens a step computes beside running decodes.

A step lasts as long as all it computes, and every running stream waits for it. So while streams run, a prompt is computed
in chunks: small ones keep the streams smooth, large ones get the prompt done sooner.
"""

from __future__ import annotations

from typing import Protocol

MIN_CHUNK = 8
"""A prompt gets on by so many tokens a step whatever the target, or it would never end."""
_STRETCH = 1.75
"""How much longer than a plain decode step a step with a chunk may last where no target is given. Streams stay within
three times their usual pace, with room for noise."""
_SMOOTHING = 0.2
_UNKNOWN = 128
"""Tokens of a chunk as long as nothing has been measured."""


class BudgetPolicy(Protocol):
    """Asked once a step, told of every step."""

    def prompt_tokens(self, num_decodes: int, most: int) -> int:
        """Prompt tokens to compute beside `num_decodes` decodes, at most `most`."""

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step of that content took so long."""


class FixedBudget:
    """As many as the step's token budget allows: the best throughput."""

    def prompt_tokens(self, num_decodes: int, most: int) -> int:
        """All."""
        return most

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Nothing to learn."""


class LatencyBudget:
    """Chunks sized so that a step takes a given time, by the measured cost of decode steps and of prompt tokens.

        seconds = base(decodes) + cost * prompt tokens

    `base` is kept by powers of two of the number of decodes. Alone, prompts get the whole step: nobody waits for it.
    """

    def __init__(self, target_itl: float | None = None) -> None:
        """`target_itl` in seconds; None: 1.75 times what the decodes alone take."""
        self.target_itl = target_itl
        self._base: dict[int, float] = {}
        self._cost: float | None = None

    def prompt_tokens(self, num_decodes: int, most: int) -> int:
        """See the class."""
        if not num_decodes:
            return most
        base = self._base_for(num_decodes)
        if base is None or self._cost is None:
            return min(most, _UNKNOWN)
        target = self.target_itl if self.target_itl is not None else _STRETCH * base
        return min(most, max(MIN_CHUNK, int((target - base) / self._cost)))

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """See the class."""
        if not prompt_tokens:
            size = num_decodes.bit_length()
            self._base[size] = _smoothed(self._base.get(size), seconds)
            return
        base = (self._base_for(num_decodes) or 0.0) if num_decodes else 0.0
        # A few tokens more or less drown in what every step costs.
        if prompt_tokens >= MIN_CHUNK and seconds > base:
            self._cost = _smoothed(self._cost, (seconds - base) / prompt_tokens)

    def _base_for(self, num_decodes: int) -> float | None:
        """What a step of so many decodes takes, or of a number as near as possible."""
        if not self._base:
            return None
        size = num_decodes.bit_length()
        return self._base[min(self._base, key=lambda known: abs(known - size))]


def _smoothed(known: float | None, seen: float) -> float:
    """The mean with later values weighing more; one stall among many steps moves it little."""
    if known is None:
        return seen
    return known + _SMOOTHING * (min(seen, 3 * known) - known)
