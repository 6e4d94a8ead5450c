"""`BlockSeals`: checksums of full KV blocks and of snapshots of states, and which of an earlier life still have theirs.

The server keeps the checksums; nothing in the memory says that it is valid. A block that a step has filled is not written again
before the server drops its seal, so the end of the process cuts no block in half: the checksums are against writes of a process
that was about to crash. A draft model's KV is not sealed: `DraftCompanion` knows which of it was computed in this life, and
computes the rest when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import Int32Array
from executors.contract.seals import SealedBlocks, check_sealed
from executors.kernels.checksum import Uint64Array, checksums
from executors.kernels.cpu import CpuKernels
from executors.llm.memory.arena import KvArena
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.memory.state_cache import StateCache

Combine = Callable[[Uint64Array], Uint64Array]
"""Function that combines the checksums of all ranks by exclusive or; every rank calls it alike."""
_GROUP_SEED = 0x9E3779B97F4A7C15


class BlockSeals:
    """Seals of the blocks of `kv`, and of the slots of `states`, if there are any. All of them lie in `arena`.

    - `fingerprint`: what the blocks' contents depend on beside the tokens. `rank`: of this process.
    - `threads`: function that returns the number of threads to use.
    """

    def __init__(
        self, fingerprint: str, kv: PagedKv, arena: KvArena, kernels: CpuKernels | None,
        threads: Callable[[], int], combine: Combine, rank: int = 0, states: StateCache | None = None,
    ) -> None:  # fmt: skip
        self.fingerprint = fingerprint
        self._kv = kv
        self._arena = arena
        self._kernels = kernels
        self._threads = threads
        self._combine = combine
        self._rank = rank
        self._states = states
        self._is_used = arena.found_bytes > 0
        """Whether blocks may hold what no sequence of this epoch has written."""

    def checksums(self, seals: Int32Array) -> Uint64Array:
        """Compute uint64 [m], the checksums of blocks `seals` int32 [m, 2] of (group, block), over all ranks. The group behind
        the last one is that of slots of states."""
        sums = np.zeros(len(seals), np.uint64)  # of groups that have no layer on this rank
        for group, memory in enumerate(self._memories()):
            at = np.flatnonzero(seals[:, 0] == group)
            if len(at) and memory is not None:
                # Ranks have other seeds: equal blocks would cancel each other out.
                seed = (self._rank << 32 | group + 1) * _GROUP_SEED & (1 << 64) - 1
                sums[at] = checksums(self._kernels, memory, seals[at, 1], seed, self._threads())
        return self._combine(sums)

    def _memories(self) -> Iterator[NDArray[np.uint8] | None]:
        """The blocks of each group, None for one that has no layer here, and the slots of states, if there are any."""
        for cache in self._kv.caches:
            if cache is not None:
                assert cache.blocks is not None, "memory of an arena is placed by block"
            yield None if cache is None else cache.blocks
        if self._states is not None:
            assert self._states.slots is not None, "memory of an arena is placed by slot"
            yield self._states.slots

    def begin(self, sealed: SealedBlocks | None) -> Int32Array:
        """Begin an epoch: return int32 [k], rising, the indices of `sealed` whose blocks hold what was sealed. Memory of all
        other blocks is given back to the system. Raises InvalidInput for blocks that do not exist."""
        adopted = np.empty(0, np.int32) if sealed is None else self._verified(sealed)
        if self._states is not None:
            slots = adopted[:0] if sealed is None else sealed.blocks_of(len(self._kv.caches), adopted)
            self._states.begin(slots)
        if sealed is not None and len(adopted):
            for group, num_blocks in enumerate(self._kv.num_blocks):
                self._kv.give_back(group, _others(num_blocks, sealed.blocks_of(group, adopted)))
            if self._states is not None:
                self._states.give_back(_others(self._states.layout.num_slots, slots))
        elif self._is_used:
            self._arena.empty()
        self._is_used = True
        return adopted

    def adopt(self, sealed: SealedBlocks) -> Int32Array:
        """Adopt blocks that the server has written since the epoch began: return int32 [k], rising, the indices of `sealed` whose
        blocks hold what was sealed. Raises InvalidInput for blocks that do not exist."""
        adopted = self._verified(sealed)
        if self._states is not None:
            self._states.adopt(sealed.blocks_of(len(self._kv.caches), adopted))
        return adopted

    def _verified(self, sealed: SealedBlocks) -> Int32Array:
        if sealed.fingerprint != self.fingerprint or not len(sealed):
            return np.empty(0, np.int32)  # of another layout, perhaps, with blocks that do not exist here
        states = () if self._states is None else (self._states.layout.num_slots,)
        check_sealed(sealed, (*self._kv.num_blocks, *states))
        sums = self.checksums(np.stack((sealed.groups, sealed.blocks), 1))
        return np.flatnonzero(sums == sealed.checksums).astype(np.int32)


def _others(count: int, blocks: Int32Array) -> Int32Array:
    """All ids below `count` but these, ascending."""
    others = np.ones(count, np.bool_)
    others[blocks] = False
    return np.flatnonzero(others).astype(np.int32)
