"""Keys of `config.json` that change the output: which of them a family reads, and notes on the others. No torch here.

transformers stores keys that a model's class does not know and ignores them, and so does this package. If such a key changes
the output of another family, the checkpoint's author may have intended an effect: the log and the executor's notes name the
key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from executors.contract.errors import ConfigError
from executors.llm.model.family import Family

CAUSAL: Final = "is_causal"
_ALL: Final = (
    "architectures", "model_type", "dtype", "torch_dtype", "quantization_config", "tie_word_embeddings", "vocab_size",
    CAUSAL,
)  # fmt: skip
_SIZES: Final = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
_ROPE: Final = (
    "rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor",
)  # fmt: skip
_GLOBAL_HEADS: Final = ("global_head_dim", "num_global_key_value_heads")
_OVERRIDES: Final = "per_layer_config"
_EXPERTS: Final = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")

Neutral = Callable[[Any], bool]
"""Returns whether a value leaves the output unchanged."""


def _one_of(*values: object) -> Neutral:
    return lambda value: any(value is one or (value == one and type(value) is type(one)) for one in values)


def _never(value: Any) -> bool:
    return False


def _all_are(neutral: object) -> Neutral:
    return lambda value: isinstance(value, list) and all(one == neutral for one in value)


_OFF: Final = _one_of(False, 0)
_NONE: Final = _one_of(0, 0.0, False)
_UNIT: Final = _one_of(1, 1.0)
ELSEWHERE: Final[Mapping[str, Neutral]] = {
    # biases and norms
    **dict.fromkeys(("attention_bias", "qkv_bias", "use_qkv_bias", "mlp_bias", "use_bias"), _OFF),
    **dict.fromkeys(("qk_norm", "use_qk_norm", "qk_layernorm"), _OFF),
    "hidden_act": _never,
    # numbers that scale or bound
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"), _UNIT),
    **dict.fromkeys(("scale_emb", "lm_head_multiplier", "routed_scaling_factor", "rope_ratio", "rotary_pct"), _UNIT),
    **dict.fromkeys(("attention_multiplier", "query_pre_attn_scalar", "scale_depth", "rotary_dim"), _never),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "clip_qkv"), _NONE),
    # positions
    **dict.fromkeys(("alibi", "use_alibi", "use_dynamic_ntk", "use_logn_attn", "rope_interleaved", "rope_interleave"), _OFF),
    "no_rope_layers": _all_are(1),
    "no_rope_layer_interval": _OFF,
    "rope_local_base_freq": _never,
    # what a token sees
    "layer_types": _all_are("full_attention"),
    "sliding_window": _never,
    "attention_chunk_size": _NONE,
    **dict.fromkeys(("use_bidirectional_attention", "bidirectional", "attn_temperature_tuning"), _OFF),
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "parallel_attn", "use_parallel_residual"), _OFF),
    "pruned_heads": lambda value: not value,
    # heads, keys and values, and inputs of single layers
    **dict.fromkeys((*_GLOBAL_HEADS, "num_kv_shared_layers", "hidden_size_per_layer_input"), _NONE),
    **dict.fromkeys(("attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block"), _OFF),
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), _one_of(0, 1)),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"), _NONE),
    "first_k_dense_replace": _NONE,
    "mlp_only_layers": lambda value: not value,
    "decoder_sparse_step": _UNIT,
    "norm_topk_prob": _never,
    # weights in another form
    "compression_config": _never,
}  # fmt: skip
"""Keys that change the output of some family, with a test for values that do not. Null never does."""


def read_keys(family: Family) -> frozenset[str]:
    """Return the keys that this family reads in `config.json`, or in the nested object that holds the family's keys."""
    usual = [*_SIZES, *(_EXPERTS if family.feed_forward.experts else ())]
    keys = {
        *_ALL,
        family.stream.norm_eps,
        family.feed_forward.activation,
        *family.only,
        *family.sizes,
        *family.switches,
        *family.older.values(),
        *(family.fields.get(one, one) for one in usual),
    }
    if family.feed_forward.experts:
        keys |= {"num_experts", "num_local_experts"}
    if not family.names.positions:
        keys |= {*_ROPE}
    switches = (
        family.attention.qkv_bias,
        family.attention.o_bias,
        family.feed_forward.mlp_bias,
        family.feed_forward.normalized if family.feed_forward.experts else False,
        family.feed_forward.shared,
    )
    keys |= {one for one in (*switches, family.attention.window_switch) if isinstance(one, str)}
    if family.mixers:
        keys |= {"layer_types"}
    if family.mixer_rule is not None:
        keys |= {family.mixer_rule.indices, family.mixer_rule.interval}
    if family.feed_forward.adjusted:
        keys |= {"block_ffn_dim_multiplier", "block_multiple_of"}
    if family.attention.window:
        keys |= {"sliding_window"} | ({"layer_types"} if family.attention.window != "all" else set())
    if family.attention.window in ("head", "tail"):
        keys |= {"max_window_layers"}
    if family.attention.window == "pattern" and isinstance(family.attention.pattern, str):
        keys |= {family.attention.pattern}
    if family.attention.rotated:
        keys |= {family.attention.rotated, "no_rope_layer_interval"}
    if family.feed_forward.sparse_layers:
        keys |= {"mlp_only_layers", "decoder_sparse_step"}
    attention, stream = family.attention, family.stream
    keys |= {
        stream.embed_multiplier, stream.residual_multiplier, attention.score_multiplier, stream.logits_divisor,
        attention.query_scale, attention.attn_softcap, stream.final_softcap,
    }  # fmt: skip
    keys |= {attention.shared_kv, stream.layer_inputs, stream.layer_vocab}
    feed_forward = family.feed_forward
    more = (
        attention.k_is_v, feed_forward.experts_switch, feed_forward.wide_where_shared, feed_forward.choice_bias,
        feed_forward.routed_scale, feed_forward.dense_layers, feed_forward.adjusted,
    )  # fmt: skip
    keys |= {one for one in more if isinstance(one, str)}
    if attention.full_heads:
        keys |= {*_GLOBAL_HEADS, _OVERRIDES}
    if isinstance(attention.local_theta, str):
        keys |= {attention.local_theta}
    if family.feed_forward.computed == "clamped_swiglu":
        keys |= {"swiglu_alpha", "swiglu_limit"}
    return frozenset(keys - {""})


