"""Memory that layers need beside their weights: what one layer says, and the groups in which the executor allocates it.

    a layer's `memory()`      LayerKv: keys and values of every token      LayerState: one state of every sequence      None
    the model's `cache_specs` KvSpec: all layers of equal keys and values  StateSpec: all layers of equal states

Layers of attention may have heads of different sizes, and windows that differ; each of these has blocks of its own, see
`memory/kv_groups.py`. Layers have at most one shape of state: `state_group` says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from executors.contract.errors import ConfigError

BLOCK_ALIGNMENT = 4096
"""Bytes: blocks of a CPU's KV begin at multiples of it."""


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """Heads of a layer, and the factor of its scores."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Keys and values of [num_kv_heads, head_dim] for each token. `scale`, `softcap`, `window`, `sinks`: see `KvSpec`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: bool = False

    @property
    def heads(self) -> LayerHeads:
        """Heads and scale."""
        return LayerHeads(self.num_heads, self.num_kv_heads, self.head_dim, self.scale)


@dataclass(frozen=True, slots=True)
class LayerState:
    """A float32 tensor of `shape` for each sequence. A sequence begins with zeros."""

    shape: tuple[int, ...]


LayerMemory = LayerKv | LayerState


@dataclass(frozen=True, slots=True)
class KvSpec:
    """Paged KV of a group of layers: `num_layers` x keys and values of [num_kv_heads, head_dim] per token.

    `scale` multiplies the scores, `softcap` c makes them c * tanh(score / c). `windows` has one entry per layer: how many
    tokens a token sees, itself included; None for all before it.

    `kv_dtype`: the dtype that keys and values are stored in, if it is not `dtype`: float8_e4m3fn, or int8 with a float32
    scale for each key and each value of a head. `kv_scales`, of e4m3: one pair per layer, the factors of stored keys and
    values; () means 1.

    `heads`: those of each layer, where they differ: the fields are those of the first layer then, and attention and memory
    take the parts of `memory/kv_groups.py`, of which each has equal heads. () means that all layers have those of the fields.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    softcap: float | None
    windows: tuple[int | None, ...]
    kv_dtype: torch.dtype | None = None
    kv_scales: tuple[tuple[float, float], ...] = ()
    model_windows: tuple[int | None, ...] = ()
    """`windows` of the whole model, if these are the layers of one stage of it; () means `windows`."""
    sinks: bool = False
    """Whether the softmax of each head has one more logit, without a value, see `Attend`. A backend that cannot add them is not
    chosen."""
    heads: tuple[LayerHeads, ...] = ()

    @property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of keys and values in the cache."""
        return self.kv_dtype or self.dtype

    def scales(self, layer: int) -> tuple[float, float]:
        """Return the factors that the layer's stored keys and values are multiplied by."""
        return self.kv_scales[layer] if self.kv_scales else (1.0, 1.0)

    @property
    def each_heads(self) -> tuple[LayerHeads, ...]:
        """Heads of each layer."""
        same = LayerHeads(self.num_heads, self.num_kv_heads, self.head_dim, self.scale)
        return self.heads or (same,) * self.num_layers

    def with_heads(self, heads: Sequence[LayerHeads]) -> KvSpec:
        """Return the spec for layers with these heads, one each; with none it stays as it is."""
        if not heads:
            return self
        first, alike = heads[0], len(set(heads)) == 1
        return replace(
            self, num_heads=first.num_heads, num_kv_heads=first.num_kv_heads, head_dim=first.head_dim, scale=first.scale,
            heads=() if alike else tuple(heads),
        )  # fmt: skip

    def bytes_per_cell(self, head_dim: int | None = None) -> int:
        """Bytes of one token's key (or value) of one head, by default of those of the fields. In int8: an even number of
        codes, and the scale."""
        head_dim = head_dim or self.head_dim
        if self.kv_dtype is torch.int8:
            return -(-head_dim // 2) * 2 + torch.float32.itemsize
        return head_dim * self.stored_dtype.itemsize

    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * sum(one.num_kv_heads * self.bytes_per_cell(one.head_dim) for one in self.each_heads)

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block of `block_size` tokens takes over all layers, see `block_bytes`."""
        return block_bytes(self.bytes_per_token(), block_size, self.device)


def block_bytes(bytes_per_token: int, block_size: int, device: torch.device) -> int:
    """Return the bytes that a block takes: on a CPU a multiple of BLOCK_ALIGNMENT, so that it can be given back alone."""
    return _aligned(bytes_per_token * block_size, device)


def _aligned(num_bytes: int, device: torch.device) -> int:
    return -(-num_bytes // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT if device.type == "cpu" else num_bytes


@dataclass(frozen=True, slots=True)
class StateSpec:
    """States of a group of layers: `num_layers` x a float32 tensor of `shape` per sequence."""

    num_layers: int
    shape: tuple[int, ...]
    device: torch.device

    def bytes_per_slot(self) -> int:
        """Bytes that one sequence's states take over all layers: on a CPU a multiple of BLOCK_ALIGNMENT, as of a block."""
        return _aligned(self.num_layers * math.prod(self.shape) * torch.float32.itemsize, self.device)


CacheSpec = KvSpec | StateSpec


class HasCaches(Protocol):
    """A model, as far as its memory is concerned."""

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """The groups of memory that the model's layers need."""


def cache_specs(
    layers: Sequence[LayerMemory | None], dtype: torch.dtype, device: torch.device, kv_dtype: torch.dtype | None = None,
    kv_scales: tuple[tuple[float, float], ...] = (),
) -> tuple[CacheSpec, ...]:  # fmt: skip
    """Group the memory of a model's layers: all keys and values with equal bounds of scores, and equal states. Groups are in
    the order of their first layers. `dtype`, `device`: the model's; `kv_dtype`, `kv_scales`: see `KvSpec`."""
    groups: dict[object, list[LayerMemory]] = {}
    for one in layers:
        if one is not None:
            groups.setdefault(_group(one), []).append(one)
    specs: list[CacheSpec] = []
    for members in groups.values():
        first = members[0]
        if isinstance(first, LayerState):
            specs.append(StateSpec(len(members), first.shape, device))
            continue
        of_kv = [one for one in members if isinstance(one, LayerKv)]
        spec = KvSpec(
            len(members), first.num_heads, first.num_kv_heads, first.head_dim, dtype, device, first.scale, first.softcap,
            tuple(one.window for one in of_kv), kv_dtype, kv_scales, sinks=first.sinks,
        )  # fmt: skip
        specs.append(spec.with_heads([one.heads for one in of_kv]))
    return tuple(specs)


def indices_in_groups(layers: Sequence[LayerMemory | None]) -> list[int]:
    """Return each layer's index within its group; -1 for a layer without memory."""
    counts: Counter[object] = Counter()
    indices = []
    for one in layers:
        if one is None:
            indices.append(-1)
            continue
        indices.append(counts[_group(one)])
        counts[_group(one)] += 1
    return indices


def _group(one: LayerMemory) -> object:
    if isinstance(one, LayerState):
        return one
    return "keys and values", one.softcap, one.sinks


def kv_group(model: HasCaches) -> KvSpec:
    """Return the paged KV of all layers. Raises ConfigError if there is none, or scores have different bounds."""
    groups = [one for one in model.cache_specs if isinstance(one, KvSpec)]
    if len(groups) != 1:
        why = "layers of attention with different bounds of scores" if groups else "no layer with attention"
        raise ConfigError(f"the model has {why}; models with layers of attention of one bound are supported")
    return groups[0]


def state_group(model: HasCaches) -> StateSpec | None:
    """Return the model's only group of states, None if its layers have none. Raises ConfigError if it has several."""
    groups = [one for one in model.cache_specs if isinstance(one, StateSpec)]
    if len(groups) > 1:
        raise ConfigError("the model has layers with states of different shapes; one shape is supported")
    return groups[0] if groups else None
