"""Value heads of linear attention in adapters: their order in the adapter, and that in the model's files.

Value head v of key head k, of K key heads with n value heads each, is head k n + v in PEFT's adapters and in safetensors. In GGUF
files of some architectures, adapters included, it is head v K + k (`model/gguf_hybrids.py`). A model computes in the order of its
own file, so an adapter of the other order is brought into it: rows of B of what projects to value heads, columns of A of what
they are projected by.

Qwen3-Next has one projection, whose rows are q, k, v and z of each key head (`GatedDelta`), where its GGUF files have one of q, k
and v of all heads and one of z. An adapter of the one is divided into two that share A.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from executors.llm.model.config import DecoderConfig
from executors.llm.model.family import Family
from executors.lora import Module

Reorder = Callable[[Module], Module]


@dataclass(frozen=True, slots=True)
class _Heads:
    """`outer` groups of `inner` heads of `size` rows or columns, behind `before` others that stay."""

    outer: int
    inner: int
    size: int
    before: int = 0

    def swapped(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows with the heads in the other order: head j of group i becomes head i of group j."""
        heads = numbers[self.before :].reshape(self.outer, self.inner, self.size, -1)
        moved = heads.swapaxes(0, 1).reshape(-1, numbers.shape[1])
        return np.concatenate((numbers[: self.before], moved))


def value_heads(config: DecoderConfig, tiled: bool) -> Callable[[str], Reorder | None]:
    """Return a function from the usual name of a weight, without `.weight`, to what brings its module into the order of the
    model's files; None where it is in that order. `config`: of the whole model; `tiled`: whether the adapter's file has the order
    v K + k."""
    names, sizes = config.family.names, config.sizes
    if not names.delta_out or tiled == names.delta_tiled:
        return lambda name: None
    keys, heads = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    groups = (heads // keys, keys) if tiled else (keys, heads // keys)
    values = _Heads(*groups, sizes["linear_value_head_dim"])
    before = 2 * keys * sizes["linear_key_head_dim"]
    of_rows = (
        (names.delta_qkv, replace(values, before=before)),
        (names.delta_z, values),
        (names.delta_b, replace(values, size=1)),
        (names.delta_a, replace(values, size=1)),
    )
    reorders = [(_every_layer(name), _rows(heads)) for name, heads in of_rows if name]
    reorders.append((_every_layer(names.delta_out), _columns(values)))
    return lambda name: next((reorder for pattern, reorder in reorders if pattern.fullmatch(name)), None)


def apart(config: DecoderConfig, usual: Family, name: str, outputs: int) -> dict[str, np.ndarray] | None:
    """Return, by the usual names of q, k and v and of z, which rows of B they have of the module `name`, the usual name of a
    joint projection with `outputs` rows; None for another module, or where the model has the projection joint as well. `usual`:
    the family as checkpoints have it."""
    names, sizes = config.family.names, config.sizes
    if not usual.names.delta_qkvz or names.delta_qkvz:
        return None
    begin, end = usual.names.delta_qkvz.split("{i}")
    layer = name.removeprefix(begin).removesuffix(end)
    if usual.names.delta_qkvz.replace("{i}", layer) != name or not layer.isdecimal():
        return None
    keys, size = sizes["linear_num_key_heads"], sizes["linear_key_head_dim"]
    values = sizes["linear_num_value_heads"] // keys * sizes["linear_value_head_dim"]
    if outputs != keys * 2 * (size + values):
        return None
    rows = np.arange(outputs).reshape(keys, -1)
    q, k, v, z = (one.reshape(-1) for one in np.split(rows, (size, 2 * size, 2 * size + values), 1))
    parts = {names.delta_qkv: np.concatenate((q, k, v)), names.delta_z: z}
    return {part.replace("{i}", layer): numbers for part, numbers in parts.items()}


def _every_layer(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{i\}", r"\d+"))


def _rows(heads: _Heads) -> Reorder:
    return lambda module: replace(module, b=heads.swapped(module.b))


def _columns(heads: _Heads) -> Reorder:
    return lambda module: replace(module, a=np.ascontiguousarray(heads.swapped(module.a.T).T))