def unread_notes(values: Mapping[str, Any], family: Family, where: str) -> list[str]:
    """Return a sentence that names the keys which change the output of other families and are not used here; [] if there are
    none.

    Raises ConfigError for a key that transformers applies to every family and that is not supported.
    """
    if not values.get(CAUSAL, True):
        value = "null" if values[CAUSAL] is None else _short(values[CAUSAL])
        raise ConfigError(f"{where}: {CAUSAL} {value} is not supported: attention is causal here")
    read = read_keys(family)
    if _OVERRIDES not in read and not _repeats(values.get(_OVERRIDES), values):
        raise ConfigError(
            f"{where}: {_OVERRIDES} {_short(values[_OVERRIDES])} is not supported for {family.name}: its layers are alike here"
        )
    unread = [
        name
        for name, neutral in ELSEWHERE.items()
        if name not in read and values.get(name) is not None and not neutral(values[name])
    ]
    names = sorted(name for name in unread if not _as_the_family_is(name, values, family))
    if not names:
        return []
    listing = ", ".join(f"{name} {_short(values[name])}" for name in names[:6]) + (
        ", ..." if names[6:] else ""
    )
    return [f"not used, as in transformers: {listing} (the {family.name} family has no such key)"]


def misplaced_notes(outer: Mapping[str, Any], inner: Mapping[str, Any], family: Family) -> list[str]:
    """Return a sentence that names keys which stand beside the nested object and would have an effect inside it."""
    places = {*_ALL, family.nested}
    names = sorted(
        name
        for name in read_keys(family) - places
        if outer.get(name) is not None and outer[name] != inner.get(name)
    )
    if not names:
        return []
    listing = ", ".join(f"{name} {_short(outer[name])}" for name in names[:6])
    return [
        f"not used, as in transformers: {listing} beside {family.nested}, inside which it would have an effect"
    ]


def _as_the_family_is(name: str, values: Mapping[str, Any], family: Family) -> bool:
    """Return whether the key only repeats what always holds for the family."""
    value = values[name]
    if name in ("attention_bias", "qkv_bias", "use_qkv_bias"):
        return family.attention.qkv_bias is True
    if name in ("qk_norm", "use_qk_norm", "qk_layernorm"):
        return family.attention.qk_norm != ""
    if name == "hidden_act":  # "gelu" is what old checkpoints of these families call its tanh form
        return value in (
            "gelu",
            values.get(family.feed_forward.activation) or family.feed_forward.activations[0],
        )
    if name == "norm_topk_prob":
        return value is family.feed_forward.normalized if family.feed_forward.experts else True
    if name == "sliding_window":
        longest = values.get("max_position_embeddings")
        wide = isinstance(value, int) and isinstance(longest, int) and value >= longest
        return wide or values.get("use_sliding_window") is False
    if name == "layer_types":
        return family.attention.window == "all" and _all_are("sliding_attention")(value)
    return False


def _repeats(overrides: Any, values: Mapping[str, Any]) -> bool:
    """Return whether values of single layers only repeat those of the model, as transformers drops them."""
    if not overrides:
        return True
    layers = list(overrides.values()) if isinstance(overrides, Mapping) else [None]
    return all(
        isinstance(layer, Mapping)
        and all(name in values and values[name] == one for name, one in layer.items())
        for layer in layers
    )


def _short(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
