"""`PrefixHistory`: what the prefix cache has held, to say why a prompt was not found in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np

from engine.story import Lost, Missed, PrefixMatch
from executors.contract import Int32Array

MAX_ENTRIES = 16384
"""Blocks remembered: 4 MB with blocks of 16 tokens."""


class PrefixHistory:
    """For each prefix the tokens of the latest block that followed it, and the keys of blocks that are gone. Both are bounded:
    the oldest entries are forgotten first. Written by PrefixCache.

    Keys chain blocks from a root, as in `prefix_cache`: equal keys mean equal prefixes.
    """

    def __init__(self, most: int = MAX_ENTRIES) -> None:
        self._most = most
        # Ordered ones: a plain dict walks over the places of all that was taken out before it finds the oldest entry.
        self._next: OrderedDict[bytes, bytes] = OrderedDict()
        """Tokens of the block behind the prefix with this key, int32."""
        self._causes: OrderedDict[bytes, Lost] = OrderedDict()

    def add(self, before: bytes, key: bytes, tokens: Int32Array) -> None:
        """A block with these tokens was cached behind the prefix with key `before`."""
        self._next[before] = tokens.tobytes()
        self._next.move_to_end(before)
        if len(self._next) > self._most:
            self._next.popitem(last=False)
        self._causes.pop(key, None)

    def followed(self, before: bytes, tokens: Int32Array) -> bool:
        """Whether the latest block behind the prefix with key `before` had these tokens."""
        return self._next.get(before) == tokens.tobytes()

    def cause(self, key: bytes) -> Lost | None:
        """Why the block with this key is gone; None if it was not cached, or that is forgotten."""
        return self._causes.get(key)

    def lose(self, key: bytes, why: Lost) -> None:
        """A block is no longer cached."""
        self._causes[key] = why
        self._causes.move_to_end(key)
        if len(self._causes) > self._most:
            self._causes.popitem(last=False)

    def lose_all(self, keys: Iterable[bytes], why: Lost) -> None:
        """None of these is cached any longer."""
        for key in keys:
            self.lose(key, why)

    def explain(
        self, before: bytes, keys: SequenceOf[bytes], tokens: Int32Array, matched: int
    ) -> PrefixMatch:
        """Why a prompt was not found beyond its first `matched` tokens. `before`: key of the part that was found; `keys`: those
        of the full blocks behind it, at least one; `tokens`: of the first of these."""
        gone = 0
        for key in keys:
            if key not in self._causes:
                break
            gone += 1
        if gone:
            return PrefixMatch(matched, Missed.EVICTED, None, gone * len(tokens), self._causes[keys[0]])
        followed = self._next.get(before)
        if followed is not None:
            differ = np.flatnonzero(np.frombuffer(followed, np.int32) != tokens)
            if differ.size:
                return PrefixMatch(matched, Missed.DIFFERS, matched + int(differ[0]))
        return PrefixMatch(matched, Missed.NEW)
