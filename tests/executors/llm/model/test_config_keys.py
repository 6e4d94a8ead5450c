"""Every key of every family's configuration class in transformers either counts here or is known to change no answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from executors.contract import ConfigError
from executors.llm.model.config import DecoderConfig, parse_config
from executors.llm.model.config_keys import ELSEWHERE, read_keys
from executors.llm.model.families import FAMILIES
from executors.llm.model.family import Family

HARMLESS = {
    "special tokens, which the tokenizer's side reads": ("bos_token_id", "eos_token_id", "pad_token_id", "eod_token_id"),
    "training": (
        "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "initializer_range", "pretraining_tp",
        "router_aux_loss_coef", "router_jitter_noise",
    ),
    "what is returned beside the logits": (
        "output_router_logits", "output_hidden_states", "return_dict", "use_cache", "chunk_size_feed_forward",
    ),
    "heads of other tasks": (
        "id2label", "label2id", "problem_type", "summary_type", "summary_use_proj", "summary_activation",
        "summary_proj_to_labels", "summary_first_dropout",
    ),
    "the precision of scores in float16": ("reorder_and_upcast_attn",),
    "the encoder that these families have not": ("is_encoder_decoder",),
    "the file itself": ("transformers_version",),
    "images": (
        "vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index",
        "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id",
        "projector_hidden_act", "vision_feature_layer", "multimodal_projector_bias", "spatial_merge_size",
    ),
    "sound": ("audio_config", "boa_token_id", "eoa_token_index", "audio_token_id"),
}  # fmt: skip
"""Keys that change no answer to a text, by what they are about."""
CLASSES = {
    "llama": ("Llama",), "mistral": ("Mistral",), "mistral3_text": ("Mistral", "Mistral3"), "ministral3": ("Ministral3",),
    "ministral3_text": ("Ministral3", "Mistral3"), "mixtral": ("Mixtral",),
    "qwen2": ("Qwen2",), "qwen2_moe": ("Qwen2Moe",), "qwen3": ("Qwen3",), "qwen3_vl_text": ("Qwen3VLText", "Qwen3VL"),
    "qwen3_moe": ("Qwen3Moe",), "gpt_oss": ("GptOss",), "gemma": ("Gemma",), "gemma2": ("Gemma2",),
    "gemma4": ("Gemma4Text",), "gemma4_text": ("Gemma4Text", "Gemma4"), "gemma4_unified": ("Gemma4UnifiedText",),
    "gemma4_unified_text": ("Gemma4UnifiedText", "Gemma4Unified"), "gemma3": ("Gemma3Text",),
    "gemma3_text": ("Gemma3Text", "Gemma3"), "phi3": ("Phi3",), "glm4": ("Glm4",), "olmo2": ("Olmo2",),
    "olmo3": ("Olmo3",), "olmoe": ("Olmoe",), "exaone4": ("Exaone4",), "hunyuan_v1_dense": ("HunYuanDenseV1",),
    "smollm3": ("SmolLM3",), "granite": ("Granite",), "gpt2": ("GPT2",), "lfm2": ("Lfm2",), "lfm2_moe": ("Lfm2Moe",),
    "qwen3_next": ("Qwen3Next",), "qwen3_5": ("Qwen3_5Text",), "qwen3_5_text": ("Qwen3_5Text", "Qwen3_5"),
    "qwen3_5_moe": ("Qwen3_5MoeText",), "qwen3_5_moe_text": ("Qwen3_5MoeText", "Qwen3_5Moe"),
}  # fmt: skip
"""Of each family, the last one that of the whole file."""
_TYPES = ["sliding_attention", "full_attention"] * 4
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
BASE: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 56, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
_GEMMA4_UNIFIED = {**BASE, "layer_types": _TYPES, "num_kv_shared_layers": 1}
_GEMMA4 = {
    **_GEMMA4_UNIFIED, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 200, "enable_moe_block": True,
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8,
}  # fmt: skip
_LFM2 = {
    **BASE, "norm_eps": 1e-5, "block_multiple_of": 8, "layer_types": ["conv", "full_attention"] * 4, "conv_L_cache": 3,
    "block_ffn_dim_multiplier": 1.0,
}  # fmt: skip
_DELTA = {
    **BASE, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"] * 4,
}  # fmt: skip
_DELTA_MOE = {
    **_DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12,
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 100, "n_positions": 256, "n_embd": 48, "n_layer": 4, "n_head": 4},
    "qwen3_moe": {**BASE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "qwen2_moe": {
        **BASE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12,
    },
    "gemma4": _GEMMA4, "gemma4_text": _GEMMA4, "gemma4_unified": _GEMMA4_UNIFIED, "gemma4_unified_text": _GEMMA4_UNIFIED,
    "qwen3_next": {**_DELTA_MOE, "norm_topk_prob": False}, "qwen3_5": _DELTA, "qwen3_5_text": _DELTA,
    "qwen3_5_moe": _DELTA_MOE, "qwen3_5_moe_text": _DELTA_MOE,
    "lfm2": _LFM2,
    "lfm2_moe": {
        **_LFM2, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "routed_scaling_factor": 1.0, "norm_topk_prob": False,
    },
    "mixtral": {**BASE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        **BASE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64, "swiglu_alpha": 1.7, "swiglu_limit": 7.0,
        "rope_parameters": ROPE,
    },
    "olmoe": {**BASE, "num_experts": 4, "num_experts_per_tok": 2},
    "ministral3": {**BASE, "rope_parameters": {**ROPE, "llama_4_scaling_beta": 0.1}},
    "ministral3_text": {**BASE, "rope_parameters": {**ROPE, "llama_4_scaling_beta": 0.1}},
    "phi3": {**BASE, "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}},
}  # fmt: skip
OTHER: dict[str, Any] = {
    "architectures": ["Unknown"], "dtype": "float16", "tie_word_embeddings": None, "rope_parameters": {"rope_theta": 77.0},
    "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 2, "layer_types": ["full_attention"] * 4,
    "hidden_act": "tanh", "hidden_activation": "silu", "activation_function": "relu", "rms_norm_eps": 1e-3,
    "layer_norm_epsilon": 1e-3, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 5.0, "clip_qkv": 3.0,
    "query_pre_attn_scalar": 7, "no_rope_layers": [1, 0, 1, 1], "no_rope_layer_interval": 2, "mlp_only_layers": [1],
    "decoder_sparse_step": 2, "norm_topk_prob": True, "num_experts_per_tok": 1, "use_bidirectional_attention": True,
    "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True, "text_config": [],
    "original_max_position_embeddings": 64, "full_attn_idxs": [0],
}  # fmt: skip
"""Another value of a key; of sizes it is twice what they are, and switches are turned on."""
WITH: dict[str, dict[str, Any]] = {
    "full_attn_idxs": {"layer_types": None},
    "sliding_window": {"use_sliding_window": True, "max_window_layers": 1, "no_rope_layers": [1, 0, 1, 1]},
    "use_sliding_window": {"sliding_window": 32, "max_window_layers": 1, "no_rope_layers": [1, 0, 1, 1]},
    "intermediate_size": {"mlp_only_layers": [1]},
    "max_window_layers": {"sliding_window": 32, "use_sliding_window": True},
    "layer_types": {
        "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1, "no_rope_layers": [1, 0, 1, 1],
    },
}  # fmt: skip
"""What must be there for a key to count, in families that read it."""


def _fields(kind: str) -> set[str]:
    import transformers

    return {field.name for field in dataclasses.fields(getattr(transformers, f"{kind}Config"))}


def _of(family: Family, inner: dict[str, Any], outer: dict[str, Any] | None = None) -> dict[str, Any]:
    values = {"architectures": [family.architectures[0]]}
    if family.nested:  # of which some stand for several families
        inner = {"model_type": family.only["model_type"][0], **inner}
    return {**values, family.nested: inner, **(outer or {})} if family.nested else {**values, **inner}


def _other(family: Family, key: str, base: dict[str, Any]) -> Any:
    if key == "tie_word_embeddings":
        return not family.defaults.get(key, False)
    if key == "rope_parameters" and family.attention.local_theta:
        return {"full_attention": {"rope_theta": 77.0}}
    if key in OTHER:
        return OTHER[key]
    if isinstance(family.defaults.get(key), bool):
        return not family.defaults[key]
    if key in base:
        return base[key] * 2
    known = {"n_inner": 77, "original_max_position_embeddings": 64}
    return known.get(key, 0.5 if key.endswith(("multiplier", "scaling")) else True)


def _read(values: dict[str, Any]) -> DecoderConfig | str:
    try:
        return parse_config(values)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_every_key_of_the_class_counts_or_is_known_to_be_harmless(family: Family) -> None:
    """A key counts where another value makes another model, or a refusal that names it."""
    harmless = {key for keys in HARMLESS.values() for key in keys}
    base = BASES.get(family.name, BASE)
    inner_keys, outer_keys = _fields(CLASSES[family.name][0]), _fields(CLASSES[family.name][-1])
    unknown = (inner_keys | (outer_keys - {family.nested})) - harmless - read_keys(family)
    assert not unknown, "neither read nor known to be harmless"
    for key in sorted(inner_keys - harmless - {"architectures"}):
        known = {name: value for name, value in WITH.get(key, {}).items() if name in read_keys(family)}
        plain = _read(_of(family, {**base, **known}))
        changed = _read(_of(family, {**base, **known, key: _other(family, key, base)}))
        assert isinstance(plain, DecoderConfig), plain
        assert changed != plain, f"{key} is said to count and does not"
        if isinstance(changed, str):
            assert key in changed, changed
    assert isinstance(_read({**_of(family, base), "architectures": ["Unknown"]}), str)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_harmless_keys_change_nothing_and_are_not_mentioned(family: Family) -> None:
    base = BASES.get(family.name, BASE)
    values = {key: 1 for keys in HARMLESS.values() for key in keys if key != "is_encoder_decoder"}
    found = parse_config(_of(family, {**base, **values}, values))
    assert found == parse_config(_of(family, base)) and found.notes == ()


def _notes(name: str, **fields: Any) -> str:
    [family] = [one for one in FAMILIES if one.name == name]
    return " | ".join(parse_config(_of(family, {**BASES.get(name, BASE), **fields})).notes)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("mistral", {"attention_bias": True}),
        ("llama", {"qk_norm": True}),
        ("llama", {"sliding_window": 32}),
        ("llama", {"layer_types": ["sliding_attention"] * 4}),
        ("llama", {"logits_scaling": 8.0}),
        ("llama", {"embedding_multiplier": 12}),
        ("llama", {"final_logit_softcapping": 30.0}),
        ("qwen2", {"no_rope_layers": [1, 0, 1, 1]}),
        ("llama", {"num_experts": 8}),
        ("mixtral", {"norm_topk_prob": False}),
        ("mixtral", {"mlp_only_layers": [0]}),
        ("llama", {"alibi": True}),
        ("gemma2", {"hidden_act": "silu"}),
        ("gpt2", {"use_parallel_residual": True}),
        ("olmo2", {"clip_qkv": 8.0}),
        ("llama", {"use_bidirectional_attention": True}),
        ("llama", {"pruned_heads": {"0": [1]}}),
        ("mistral3_text", {"attention_bias": True}),
    ],
)
def test_a_key_of_other_families_is_named(family: str, fields: dict[str, Any]) -> None:
    [key] = fields
    notes = _notes(family, **fields)
    assert notes.startswith("not used, as in transformers: ") and key in notes and family in notes
    assert _notes(family, **{key: None}) == ""


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"sliding_window": 4096, "logits_scaling": 1.0, "clip_qkv": None, "num_experts": 0, "qk_norm": False}),
        ("qwen2", {"attention_bias": True, "sliding_window": 32, "use_sliding_window": False}),
        ("qwen3", {"qk_norm": True, "max_window_layers": 28}),
        ("gemma2", {"hidden_act": "gelu"}),
        ("gemma3", {"hidden_act": "gelu_pytorch_tanh", "_sliding_window_pattern": 6, "rope_scaling": None}),
        ("mixtral", {"norm_topk_prob": True}),
        ("mistral", {"layer_types": ["sliding_attention"] * 4}),
        ("llama", {"auto_map": {}, "_name_or_path": "x", "some_new_key": 3, "num_nextn_predict_layers": 1, "n_ctx": 5}),
    ],
)  # fmt: skip
def test_what_means_nothing_is_not_mentioned(family: str, fields: dict[str, Any]) -> None:
    assert _notes(family, **fields) == ""


def test_many_keys_make_one_note() -> None:
    notes = _notes("llama", **dict.fromkeys(("alibi", "use_alibi", "qk_norm", "clip_qkv", "parallel_attn", "use_bias"), 3),
                   attn_logit_softcapping=2.0)  # fmt: skip
    assert notes.count("not used") == 1 and notes.endswith(", ... (the llama family has no such key)")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_attention_that_looks_ahead_is_refused(family: Family) -> None:
    """transformers obeys the key whatever the class."""
    base = BASES.get(family.name, BASE)
    for value, shown in ((False, "false"), (0, "0"), (None, "null")):
        with pytest.raises(ConfigError, match=f"is_causal {shown} is not supported"):
            parse_config(_of(family, {**base, "is_causal": value}))
    assert parse_config(_of(family, {**base, "is_causal": True})).notes == ()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_values_of_single_layers_are_read_or_refused(family: Family) -> None:
    """transformers applies them to whatever its class reads, and drops those that repeat the model's."""
    base = BASES.get(family.name, BASE)
    width = base.get("hidden_size", base.get("n_embd"))
    other = {"per_layer_config": {"0": {"intermediate_size": 2 * width}}}
    with pytest.raises(ConfigError, match="per_layer_config"):
        parse_config(_of(family, {**base, **other}))
    plain = parse_config(_of(family, base))
    for overrides in (None, {}, {"0": {}}):
        assert parse_config(_of(family, {**base, "per_layer_config": overrides})).notes == plain.notes
    if not family.attention.full_heads:
        same = {"1": {"vocab_size": base["vocab_size"]}}
        assert parse_config(_of(family, {**base, "per_layer_config": same})) == plain


