"""`Router`: which replica a request goes to. Plain Python: it knows names, keys and counts.

    known prefix  ->  the replica that computed most of it, if that is at least half of the prompt
    else          ->  rendezvous hash of the prompt's first blocks, or of the adapter
    both          ->  passed over while the replica has more than its share (bounded load)

Rendezvous hashing: each replica gets a weight from a hash of its name and the key, and the heaviest comes first. A replica that
leaves moves only its own keys, one that comes takes only those for which it is the heaviest. Source: Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", 1998. Bounded load: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing
with bounded loads", 2018.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np

from engine.kv.prefix_cache import block_key, root_key
from executors.contract import Int32Array

LOAD_FACTOR = 1.25
"""A replica may have so many times the mean of unfinished sequences before requests pass it over. Lower values move more requests
away from their KV; at 1.25 the most loaded replica makes its streams at most a quarter slower than an even spread would."""
SLACK = 2
"""Sequences that a replica may have besides: where few run, a quarter of the mean is less than one, and one row more costs a step
little."""
FIRST_BLOCKS = 16
"""Blocks of a prompt that its rendezvous key covers. Turns of a conversation that is longer than that have one key, also at an
ingress that has not seen the conversation before."""
MOST_BLOCKS = 512
"""Blocks of a prompt that are looked up and remembered."""
MEMORY = 65536
"""Blocks that are remembered: 15 MB."""


def prefix_keys(
    tokens: Int32Array, block_size: int, model: str, adapter: str | None, salt: str | None
) -> list[bytes]:
    """Keys of the prompt's full blocks, at most MOST_BLOCKS, as the prefix cache makes them. `tokens` int32 [prompt length]."""
    count = min(len(tokens) // block_size, MOST_BLOCKS)
    before, keys = root_key(model, adapter, salt), []
    for number in range(count):
        before = block_key(before, tokens[number * block_size : (number + 1) * block_size])
        keys.append(before)
    return keys


def short_key(tokens: Int32Array, model: str, adapter: str | None, salt: str | None) -> bytes:
    """The key of a prompt that has no full block."""
    return block_key(root_key(model, adapter, salt), np.asarray(tokens, np.int32))


def rendezvous(key: bytes, names: Collection[str]) -> list[str]:
    """The names in the order that belongs to `key`."""
    return sorted(names, key=lambda name: (_weight(key, name), name), reverse=True)


def _weight(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=key[:64], digest_size=8).digest()


class Router:
    """The replicas of one ingress, their loads as that ingress sees them, and the prefixes that it sent them. One writer: the
    event loop."""

    def __init__(self, load_factor: float = LOAD_FACTOR, memory: int = MEMORY) -> None:
        """`memory`: number of blocks to remember."""
        self._load_factor = load_factor
        self._memory = memory
        self._loads: dict[str, int] = {}
        self._home: OrderedDict[bytes, str] = OrderedDict()
        """The replica that a block's prefix was last sent to, the least recently used first."""
        self.decisions = {"prefix": 0, "hash": 0, "adapter": 0, "load": 0}
        """How often a request went where it did for which reason; `load`: its first choice had more than its share."""

    @property
    def names(self) -> list[str]:
        """Replicas that may be chosen."""
        return sorted(self._loads)

    def join(self, name: str) -> None:
        """A replica may be chosen from now on."""
        self._loads.setdefault(name, 0)

    def leave(self, name: str) -> None:
        """A replica is gone, and its KV with it. Unknown names are harmless."""
        if self._loads.pop(name, None) is not None:
            for key in [key for key, home in self._home.items() if home == name]:
                del self._home[key]

    def load(self, name: str) -> int:
        """Unfinished sequences at a replica; 0 for unknown ones."""
        return self._loads.get(name, 0)

    def begin(self, name: str, count: int = 1) -> None:
        """Sequences were given to a replica."""
        if name in self._loads:
            self._loads[name] += count

    def end(self, name: str, count: int = 1) -> None:
        """Sequences of a replica have ended or moved on."""
        if name in self._loads:
            self._loads[name] = max(0, self._loads[name] - count)

    def choose(
        self,
        keys: Sequence[bytes],
        otherwise: bytes,
        adapter: str | None = None,
        count: int = 1,
        allowed: Collection[str] | None = None,
    ) -> str | None:
        """The replica for a request of `count` sequences, or None if there is none. `keys`: of the prompt's blocks; `otherwise`:
        the key of one without any; `adapter`: digest, so that one adapter is at few replicas; `allowed`: the only ones that
        may be chosen. The caller reports with `begin` and `remember` what it does."""
        names = self.names if allowed is None else [one for one in self.names if one in allowed]
        if not names:
            return None
        reason, order = self._order(keys, otherwise, adapter, names)
        limit = self._limit(names, count)
        fitting = next((name for name in order if self._loads[name] + count <= limit), None)
        if fitting is None:
            # A call of more sequences than a share: no replica has room for it, so it goes where there is most.
            fitting = min(order, key=lambda name: self._loads[name])
        self.decisions["load" if fitting != order[0] else reason] += 1
        return fitting

    def _order(
        self, keys: Sequence[bytes], otherwise: bytes, adapter: str | None, names: Collection[str]
    ) -> tuple[str, list[str]]:
        """Why which replica comes first, and all in their order."""
        key = keys[min(len(keys), FIRST_BLOCKS) - 1] if keys else otherwise
        order = rendezvous(key if adapter is None else hashlib.sha256(adapter.encode()).digest(), names)
        home, depth = self._known(keys, names)
        if home is not None and 2 * depth >= len(keys):
            order.remove(home)
            return "prefix", [home, *order]
        return ("hash" if adapter is None else "adapter"), order

    def _known(self, keys: Sequence[bytes], names: Collection[str]) -> tuple[str | None, int]:
        """The replica with the longest known prefix of `keys`, and that prefix' number of blocks."""
        for number in range(len(keys), 0, -1):
            home = self._home.get(keys[number - 1])
            if home is not None and home in names:
                return home, number
        return None, 0

    def _limit(self, names: Collection[str], count: int) -> int:
        """Sequences that a replica may have with the new ones."""
        total = sum(self._loads[name] for name in names) + count
        return math.ceil(self._load_factor * total / len(names)) + SLACK

    def remember(self, keys: Sequence[bytes], name: str) -> None:
        """A request with these keys was sent to a replica: the blocks will be in its prefix cache."""
        for key in keys:
            self._home[key] = name
            self._home.move_to_end(key)
        while len(self._home) > self._memory:
            self._home.popitem(last=False)
