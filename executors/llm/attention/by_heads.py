"""`AttentionByHeads`: the attention of a model whose layers have heads of different sizes, a backend for each size.

    geometries of the layers    4 heads of 256, 2 heads of 512     backends    cohort-cpu, torch

A group of KV blocks has layers with equal heads, and so one backend.
"""

from __future__ import annotations

from collections.abc import Mapping

from executors.llm.attention.backend import AttentionBackend
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.api import Attend
from executors.llm.model.caches import LayerHeads
from executors.llm.step_arrays import StepArrays


class AttentionByHeads:
    """An `AttentionBackend`. It is no `PackedAttention`: keys of each size are cut otherwise, and a packed step has the cuts of
    one size only. So steps are not captured."""

    def __init__(self, backends: Mapping[LayerHeads, AttentionBackend]) -> None:
        """`backends`: by the heads of the layers that each computes; two or more."""
        self._backends = dict(backends)
        self.name = ", ".join(dict.fromkeys(backend.name for backend in backends.values()))
        self.note = "; ".join(
            f"heads of {heads.head_dim}: {backend.note.removeprefix('attention: ')}"
            for heads, backend in backends.items()
        )
        self.note = f"attention: {self.note}"

    @property
    def parts(self) -> tuple[AttentionBackend, ...]:
        """The backend of each size."""
        return tuple(self._backends.values())

    def begin(self, step: StepArrays, cache: KvCache) -> Attend:
        """See `AttentionBackend`; `cache` of layers with equal heads."""
        [heads] = set(cache.spec.each_heads)
        return self._backends[heads].begin(step, cache)
