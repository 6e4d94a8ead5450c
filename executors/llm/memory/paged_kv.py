"""`PagedKv`: the KV of a model's layers, one `KvCache` for each group of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from executors.contract.batch import Int32Array
from executors.contract.errors import InvalidInput
from executors.contract.status import KvGroup
from executors.kernels.cpu import CpuKernels
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.kv_groups import group_specs, layer_places
from executors.llm.model.caches import KvSpec


class PagedKv:
    """See the module. `spec` of all layers; `caches` of the groups, None for one that has no layer here; `places` of the layers:
    (group, index in its cache)."""

    def __init__(
        self, spec: KvSpec, groups: Sequence[KvGroup], block_size: int,
        take: Callable[[int], NDArray[np.uint8] | None] | None = None,
    ) -> None:  # fmt: skip
        """`take`: function that gives so many bytes of memory for a cache on a CPU, see `KvArena.take`; None: memory of its
        own. Raises OutOfMemory."""
        self.spec = spec
        self.block_size = block_size
        self.places = layer_places(spec.windows, groups)
        self._groups = tuple(groups)
        self.caches = tuple(
            _cache(part, group.num_blocks, block_size, take) if part.num_layers else None
            for part, group in zip(group_specs(spec, groups), groups, strict=True)
        )

    @staticmethod
    def of(spec: KvSpec, num_blocks: int, block_size: int) -> PagedKv:
        """Return the KV of one group."""
        return PagedKv(spec, (KvGroup(num_blocks, 0),), block_size)

    def scratch(self, num_blocks: int) -> PagedKv:
        """Return other memory with the same groups and so many blocks of each."""
        return PagedKv(
            self.spec, [replace(one, num_blocks=num_blocks) for one in self._groups], self.block_size
        )

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Number of blocks of each group."""
        return tuple(group.num_blocks for group in self._groups)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Windows of the groups, see `KvGroup`."""
        return tuple(group.window for group in self._groups)

    @property
    def layers(self) -> list[torch.Tensor]:
        """Memory of each layer, see `KvCache`."""
        return [self.of_group(group).layers[index] for group, index in self.places]

    def of_group(self, group: int) -> KvCache:
        """Return the memory of a group that has layers here."""
        cache = self.caches[group]
        assert cache is not None
        return cache

    def copy_blocks(self, copies: Int32Array) -> None:
        """Copy whole blocks in every layer of their groups; `copies` int32 [m, 3] of (group, source, destination)."""
        if not len(copies):
            return
        for group, cache in self._present():
            cache.copy_blocks(copied_pairs(copies, group))

    def _present(self) -> Iterator[tuple[int, KvCache]]:
        return ((group, cache) for group, cache in enumerate(self.caches) if cache is not None)

    def give_back(self, group: int, blocks: Int32Array) -> None:
        """Return the memory of a group's blocks to the system, see `KvCache.give_back`. Raises InvalidInput."""
        if not 0 <= group < len(self.caches):
            raise InvalidInput(f"there is no group {group} of blocks, but {len(self.caches)}")
        if (cache := self.caches[group]) is not None:
            cache.give_back(blocks)

    def touch(
        self, kernels: CpuKernels, num_bytes: int, part: tuple[int, int], stop: Callable[[], bool]
    ) -> None:
        """Make about `num_bytes` of the first blocks resident, of each group its share. See `KvCache.touch`."""
        whole = max(1, self.num_bytes)
        for _, cache in self._present():
            cache.touch(kernels, num_bytes * cache.num_bytes // whole, part, stop)

    @property
    def by_block(self) -> bool:
        """Whether each block is one range of memory."""
        return all(cache.blocks is not None for _, cache in self._present())

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(cache.num_bytes for _, cache in self._present())


def _cache(
    spec: KvSpec, num_blocks: int, block_size: int, take: Callable[[int], NDArray[np.uint8] | None] | None
) -> KvCache:
    memory = None if take is None else take(num_blocks * spec.bytes_per_block(block_size))
    return KvCache(spec, num_blocks, block_size, memory)


def copied_pairs(copies: Int32Array, group: int) -> np.ndarray:
    """Return the copies within one group, int32 [m, 2] of (source, destination); `copies` int32 [m, 3]."""
    return copies[copies[:, 0] == group, 1:]
