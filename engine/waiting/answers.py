"""`AnswerLengths`: guesses how many tokens outputs will have, from what was asked for and, later, from what came.

    sure    nothing but `max_tokens` ends it (`ignore_eos`)     `max_tokens`
    short   at most `USUAL_ANSWER` tokens were asked for        a share of them: all, until outputs have ended
    open    more were asked for, as by clients that say nothing    `USUAL_ANSWER`, until outputs have ended

Outputs that end early end first. The mean of those alone would be too low while long ones still run, so the tokens of running
sequences count with those that ended: tokens in all, divided by ends, which is the maximum-likelihood mean of exponential
lifetimes of which some are cut off.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.request import Request
from engine.sequence import Sequence

USUAL_ANSWER = 512
"""Tokens. Of answers that may be longer most are shorter. A guess that is too short lets callers in that are dropped later, one
that is too long refuses callers that could be served until the first answers have ended."""
_DECAY = math.exp(-1 / 32)
"""Weight that ended outputs keep each time another one ends."""
_PRIOR = 2
"""Outputs of the length guessed before any ended that count with those that did: one short output says little."""
_LEAST_SHARE = 0.25
"""Least share of the guess that an output is taken to go on, unless it ends for certain."""


class Kind(enum.Enum):
    """How much is known of an output's length before it is there."""

    NONE = "none"
    SURE = "sure"
    SHORT = "short"
    OPEN = "open"


def kind_of(request: Request) -> Kind:
    """Return what is known of the length of a request's output."""
    if request.pooling is not None:
        return Kind.NONE
    if not request.stop_token_ids or request.sampling.min_tokens >= request.max_tokens:
        return Kind.SURE
    return Kind.SHORT if request.max_tokens <= USUAL_ANSWER else Kind.OPEN


@dataclass(slots=True)
class OutputLimits:
    """Limits of the outputs of requests, added up by kind: tokens of `sure` and `short` ones, the number of `open` ones."""

    sure: float = 0.0
    short: float = 0.0
    open: float = 0.0

    def add(self, request: Request, change: int) -> None:
        """Add a request, or with `change` -1 take it away."""
        kind = kind_of(request)
        if kind is Kind.SURE:
            self.sure += change * request.max_tokens
        elif kind is Kind.SHORT:
            self.short += change * request.max_tokens
        elif kind is Kind.OPEN:
            self.open += change

    def part(self, share: float) -> OutputLimits:
        """Return a share of it."""
        return OutputLimits(self.sure * share, self.short * share, self.open * share)

    def plus(self, other: OutputLimits) -> OutputLimits:
        """Return the sum."""
        return OutputLimits(self.sure + other.sure, self.short + other.short, self.open + other.open)


@dataclass(frozen=True, slots=True)
class Guess:
    """What outputs are taken to have: a share of the tokens asked for by `short` requests, and tokens of `open` ones."""

    short: float = 1.0
    open: float = USUAL_ANSWER

    def total(self, limits: OutputLimits) -> float:
        """Tokens of all outputs."""
        return limits.sure + self.short * limits.short + self.open * limits.open

    def left(self, seq: Sequence) -> float:
        """Tokens of a running sequence's output that are still to come."""
        kind, most, there = kind_of(seq.request), seq.request.max_tokens, len(seq.output_token_ids)
        if kind is Kind.NONE:
            return 0.0
        if kind is Kind.SURE:
            return most - there
        whole = self.short * most if kind is Kind.SHORT else min(most, self.open)
        return min(most - there, max(whole - there, _LEAST_SHARE * whole))


class AnswerLengths:
    """Learns from outputs as they end. One writer: `WaitEstimate`."""

    def __init__(self) -> None:
        self._tokens = {Kind.SHORT: 0.0, Kind.OPEN: 0.0}
        """Tokens of outputs that have ended, those that ended last counting most."""
        self._limits = {Kind.SHORT: 0.0, Kind.OPEN: 0.0}
        """The same of what they were guessed to have at first."""
        self._ends = {Kind.SHORT: 0.0, Kind.OPEN: 0.0}
        """The same of their number."""

    def learn(self, seq: Sequence) -> None:
        """A sequence that was started has ended."""
        if (kind := kind_of(seq.request)) not in self._tokens:
            return
        self._tokens[kind] = self._tokens[kind] * _DECAY + len(seq.output_token_ids)
        self._limits[kind] = self._limits[kind] * _DECAY + min(seq.request.max_tokens, USUAL_ANSWER)
        self._ends[kind] = self._ends[kind] * _DECAY + 1

    def guess(self, running: Iterable[Sequence]) -> Guess:
        """Return the guess by what has ended and what the `running` sequences have given."""
        if not any(self._ends.values()):
            return Guess()
        tokens = dict(self._tokens)
        for seq in running:
            if (kind := kind_of(seq.request)) in tokens:
                tokens[kind] += len(seq.output_token_ids)
        shares = [self._share(kind, tokens[kind]) for kind in (Kind.SHORT, Kind.OPEN)]
        return Guess(min(1.0, shares[0]), USUAL_ANSWER * shares[1])

    def _share(self, kind: Kind, tokens: float) -> float:
        """The tokens that outputs of a kind have as a share of what they were guessed to have at first."""
        if not self._ends[kind]:
            return 1.0
        prior = _PRIOR * self._limits[kind] / self._ends[kind]
        return (tokens + prior) / (self._limits[kind] + prior)
