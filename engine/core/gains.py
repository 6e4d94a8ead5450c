"""`StepGains`: what the sequences of a step gained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.mailbox import Outlet
from engine.request import TokenDelta
from engine.sequence import Sequence


@dataclass(slots=True)
class StepGains:
    """Made by `StepResults`, sent by `Delivery`. Each sequence is in one of the lists, at most once."""

    at: float
    """When the tokens were committed, in seconds of the engine's clock."""
    tokens: list[tuple[Outlet, int, int, int]] = field(default_factory=list)
    """Arguments of `Outlet.put_token`, behind the outlet, for sequences that gained one token, without logprobs, and go on:
    nearly all. The tokens' times are noted. Not the sequences: reading hundreds of them once more would take longer than this."""
    previous: Counter[float] = field(default_factory=Counter)
    """How many of `tokens` have their previous token from a time. Sequences that run in the same steps share it."""
    deltas: list[tuple[Sequence, TokenDelta]] = field(default_factory=list)
    """What all other sequences gained."""
