"""Memory that layers need beside their weights: what one layer says, and the groups in which the executor allocates it.

    a layer's `memory()`      LayerKv: keys and values of every token      LayerState: one state of every sequence      None
    the model's `cache_specs` KvSpec: all layers of equal keys and values  StateSpec: all layers of equal states

All layers of attention have equal heads, and layers have at most one shape of state: `kv_group` and `state_group` say so. Layers
whose windows differ have blocks of their own, see `memory/kv_groups.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from executors.contract.errors import ConfigError

BLOCK_ALIGNMENT = 4096
"""Bytes: blocks of a CPU's KV begin at multiples of it."""


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

    @property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of keys and values in the cache."""
        return self.kv_dtype or self.dtype

    def scales(self, layer: int) -> tuple[float, float]:
        """Return the factors that the layer's stored keys and values are multiplied by."""
        return self.kv_scales[layer] if self.kv_scales else (1.0, 1.0)

    def bytes_per_cell(self) -> int:
        """Bytes of one token's key (or value) of one head. In int8: an even number of codes, and the scale."""
        if self.kv_dtype is torch.int8:
            return -(-self.head_dim // 2) * 2 + torch.float32.itemsize
        return self.head_dim * self.stored_dtype.itemsize

    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.bytes_per_cell()

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block of `block_size` tokens takes over all layers, see `block_bytes`."""
        return block_bytes(self.bytes_per_token(), block_size, self.device)


def block_bytes(bytes_per_token: int, block_size: int, device: torch.device) -> int:
    """Return the bytes that a block takes: on a CPU a multiple of BLOCK_ALIGNMENT, so that it can be given back alone."""
    num_bytes = bytes_per_token * block_size
    return -(-num_bytes // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT if device.type == "cpu" else num_bytes


@dataclass(frozen=True, slots=True)
class StateSpec:
    """States of a group of layers: `num_layers` x a float32 tensor of `shape` per sequence."""

    num_layers: int
    shape: tuple[int, ...]
    device: torch.device

    def bytes_per_slot(self) -> int:
        """Bytes of one sequence's states over all layers."""
        return self.num_layers * math.prod(self.shape) * torch.float32.itemsize


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
    """Group the memory of a model's layers: windows may differ within a group, everything else is equal. Groups are in the
    order of their first layers. `dtype`, `device`: the model's; `kv_dtype`, `kv_scales`: see `KvSpec`."""
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
        windows = tuple(one.window for one in members if isinstance(one, LayerKv))
        specs.append(
            KvSpec(
                len(members), first.num_heads, first.num_kv_heads, first.head_dim, dtype, device, first.scale, first.softcap,
                windows, kv_dtype, kv_scales, sinks=first.sinks,
            )
        )  # fmt: skip
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
    return one.num_heads, one.num_kv_heads, one.head_dim, one.scale, one.softcap, one.sinks


def kv_group(model: HasCaches) -> KvSpec:
    """Return the paged KV of all layers. Raises ConfigError if there is none, or layers have different heads."""
    groups = [one for one in model.cache_specs if isinstance(one, KvSpec)]
    if len(groups) != 1:
        why = "layers of attention with different heads" if groups else "no layer with attention"
        raise ConfigError(
            f"the model has {why}; models whose layers of attention have equal heads are supported"
        )
    return groups[0]


def state_group(model: HasCaches) -> StateSpec | None:
    """Return the model's only group of states, None if its layers have none. Raises ConfigError if it has several."""
    groups = [one for one in model.cache_specs if isinstance(one, StateSpec)]
    if len(groups) > 1:
        raise ConfigError("the model has layers with states of different shapes; one shape is supported")
    return groups[0] if groups else None
