"""The prefix cache: a map from prefixes to the blocks that hold their KV.

The key of a full block is a hash of everything its KV depends on: the key of the block before it and its own tokens, from a
root that stands for model, adapter, cache salt and, of a pair of texts, where the second one begins.

    root = H(model, adapter, salt, segment)     key 0 = H(root, t0 .. t15)     key 1 = H(key 0, t16 .. t31)

So equal keys mean equal prefixes, and looking up a prompt is one dictionary access per block. The hash is SHA-256: a client
that chooses its prompts must not be able to produce a collision and read the KV of another client's prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice

import numpy as np

from engine.kv.block_pool import SLICE
from engine.kv.prefix_history import PrefixHistory
from engine.story import Lost
from executors.contract import Int32Array


def root_key(model: str, adapter: str | None, salt: str | None, second_segment: int | None = None) -> bytes:
    """The key before a sequence's first block. Sequences with different roots never share a block."""
    # Each part says first whether it is there and how long it is: ("a", "bc") and ("ab", "c") are different roots.
    hashed = hashlib.sha256()
    for part in (model, adapter, salt):
        data = b"" if part is None else part.encode(errors="surrogatepass")
        hashed.update((-1 if part is None else len(data)).to_bytes(8, "little", signed=True) + data)
    if second_segment is not None:
        hashed.update(second_segment.to_bytes(8, "little", signed=True))
    return hashed.digest()


def own_root_key(seq_id: int) -> bytes:
    """The root of one call's sequences, from which no other sequence finds a block. `seq_id` is that of the first."""
    return hashlib.sha256(b"own" + seq_id.to_bytes(8, "little")).digest()


def block_key(before: bytes, tokens: Int32Array | SequenceOf[int]) -> bytes:
    """The key of the block with these token ids that follows the block with key `before`."""
    return hashlib.sha256(before + np.asarray(tokens, np.int32).tobytes()).digest()


class PrefixCache:
    """Keys of blocks whose KV is or will be written by the steps submitted so far. Owned by KvCacheManager.

    - `blocks`: {block: key}. A block has one key, a key one block: of two blocks with the same content the first counts.
    - `history`: what was cached before, for `KvCacheManager.explain`.
    - `fresh`: blocks whose KV is computed by the step being assembled. They must not be read in that step.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        self.fresh: set[int] = set()
        self._block_of: dict[bytes, int] = {}
        self.history = PrefixHistory()
        self.on_lost: Callable[[bytes], None] | None = None
        """Called for each key whose block is found no more, but by `clear`."""

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix of `keys`."""
        matches: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            matches.append(block)
        return matches

    def block_of(self, key: bytes) -> int | None:
        """The block with this key."""
        return self._block_of.get(key)

    def add(self, key: bytes, block: int) -> None:
        """Add a block that the step being assembled fills. Does nothing if another block has the key already."""
        if key not in self._block_of:
            self._block_of[key] = block
            self.blocks[block] = key
            self.fresh.add(block)

    def leave(self, block: int) -> None:
        """Remove the key of a block behind a window. The history need not know: there is no other reason for a block to be gone
        while those of full groups are there."""
        key = self.blocks.pop(block, None)
        if key is not None:
            del self._block_of[key]
            if self.on_lost is not None:
                self.on_lost(key)

    def keep(self, key: bytes, block: int) -> bool:
        """Add a block whose KV is computed. Returns False, and does nothing, if it has a key or another block has this one."""
        if key in self._block_of or block in self.blocks:
            return False
        self._block_of[key] = block
        self.blocks[block] = key
        return True

    def forget(self, blocks: Iterable[int], why: Lost = Lost.ROOM) -> None:
        """Remove the keys of these blocks, whose content will change."""
        for block in blocks:
            key = self.blocks.pop(block, None)
            if key is not None:
                del self._block_of[key]
                self.history.lose(key, why)
                if self.on_lost is not None:
                    self.on_lost(key)

    def withdraw(self, keys: Iterable[bytes]) -> list[int]:
        """Remove these keys, because the computation of their blocks failed; returns the blocks."""
        blocks = [self._block_of[key] for key in keys if key in self._block_of]
        self.forget(blocks, Lost.FAULT)
        return blocks

    def clear(self) -> None:
        """Remove all keys, after the executor's KV was emptied."""
        self.history.lose_all(self._block_of, Lost.RESTART)
        self.blocks.clear()
        self._block_of.clear()
        self.fresh.clear()

    def check_integrity(self) -> None:
        """Raises RuntimeError unless keys and blocks correspond one to one."""
        for _ in self.integrity():
            pass

    def integrity(self) -> Iterator[None]:
        """`check_integrity` a slice at a time: nothing may change before it is exhausted."""
        if len(self.blocks) != len(self._block_of):
            raise RuntimeError("keys and blocks of the prefix cache differ")
        entries = iter(self.blocks.items())
        while some := list(islice(entries, SLICE)):
            if any(self._block_of.get(key) != block for block, key in some):
                raise RuntimeError("keys and blocks of the prefix cache differ")
            yield
