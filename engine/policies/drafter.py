"""Drafters guess the next tokens; a step verifies the guesses, so that a good one saves steps and a bad one changes nothing."""

from __future__ import annotations

from typing import Protocol

from engine.sequence import Sequence

_WINDOW = 1024
_KEPT = 4096


class Drafter(Protocol):
    """Asked before each step for each sequence whose tokens are all known."""

    def propose(self, seq: Sequence) -> list[int]:
        """Token ids that may follow the sequence's last one; none is a fine answer."""


class NgramDrafter:
    """What followed the last few tokens when they occurred before (prompt lookup).

    Source of the idea: A. Saxena, "Prompt Lookup Decoding" (2023). Where each run of tokens was seen last is kept with the
    sequence (`Sequence.seen_runs`) and brought up to date by the tokens that are new.
    """

    def __init__(self, num_tokens: int, longest: int = 3) -> None:
        """Propose up to `num_tokens`, after a match of `longest` tokens if there is one, else of fewer."""
        self.num_tokens = num_tokens
        self.longest = longest

    def propose(self, seq: Sequence) -> list[int]:
        """The last match counts. Of a prompt the last 1,024 tokens are looked at, and of all tokens what was seen in the last
        4,096 or more: 160 bytes a run are too much for a long output."""
        runs = seq.seen_runs
        known = seq.num_known_tokens
        first = max(0, seq.prompt_len - _WINDOW)
        begin = max(first, seq.num_seen_tokens - self.longest)
        tokens = seq.token_ids(begin, known)
        # Runs that end before the last token: what follows them is known.
        for end in range(max(seq.num_seen_tokens, first + 1), known):
            for length in range(1, min(self.longest, end - begin) + 1):
                run = tuple(tokens[end - length - begin : end - begin])
                runs.pop(run, None)  # so that the run seen last stands last
                runs[run] = end
        while len(runs) > _KEPT * self.longest:
            del runs[next(iter(runs))]
        seq.num_seen_tokens = known
        for length in range(min(self.longest, len(tokens)), 0, -1):
            following = runs.get(tuple(tokens[-length:]))
            if following is not None:
                return seq.token_ids(following, min(following + self.num_tokens, known))
        return []
