"""`HeadSizes`: how many heads a layer's attention has, and of which size; and which layers read the keys and values of others.
No torch here.

In Gemma 4 the layers without a window have heads of their own sizes, and the last layers have no keys and values: each reads
those of the last layer before them that has, or has not, a window as it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.family import Family
from executors.llm.model.fields import Fields

_OVERRIDES = "per_layer_config"
_HEAD_DIM, _KV_HEADS = "head_dim", "num_key_value_heads"


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """`head_dim`: elements of a head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def q_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim


def layer_heads(
    fields: Fields, family: Family, sliding: list[bool], usual: HeadSizes
) -> list[HeadSizes | None]:
    """Return the sizes of each layer's heads, None for the `usual` ones; `sliding`: which layers have a window. Raises
    ConfigError.

    transformers 5.23 saves the sizes of single layers as `per_layer_config`, which replaces `global_head_dim` and
    `num_global_key_value_heads`.
    """
    if not family.attention.full_heads:
        return [None] * len(sliding)
    overrides = fields.get(_OVERRIDES)
    if overrides is not None:
        each = _overridden(fields, overrides, sliding, usual)
    else:
        full = replace(usual, head_dim=fields.natural("global_head_dim"))
        if fields.switch(family.attention.k_is_v) and fields.get("num_global_key_value_heads") is not None:
            full = replace(full, num_kv_heads=fields.natural("num_global_key_value_heads"))
        each = [usual if window else full for window in sliding]
    for one in each:
        if one.num_heads % one.num_kv_heads:
            raise ConfigError(
                f"{fields.where}: num_attention_heads {one.num_heads} is not a multiple of {one.num_kv_heads} key heads of some "
                "layers"
            )
        if one.head_dim % 2:
            raise ConfigError(
                f"{fields.where}: heads of {one.head_dim} in some layers; rotary embeddings need an even size"
            )
    for kind in (True, False):
        sizes = {one.head_dim for one, window in zip(each, sliding, strict=True) if window is kind}
        if len(sizes) > 1:
            raise ConfigError(
                f"{fields.where}: {_OVERRIDES} gives layers of one type heads of {', '.join(map(str, sorted(sizes)))}; one "
                "size for each type is supported"
            )
    return [None if one == usual else one for one in each]


def _overridden(fields: Fields, overrides: Any, sliding: list[bool], usual: HeadSizes) -> list[HeadSizes]:
    each = [usual] * len(sliding)
    if not isinstance(overrides, dict):
        raise ConfigError(f"{fields.where}: {_OVERRIDES} is {str(overrides)[:60]!r}; an object is needed")
    for key, values in overrides.items():
        where = f"{fields.where}: {_OVERRIDES}: {str(key)[:20]}"
        if not str(key).isdecimal() or int(key) >= len(sliding):
            raise ConfigError(f"{where} is not the number of a layer")
        unknown = sorted(set(values) - {_HEAD_DIM, _KV_HEADS}) if isinstance(values, dict) else ["no object"]
        if unknown:
            raise ConfigError(f"{where} has {str(unknown[0])[:40]}; supported: {_HEAD_DIM}, {_KV_HEADS}")
        own = Fields(where, values)
        each[int(key)] = replace(
            usual, head_dim=own.natural(_HEAD_DIM, usual.head_dim),
            num_kv_heads=own.natural(_KV_HEADS, usual.num_kv_heads),
        )  # fmt: skip
    return each


def sources_of_kv(fields: Fields, family: Family, sliding: list[bool]) -> list[int | None]:
    """Return the layer whose keys and values each layer reads, None for its own. Raises ConfigError."""
    name, count = family.attention.shared_kv, len(sliding)
    shared = fields.count(name) if name else 0
    first = count - shared
    if not shared:
        return [None] * count
    last = {window: i for i, window in enumerate(sliding[: max(0, first)])}
    lacking = [i for i in range(max(0, first), count) if sliding[i] not in last]
    if lacking:
        raise ConfigError(
            f"{fields.where}: {name} {shared} leaves layer {lacking[0]} without a layer of its type before it whose keys and "
            "values it can read"
        )
    return [None] * first + [last[window] for window in sliding[first:]]