def test_sliding_layers_without_a_window_are_named() -> None:
    fields = {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": False, "sliding_window": 32}
    assert "layer_types names sliding layers, but there is no window" in _notes("qwen3", **fields)
    assert _notes("qwen3", **{**fields, "use_sliding_window": True}) == ""


def test_two_numbers_of_experts_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_experts is 4 and num_local_experts 8"):
        _notes("qwen3_moe", num_local_experts=8)


def test_no_key_is_both_read_by_all_and_elsewhere() -> None:
    everywhere = frozenset.intersection(*(read_keys(family) for family in FAMILIES))
    assert not everywhere & set(ELSEWHERE)


def test_keys_beside_the_object_they_belong_into_are_named() -> None:
    [family] = [one for one in FAMILIES if one.name == "gemma3_text"]
    scaling = {"rope_type": "linear", "factor": 8.0}
    outer = {
        "rope_scaling": scaling,
        "hidden_size": BASE["hidden_size"],
        "initializer_range": 0.5,
        "sliding_window": None,
    }
    found = parse_config(_of(family, BASE, outer))
    assert found == parse_config(_of(family, BASE))
    [note] = found.notes
    assert note.startswith("not used, as in transformers: rope_scaling {") and note.endswith(
        "beside text_config, inside which it would have an effect"
    )
