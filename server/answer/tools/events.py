"""What a parser makes of an answer's text: text to show, and calls piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call is certain. `index` counts from 0 within a choice."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call that has begun: JSON in a string, as the model writes it. It is no promise that the
    pieces of a call add up to valid JSON, unless a grammar saw to it."""

    index: int
    text: str


Event = str | CallBegun | CallArguments
