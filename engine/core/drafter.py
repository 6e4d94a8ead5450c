"""Drafters guess the next tokens; a step verifies the guesses, so that a good one saves steps and a bad one changes nothing."""

from __future__ import annotations

from typing import Protocol

from engine.core.sequence import Sequence

_WINDOW = 1024


class Drafter(Protocol):
    """Asked before each step for each sequence whose tokens are all known."""

    def propose(self, seq: Sequence) -> list[int]:
        """Token ids that may follow the sequence's last one; none is a fine answer."""


class NgramDrafter:
    """What followed the last few tokens when they occurred before (prompt lookup).

    Source of the idea: A. Saxena, "Prompt Lookup Decoding" (2023).
    """

    def __init__(self, num_tokens: int, longest: int = 3, shortest: int = 1) -> None:
        """Propose up to `num_tokens`, after a match of `longest` tokens if there is one, else of fewer."""
        self.num_tokens = num_tokens
        self.longest, self.shortest = longest, shortest

    def propose(self, seq: Sequence) -> list[int]:
        """Looks back by 1,024 tokens, and takes the last match."""
        known = list(seq.token_ids(max(0, seq.num_known_tokens - _WINDOW), seq.num_known_tokens))
        for length in range(min(self.longest, len(known) - 1), self.shortest - 1, -1):
            suffix = known[-length:]
            for begin in range(len(known) - length - 1, -1, -1):
                if known[begin : begin + length] == suffix:
                    return known[begin + length : begin + length + self.num_tokens]
        return []
