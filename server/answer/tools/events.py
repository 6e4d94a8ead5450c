"""Events of a tool parser: text to show, and calls piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The certain beginning of a call. `index` counts from 0 within a choice."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of a call that has begun: JSON in a string, as the model writes it. The pieces of a call add up
    to valid JSON only if a grammar enforces it."""

    index: int
    text: str


Event = str | CallBegun | CallArguments
