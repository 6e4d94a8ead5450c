"""Drafters guess the next tokens; a step verifies the guesses, so that a good one saves steps and a bad one changes nothing."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Protocol

from engine.sequence import Sequence

_WINDOW = 1024
_KEPT = 4096


class Drafter(Protocol):
    """Asked before each step for each sequence whose tokens are all known."""

    def propose(self, seq: Sequence) -> list[int]:
        """Token ids that may follow the sequence's last one; none is a fine answer."""


@dataclass(slots=True)
class _Seen:
    """What was seen of one sequence: the position after each short run of tokens, from the first `num_tokens` tokens."""

    runs: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_tokens: int = 0


class NgramDrafter:
    """What followed the last few tokens when they occurred before (prompt lookup).

    Source of the idea: A. Saxena, "Prompt Lookup Decoding" (2023). The position where each run of tokens was seen last is kept
    as long as the sequence exists, and brought up to date by the tokens that are new.
    """

    def __init__(self, num_tokens: int, longest: int = 3) -> None:
        """Propose up to `num_tokens`, after a match of `longest` tokens if there is one, else of fewer."""
        self.num_tokens = num_tokens
        self.longest = longest
        self._seen: weakref.WeakKeyDictionary[Sequence, _Seen] = weakref.WeakKeyDictionary()

    def propose(self, seq: Sequence) -> list[int]:
        """The last match counts. Of a prompt the last 1,024 tokens are looked at, and of all tokens what was seen in the last
        4,096 or more: 160 bytes a run are too much for a long output."""
        seen = self._seen.get(seq)
        if seen is None:
            seen = self._seen[seq] = _Seen()
        runs = seen.runs
        known = seq.num_known_tokens
        first = max(0, seq.prompt_len - _WINDOW)
        begin = max(first, seen.num_tokens - self.longest)
        tokens = seq.token_ids(begin, known)
        # Runs that end before the last token: what follows them is known.
        for end in range(max(seen.num_tokens, first + 1), known):
            for length in range(1, min(self.longest, end - begin) + 1):
                run = tuple(tokens[end - length - begin : end - begin])
                runs.pop(run, None)  # so that the run seen last stands last
                runs[run] = end
        while len(runs) > _KEPT * self.longest:
            del runs[next(iter(runs))]
        seen.num_tokens = known
        for length in range(min(self.longest, len(tokens)), 0, -1):
            following = runs.get(tuple(tokens[-length:]))
            if following is not None:
                return seq.token_ids(following, min(following + self.num_tokens, known))
        return []
