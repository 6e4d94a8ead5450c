"""Budget policies: how many prompt tokens a step computes beside running decodes.

A step lasts as long as all it computes, and every running stream waits for it. So while streams run, a prompt is computed
in chunks: small ones keep the streams smooth, large ones get the prompt done sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIN_CHUNK = 8
"""A prompt gets on by so many tokens a step whatever the target, or it would never end: in every step but the few that
measure what decodes take."""
_STRETCH = 1.75
"""How much longer than a plain decode step a step with a chunk may last where no target is given. Streams stay within
three times their usual pace, with room for noise."""
_SMOOTHING = 0.2
_LATE = 0.5
"""Weight of a value where the one before it is long ago. One stall can be no more than that, and is measured again soon."""
FIRST_CHUNK = 128
"""Tokens of a chunk as long as nothing has been measured."""
_SOON, _SELDOM = 8, 32
"""Steps after which decodes are measured alone again: where what they take is unknown, or has just surprised, and else."""
_SURPRISE = 0.25
"""By what part of the known value a new one differs that calls for another one soon."""


class BudgetPolicy(Protocol):
    """Asked once a step, told of every step."""

    def prompt_tokens(self, num_decodes: int, most: int) -> int:
        """Prompt tokens to compute beside `num_decodes` decodes, at most `most`; 0 now and then, never for long."""

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step of that content took so long."""


class FixedBudget:
    """As many as the step's token budget allows: the best throughput."""

    def prompt_tokens(self, num_decodes: int, most: int) -> int:
        """All."""
        return most

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class _Base:
    """What a step of decodes alone takes, and when that was measured."""

    seconds: float
    step: int


class LatencyBudget:
    """Chunks sized so that a step takes a given time, by the measured cost of decode steps and of prompt tokens.

        seconds = base(decodes) + cost * prompt tokens

    `base` is kept by powers of two of the number of decodes. While no stream decodes, prompts get the whole step.

    Steps with a chunk, all of about one size, cannot tell the two apart. While prompts wait there may be no others, and what
    more streams or longer contexts take would be booked as the prompts' cost: chunks would shrink to nothing, the prompts
    that are let in too slowly would leave slots free, and no step be without a chunk ever. So a step is left to the decodes
    where they have not been alone for `_SELDOM` steps.
    """

    def __init__(self, target_itl: float | None = None) -> None:
        """`target_itl` in seconds; None: 1.75 times what the decodes alone take."""
        self.target_itl = target_itl
        self._base: dict[int, _Base] = {}
        self._cost: float | None = None
        self._step = 0
        """How many there were: with a chunk by what was asked, of decodes alone by what was observed."""
        self._due: dict[int, int] = {}
        """By the same powers of two: the step from which on they are to be measured alone."""

    def prompt_tokens(self, num_decodes: int, most: int) -> int:
        """See the class."""
        if num_decodes <= 0:
            return most
        if self._measures_now(num_decodes.bit_length()):
            return 0
        base = self._base_for(num_decodes)
        if base is None or self._cost is None:
            return min(most, FIRST_CHUNK)
        return chunk_tokens(base, self._cost, self.target_itl, most)

    def _measures_now(self, size: int) -> bool:
        """Whether this step is for the decodes alone. Asked for once, whatever becomes of it: others may let prompts go on, or
        some of the streams have no token in it, and prompts are not to wait for what never comes."""
        self._step += 1
        if self._step < self._due.setdefault(size, self._step + _SOON):
            return False
        self._due[size] = self._step + _SELDOM
        return True

    def observe(self, num_decodes: int, prompt_tokens: int, seconds: float) -> None:
        """See the class."""
        if not prompt_tokens:
            self._observe_base(num_decodes.bit_length(), seconds)
            return
        base = (self._base_for(num_decodes) or 0.0) if num_decodes else 0.0
        # A few tokens more or less drown in what every step costs.
        if prompt_tokens >= MIN_CHUNK and seconds > base:
            self._cost = _smoothed(self._cost, (seconds - base) / prompt_tokens)

    def _observe_base(self, size: int, seconds: float) -> None:
        self._step += 1
        base = self._base.get(size)
        if base is None:
            self._base[size], again = _Base(seconds, self._step), _SOON
        else:
            again = _SOON if abs(seconds - base.seconds) > _SURPRISE * base.seconds else _SELDOM
            weight = _LATE if self._step - base.step >= _SOON else _SMOOTHING
            base.seconds, base.step = _smoothed(base.seconds, seconds, weight), self._step
        self._due[size] = self._step + again

    def _base_for(self, num_decodes: int) -> float | None:
        """What a step of so many decodes takes, or of a number as near as possible."""
        if not self._base:
            return None
        size = num_decodes.bit_length()
        return self._base[min(self._base, key=lambda base_size: abs(base_size - size))].seconds


def chunk_tokens(base: float, cost: float, target_itl: float | None, most: int) -> int:
    """Prompt tokens, each of `cost` seconds, that fit beside decodes of `base` seconds into a step of `target_itl`, at most
    `most`. None: a step may take 1.75 times as long as the decodes alone."""
    target = target_itl if target_itl is not None else _STRETCH * base
    return min(most, max(MIN_CHUNK, int((target - base) / cost)))


def _smoothed(average: float | None, value: float, weight: float = _SMOOTHING) -> float:
    """The mean with later values weighing more; one stall among many steps moves it little."""
    if average is None:
        return value
    return average + weight * (min(value, 3 * average) - average)
