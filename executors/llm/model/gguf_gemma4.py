"""What metadata of GGUF files say of Gemma 4, beyond what one number for all layers can. No torch here.

    attention.key_length, rope.dimension_count            heads of the layers without a window
    attention.key_length_swa, rope.dimension_count_swa    heads of the layers with one
    attention.head_count_kv, feed_forward_length          a number, or one for each layer
    rope_freqs.weight                                     of layers without a window: 1 for frequencies that turn, else 1e30
    attention.shared_kv_layers                            the last layers, which have no keys and values of their own

A layer without `attn_v` has values that are its keys. Files made of a checkpoint that has tensors of keys for layers which read
those of others have them, too, and nothing reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from executors.contract.errors import ConfigError
from executors.llm.model.gguf_keys import GgufKeys, shown, small_floats

_KV_HEADS, _INNER = "attention.head_count_kv", "feed_forward_length"
_ROPE_FACTORS = "rope_freqs.weight"
_STILL = 1e20
"""Divisor of a frequency above which it turns nothing within any context."""


def complete_gemma4(keys: GgufKeys) -> None:
    """Replace numbers that differ between layers by those of the first layer with a window, which `gemma4` corrects."""
    count = keys.natural("block_count")
    sliding = _sliding(keys, count)
    first = sliding.index(True) if True in sliding else 0
    keys.replace(_KV_HEADS, _by_layer(keys, _KV_HEADS, count)[first])
    keys.replace(_INNER, _by_layer(keys, _INNER, count)[first])
    for name in ("attention.key_length", "attention.value_length"):
        keys.natural(name)
        keys.replace(name, keys.natural(f"{name}_swa"))


def gemma4(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Read the keys that only this architecture has. Raises ConfigError."""
    count = values["num_hidden_layers"]
    sliding = _sliding(keys, count)
    full = keys.written("attention.key_length")
    if keys.written("attention.value_length") != full:
        keys.refuse("attention.value_length", f"{keys.name('attention.key_length')}, which is {shown(full)}")
    if sliding[-1]:
        keys.refuse("attention.sliding_window_pattern", "false for the last layer")
    heads = _by_layer(keys, _KV_HEADS, count)
    values |= {
        "sliding_window": keys.natural("attention.sliding_window"),
        "layer_types": [f"{'sliding' if window else 'full'}_attention" for window in sliding],
        "global_head_dim": full,
        "per_layer_config": {
            str(i): {"head_dim": values["head_dim"] if window else full, "num_key_value_heads": heads[i]}
            for i, window in enumerate(sliding)
        },
        "final_logit_softcapping": keys.real("final_logit_softcapping", 0.0) or None,
        "enable_moe_block": bool(keys.get("expert_count", 0)),
    }
    shared = keys.count("attention.shared_kv_layers")
    if shared and (shared > count - 2 or sliding[count - shared - 2 : count - shared] != [True, False]):
        keys.refuse(
            "attention.shared_kv_layers", "a layer with a window and one without before the layers that share"
        )
    own = range(count - shared)
    values["num_kv_shared_layers"] = shared
    values["use_double_wide_mlp"] = _is_wide(keys, values["intermediate_size"], count, shared)
    tensors = keys.gguf.tensors
    lacking = {
        not any(f"blk.{i}.{stem}.weight" in tensors for stem in ("attn_v", "attn_qkv"))
        for i in own
        if not sliding[i]
    }
    if len(lacking) > 1:
        raise ConfigError(
            f"{keys.where}: some layers without a window have attn_v and some have not; supported: all or none"
        )
    values["attention_k_eq_v"] = lacking == {True}
    values["hidden_size_per_layer_input"] = size = keys.count("embedding_length_per_layer_input")
    table = tensors.get("per_layer_token_embd.weight")
    if size and table is not None:
        values["vocab_size_per_layer_input"] = table.shape[0]


def rotation_of_gemma4(keys: GgufKeys, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields on rotary embeddings. Raises ConfigError."""
    full, near = keys.written("attention.key_length"), values["head_dim"]
    for name, size in (("rope.dimension_count", full), ("rope.dimension_count_swa", near)):
        if keys.natural(name, size) != size:
            keys.refuse(name, f"{size}, all of a head")
    if keys.get("rope.scaling.type", "none") not in ("none", "default", ""):
        keys.refuse("rope.scaling.type", "none")
    for name in ("rope.scaling.factor", "rope.scale_linear", "rope.freq_scale", "rope.scaling.attn_factor"):
        if keys.real(name, 1.0) not in (0.0, 1.0):
            keys.refuse(name, "1")
    divisors = np.array(small_floats(keys, _ROPE_FACTORS, full // 2))
    turning = int((divisors == 1.0).sum())
    if not turning or not (divisors[:turning] == 1.0).all() or not (divisors[turning:] >= _STILL).all():
        raise ConfigError(
            f"{keys.where}: tensor {_ROPE_FACTORS} has other numbers than 1 for the first frequencies and 1e30 for the others"
        )
    theta = keys.real("rope.freq_base", 10_000.0)
    return {
        "rope_parameters": {
            # Half a pair more: the share is multiplied by the size again, and cut to an integer.
            "full_attention": {
                "rope_type": "proportional", "rope_theta": theta,
                "partial_rotary_factor": min(1.0, (2 * turning + 0.5) / full),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", 10_000.0)},
        }
    }  # fmt: skip


def _sliding(keys: GgufKeys, count: int) -> list[bool]:
    flags = keys.items("attention.sliding_window_pattern", bool, count)
    if flags is None:
        raise ConfigError(
            f"{keys.where}: {keys.name('attention.sliding_window_pattern')} is missing; a flag for each layer is needed"
        )
    return flags[:count]


def _by_layer(keys: GgufKeys, name: str, count: int) -> list[int]:
    """Return a positive integer for each layer, as the file has it."""
    value = keys.written(name)
    numbers = value if isinstance(value, list) else [value] * count
    if len(numbers) < count or any(type(one) is not int or one < 1 for one in numbers[:count]):
        raise ConfigError(f"{keys.where}: {keys.name(name)} is {shown(value)}; positive integers are needed")
    return numbers[:count]


def _is_wide(keys: GgufKeys, inner: int, count: int, shared: int) -> bool:
    """Return whether the MLPs of the last `shared` layers are twice as wide as the others."""
    widths = _by_layer(keys, _INNER, count)
    for factor in (1, 2):
        if widths == [inner] * (count - shared) + [factor * inner] * shared:
            return factor == 2
    keys.refuse(_INNER, f"{inner} in all layers, or {2 * inner} in those that read the KV of others")
    return False
