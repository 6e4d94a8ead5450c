"""`BlockSeals`: checksums of full KV blocks, and which blocks of an earlier life still have theirs.

The server keeps the checksums; nothing in the memory says that it is valid. A block that a step has filled is not written again
before the server drops its seal, so the end of the process cuts no block in half: the checksums are against writes of a process
that was about to crash. A draft model's KV is not sealed: `DraftCompanion` knows which of it was computed in this life, and
computes the rest when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import Int32Array
from executors.contract.seals import SealedBlocks, check_sealed
from executors.kernels.checksum import Uint64Array, checksums
from executors.kernels.cpu import CpuKernels
from executors.llm.memory.arena import KvArena
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.paged_kv import PagedKv

Combine = Callable[[Uint64Array], Uint64Array]
"""Function that combines the checksums of all ranks by exclusive or; every rank calls it alike."""
_GROUP_SEED = 0x9E3779B97F4A7C15


class BlockSeals:
    """Seals of the blocks of `kv`, which lie in `arena`.

    - `fingerprint`: what the blocks' contents depend on beside the tokens. `rank`: of this process.
    - `threads`: function that returns the number of threads to use.
    """

    def __init__(
        self, fingerprint: str, kv: PagedKv, arena: KvArena, kernels: CpuKernels | None,
        threads: Callable[[], int], combine: Combine, rank: int = 0,
    ) -> None:  # fmt: skip
        self.fingerprint = fingerprint
        self._kv = kv
        self._arena = arena
        self._kernels = kernels
        self._threads = threads
        self._combine = combine
        self._rank = rank
        self._is_used = arena.found_bytes > 0
        """Whether blocks may hold what no sequence of this epoch has written."""

    def checksums(self, seals: Int32Array) -> Uint64Array:
        """Compute uint64 [m], the checksums of blocks `seals` int32 [m, 2] of (group, block), over all ranks."""
        sums = np.zeros(len(seals), np.uint64)  # of groups that have no layer on this rank
        for group, cache in enumerate(self._kv.caches):
            at = np.flatnonzero(seals[:, 0] == group)
            if len(at) and cache is not None:
                # Ranks have other seeds: equal blocks would cancel each other out.
                seed = (self._rank << 32 | group + 1) * _GROUP_SEED & (1 << 64) - 1
                sums[at] = checksums(self._kernels, _blocks(cache), seals[at, 1], seed, self._threads())
        return self._combine(sums)

    def begin(self, sealed: SealedBlocks | None) -> Int32Array:
        """Begin an epoch: return int32 [k], rising, the indices of `sealed` whose blocks hold what was sealed. Memory of all
        other blocks is given back to the system. Raises InvalidInput for blocks that do not exist."""
        adopted = np.empty(0, np.int32) if sealed is None else self._verified(sealed)
        if sealed is not None and len(adopted):
            for group, num_blocks in enumerate(self._kv.num_blocks):
                others = np.ones(num_blocks, np.bool_)
                others[sealed.blocks[adopted[sealed.groups[adopted] == group]]] = False
                self._kv.give_back(group, np.flatnonzero(others).astype(np.int32))
        elif self._is_used:
            self._arena.empty()
        self._is_used = True
        return adopted

    def _verified(self, sealed: SealedBlocks) -> Int32Array:
        if sealed.fingerprint != self.fingerprint or not len(sealed):
            return np.empty(0, np.int32)  # of another layout, perhaps, with blocks that do not exist here
        check_sealed(sealed, self._kv.num_blocks)
        sums = self.checksums(np.stack((sealed.groups, sealed.blocks), 1))
        return np.flatnonzero(sums == sealed.checksums).astype(np.int32)


def _blocks(cache: KvCache) -> NDArray[np.uint8]:
    assert cache.blocks is not None, "memory of an arena is placed by block"
    return cache.blocks
