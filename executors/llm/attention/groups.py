"""Attention over the KV of several groups, each with blocks and block tables of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executors.llm.attention.backend import AttentionBackend
from executors.llm.attention.cpu_attention import CpuAttend
from executors.llm.attention.packed import PagedAttend, StoredKv
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.model.api import Attend
from executors.llm.step_arrays import StepArrays

Places = Sequence[tuple[int, int]]
"""(Group, index within the group) of each layer."""


def begin(backend: AttentionBackend, step: StepArrays, kv: PagedKv) -> Attend:
    """Prepare a step over all groups, see `AttentionBackend.begin`."""
    if len(kv.caches) == 1:
        return backend.begin(step, kv.of_group(0))
    parts = {
        group: backend.begin(step.of_group(group), cache)
        for group, cache in enumerate(kv.caches)
        if cache is not None
    }
    return joined(parts, kv.places)


def joined(parts: dict[int, Attend], places: Places) -> Attend:
    """Return the attention of all layers, given that of each group which has layers."""
    own = {number: part for number, part in parts.items() if isinstance(part, CpuAttend)}
    if len(own) == len(parts):
        return CpuAttend.joined(own, places)
    paged = {number: part for number, part in parts.items() if isinstance(part, PagedAttend)}
    if len(paged) == len(parts):
        return JoinedPagedAttend(paged, places)

    def attend(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        group, index = places[layer]
        return parts[group](index, q, k, v, sinks)

    return attend


class JoinedPagedAttend:
    """A `PagedAttend` of several groups."""

    def __init__(self, parts: dict[int, PagedAttend], places: Places) -> None:
        self.parts = parts
        self._places = places

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attend`."""
        group, index = self._places[layer]
        return self.parts[group](index, q, k, v, sinks)

    def stored(self, layer: int) -> StoredKv:
        """See `PagedAttend`."""
        group, index = self._places[layer]
        return self.parts[group].stored(index)

    def attend(self, layer: int, q: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """See `PagedAttend`."""
        group, index = self._places[layer]
        return self.parts[group].attend(index, q, sinks)
