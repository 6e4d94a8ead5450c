"""Victim policy: whose KV is given up when the pool runs out."""

from __future__ import annotations

from collections.abc import Container

from engine.core.sequence import Sequence


def youngest_not_granted(running: list[Sequence], granted: Container[Sequence]) -> Sequence:
    """The sequence admitted last that has no grant in this step yet: the least work is lost, and the oldest always gets
    on, so that the step makes progress. At least one sequence (the one that asks for room) must be without a grant."""
    return next(seq for seq in reversed(running) if seq not in granted)
