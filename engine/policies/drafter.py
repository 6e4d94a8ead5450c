"""Drafters guess the next tokens; a step verifies the guesses, so that a good one saves steps and a bad one changes nothing.

`DraftLengths` (draft_length.py) decides how many of a drafter's guesses a step verifies.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Protocol

from engine.sequence import Sequence

_INDEXED = 4096
"""Tokens of a sequence that are looked at, the last ones: the index of a long output would take megabytes."""
_AT_ONCE = 512
"""Tokens that one call adds to an index, so that a long prompt holds up no step."""
_ID_BITS = 32
"""Bits of a token id in a key of the index."""


class Drafter(Protocol):
    """Asked before each step for each sequence whose tokens are all known."""

    def propose(self, seq: Sequence) -> list[int] | None:
        """Token ids that may follow the sequence's last one; none is a fine answer. None: it is still reading the sequence."""


@dataclass(slots=True)
class _Index:
    """The tokens of one sequence, by the runs that come before them.

    `followed_by`: a run, as one number, and the position after its last occurrence; `before`: the same of earlier tokens, for
    runs that did not come again. `num_tokens`: the first ones, which are looked at. `run`: the last `longest` of those tokens as
    one number, fewer where `run_length` says so.
    """

    followed_by: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    num_tokens: int = 0
    run: int = 0
    run_length: int = 0


class NgramDrafter:
    """What followed the last few tokens when they occurred before (prompt lookup).

    Source of the idea: A. Saxena, "Prompt Lookup Decoding" (2023). Runs of `shortest` to `longest` tokens are kept with the
    position after their last occurrence, and a new token adds as many entries as there are lengths, whatever the sequence's
    length. An index lives as long as its sequence: preemption and a restart of the executor leave it as it is.
    """

    def __init__(self, num_tokens: int, longest: int = 3, shortest: int = 1) -> None:
        """Propose up to `num_tokens`, after a match of `longest` tokens if there is one, else of fewer, at least `shortest`."""
        self.num_tokens = num_tokens
        self._lengths = range(longest, shortest - 1, -1)
        self._masks = {length: (1 << (_ID_BITS * length)) - 1 for length in self._lengths}
        self._most = _INDEXED * len(self._lengths)
        self._indexes: weakref.WeakKeyDictionary[Sequence, _Index] = weakref.WeakKeyDictionary()

    def propose(self, seq: Sequence) -> list[int] | None:
        """What followed the last match. Of a prompt the last 4,096 tokens are looked at, and of all tokens what was seen in the
        last 4,096 to 8,704."""
        index = self._indexes.get(seq)
        if index is None:
            index = self._indexes[seq] = _Index(num_tokens=max(0, seq.prompt_len - _INDEXED))
        num_known = seq.num_known_tokens
        end = min(num_known, index.num_tokens + _AT_ONCE)
        self._extend(index, seq.token_ids(index.num_tokens, end))
        if end < num_known:
            return None
        for length in self._lengths:
            key = self._key(index.run, length)
            following = index.followed_by.get(key) or index.before.get(key)
            if following is not None and length <= index.run_length:
                return self._repeated(seq.token_ids(following, min(following + self.num_tokens, num_known)))
        return []

    def _repeated(self, token_ids: list[int]) -> list[int]:
        """Go on in a circle where the text ends: a run that occurred so late that fewer tokens follow is likely to come again."""
        period = len(token_ids)
        while len(token_ids) < self.num_tokens:
            token_ids.append(token_ids[-period])
        return token_ids

    def _extend(self, index: _Index, tokens: SequenceOf[int]) -> None:
        """Add the tokens behind those that are indexed. The run that ends with a token is entered with the next one: with what
        follows it."""
        followed_by, run, at = index.followed_by, index.run, index.num_tokens
        longest = self._lengths[0]
        for token in tokens:
            for length in self._lengths:
                if length <= index.run_length:
                    followed_by[self._key(run, length)] = at
            run = ((run << _ID_BITS) | token) & self._masks[longest]
            index.run_length = min(index.run_length + 1, longest)
            at += 1
        if (
            len(followed_by) >= self._most
        ):  # all at once: taking out the oldest one by one takes longer the more there were
            index.before, index.followed_by = followed_by, {}
        index.num_tokens, index.run = at, run

    def _key(self, run: int, length: int) -> int:
        """The last `length` tokens of a run as a number that no run of another length has."""
        return (run & self._masks[length]) | (1 << (_ID_BITS * length))


class ModelDrafter:
    """Guesses of the executor's draft model, which come with the step before the one that verifies them."""

    def __init__(self) -> None:
        self._received: weakref.WeakKeyDictionary[Sequence, tuple[int, list[int]]] = (
            weakref.WeakKeyDictionary()
        )

    def receive(self, seq: Sequence, token_ids: list[int]) -> None:
        """A step brought these guesses of what follows the tokens that are known now."""
        self._received[seq] = seq.num_known_tokens, token_ids

    def propose(self, seq: Sequence) -> list[int]:
        """See Drafter. Guesses count for the tokens that they were made for."""
        num_known, token_ids = self._received.pop(seq, (0, []))
        return token_ids if num_known == seq.num_known_tokens else []
