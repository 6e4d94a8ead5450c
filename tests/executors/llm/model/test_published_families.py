"""Families by the config.json of a published model each: what its keys mean, and that none is left unused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from executors.contract import ConfigError
from executors.llm.model.config import DecoderConfig, parse_config
from executors.llm.model.decoder import Decoder

_LLLG = ["sliding_attention"] * 3 + ["full_attention"]
_MINISTRAL: dict[str, Any] = {
    "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
    "num_hidden_layers": 26, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn",
    },
    "sliding_window": None, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 131072,
}  # fmt: skip
_SSSSF = ["sliding_attention"] * 4 + ["full_attention"]
_SSSSSF = ["sliding_attention", *_SSSSF]
_GEMMA4: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02, "max_position_embeddings": 131072,
    "model_type": "gemma4_text", "num_experts": None, "num_global_key_value_heads": None, "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "tie_word_embeddings": True, "top_k_experts": None, "use_bidirectional_attention": None, "vocab_size": 262144,
}  # fmt: skip
_LINEAR = ["linear_attention"] * 3 + ["full_attention"]
_QWEN3_5: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "initializer_range": 0.02,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False, "rms_norm_eps": 1e-06, "use_cache": True, "vocab_size": 248320,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
        "rope_type": "default",
    },
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Ministral-3-3B-Instruct-2512": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10,
        "model_type": "mistral3", "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
        "quantization_config": {
            "activation_scheme": "static", "dequantize": False, "quant_method": "fp8", "weight_block_size": None,
            "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
        },
        "spatial_merge_size": 2, "text_config": _MINISTRAL, "vision_config": {"model_type": "pixtral"},
        "vision_feature_layer": -1,
    },
    "Devstral-2-123B-Instruct-2512": {
        **_MINISTRAL, "architectures": ["Ministral3ForCausalLM"], "hidden_size": 12288, "num_attention_heads": 96,
        "num_hidden_layers": 88, "intermediate_size": 28672, "tie_word_embeddings": False,
    },
    "Olmo-3-7B-Instruct": {
        "architectures": ["Olmo3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
        "layer_types": _LLLG * 8, "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn",
        },
        "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_cache": False, "vocab_size": 100278,
    },
    "GLM-4-9B-0414": {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
        "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 151552,
    },
    "Qwen3-VL-4B-Instruct": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16", "head_dim": 128,
            "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
            "intermediate_size": 9728, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936,
        },
        "tie_word_embeddings": True, "video_token_id": 151656, "vision_config": {"model_type": "qwen3_vl"},
        "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    },
    "Phi-4-mini-instruct": {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "embd_pdrop": 0.0,
        "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1,
        "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"}, "rope_theta": 10000.0,
        "sliding_window": 262144, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 200064,
    },
    "Qwen1.5-MoE-A2.7B": {
        "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "decoder_sparse_step": 1, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
        "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
        "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "EXAONE-4.0-32B": {
        "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "intermediate_size": 27392, "layer_types": _LLLG * 16, "max_position_embeddings": 131072,
        "model_type": "exaone4", "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "tie_word_embeddings": False,
        "vocab_size": 102400,
    },
    "Hunyuan-4B-Instruct": {
        "architectures": ["HunYuanDenseV1ForCausalLM"], "attention_bias": False, "attention_head_dim": 128, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 262144,
        "mlp_bias": False, "model_type": "hunyuan_v1_dense", "num_attention_heads": 32, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "type": "dynamic",
        },
        "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cache": True, "use_qk_norm": True, "vocab_size": 120818,
    },
    "Qwen3-Next-80B-A3B-Instruct": {
        "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "decoder_sparse_step": 1,
        "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
        "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
        "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": False, "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "Qwen3.5-4B": {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5",
        "text_config": {
            **_QWEN3_5, "hidden_size": 2560, "intermediate_size": 9216, "layer_types": _LINEAR * 8,
            "linear_num_value_heads": 32, "model_type": "qwen3_5_text", "num_attention_heads": 16, "num_hidden_layers": 32,
            "num_key_value_heads": 4, "tie_word_embeddings": True,
        },
        "tie_word_embeddings": True, "video_token_id": 248057, "vision_config": {"model_type": "qwen3_5"},
        "vision_end_token_id": 248054, "vision_start_token_id": 248053,
    },
    "Qwen3.5-35B-A3B": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5_moe",
        "text_config": {
            **_QWEN3_5, "hidden_size": 2048, "linear_num_value_heads": 32, "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
            "num_hidden_layers": 40, "num_key_value_heads": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": 512,
        },
        "tie_word_embeddings": False, "video_token_id": 248057, "vision_config": {"model_type": "qwen3_5_moe"},
        "vision_end_token_id": 248054, "vision_start_token_id": 248053,
    },
    "LFM2-1.2B": {
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048, "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05,
        "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True, "conv_L_cache": 3,
        "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True, "eos_token_id": 7,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
        "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05, "num_attention_heads": 32, "num_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta": 1000000.0, "torch_dtype": "bfloat16",
        "use_cache": True, "use_pos_enc": True, "vocab_size": 65536,
    },
    "LFM2-8B-A1B": {
        "architectures": ["Lfm2MoeForCausalLM"], "conv_L_cache": 3, "conv_bias": False, "dtype": "bfloat16", "eos_token_id": 7,
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7168,
        "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
        "max_position_embeddings": 128000, "model_type": "lfm2_moe", "moe_intermediate_size": 1792, "norm_eps": 1e-05,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "rope_theta": 1000000.0, "routed_scaling_factor": 1.0,
        "use_cache": True, "use_expert_bias": True, "vocab_size": 65536,
    },
    "gemma-4-E2B-it": {
        "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": {"model_type": "gemma4_audio"},
        "audio_token_id": 258881, "boa_token_id": 256000, "boi_token_id": 255999, "dtype": "bfloat16", "eoa_token_index": 258883,
        "eoi_token_id": 258882, "image_token_id": 258880, "model_type": "gemma4", "tie_word_embeddings": True,
        "text_config": {
            **_GEMMA4, "attention_k_eq_v": False, "enable_moe_block": False, "hidden_size": 1536,
            "hidden_size_per_layer_input": 256, "intermediate_size": 6144, "layer_types": _SSSSF * 7,
            "num_attention_heads": 8, "num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
            "sliding_window": 512, "use_double_wide_mlp": True, "vocab_size_per_layer_input": 262144,
        },
        "vision_config": {"model_type": "gemma4_vision"},
    },
    "gemma-4-26B-A4B-it": {
        "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None, "dtype": "bfloat16", "model_type": "gemma4",
        "tie_word_embeddings": True,
        "text_config": {
            **_GEMMA4, "attention_k_eq_v": True, "enable_moe_block": True, "hidden_size": 2816, "hidden_size_per_layer_input": 0,
            "intermediate_size": 2112, "layer_types": _SSSSSF * 5, "max_position_embeddings": 262144,
            "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2,
            "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0, "sliding_window": 1024,
            "top_k_experts": 8, "use_bidirectional_attention": "vision", "use_double_wide_mlp": False,
            "vocab_size_per_layer_input": 262144,
        },
    },
}  # fmt: skip
"""By the model's name, as its maker published it, without keys of other tasks."""


def config(name: str, **changes: Any) -> DecoderConfig:
    return parse_config({**PUBLISHED[name], **changes})


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_is_used(name: str) -> None:
    found = config(name)
    assert found.notes == ()
    context = {"Phi-4-mini-instruct": 4096}.get(name)
    inner = PUBLISHED[name].get("text_config", PUBLISHED[name])
    assert found.context_length == (context or inner["max_position_embeddings"])


def test_ministral_is_told_from_mistral_by_what_is_inside() -> None:
    found = config("Ministral-3-3B-Instruct-2512")
    assert found.family.name == "ministral3_text" and found.tied and found.fp8 is not None
    [rope] = found.ropes
    assert (rope.query_beta, rope.original_length, rope.mscale_all_dim) == (0.1, 16384, 1.0)
    assert {layer.window for layer in found.layers} == {None}
    small = {
        **_MINISTRAL,
        "model_type": "mistral",
        "rope_parameters": {"rope_theta": 1e9, "rope_type": "default"},
    }
    assert config("Ministral-3-3B-Instruct-2512", text_config=small).family.name == "mistral3_text"
    with pytest.raises(ConfigError, match="model_type 'mistral4' is not supported"):
        config("Ministral-3-3B-Instruct-2512", text_config={**_MINISTRAL, "model_type": "mistral4"})


def test_queries_of_ministral_need_a_beta() -> None:
    ropes = {
        key: value for key, value in _MINISTRAL["rope_parameters"].items() if key != "llama_4_scaling_beta"
    }
    with pytest.raises(ConfigError, match="llama_4_scaling_beta is missing"):
        config("Devstral-2-123B-Instruct-2512", rope_parameters=ropes)
    usual = config("Devstral-2-123B-Instruct-2512", rope_parameters=None)
    assert usual == config("Devstral-2-123B-Instruct-2512")


def test_windows_and_rotation() -> None:
    olmo = config("Olmo-3-7B-Instruct")
    assert [layer.window for layer in olmo.layers] == [4096, 4096, 4096, None] * 8
    assert [layer.rope for layer in olmo.layers] == [1, 1, 1, 0] * 8
    assert [rope.kind for rope in olmo.ropes] == ["yarn", "default"]
    exaone = config("EXAONE-4.0-32B")
    assert [layer.rope for layer in exaone.layers] == [0, 0, 0, None] * 16
    alone = config("EXAONE-4.0-32B", sliding_window=None, layer_types=["full_attention"] * 64)
    assert {(layer.window, layer.rope) for layer in alone.layers} == {(None, 0)}
    assert {layer.window for layer in config("Qwen1.5-MoE-A2.7B").layers} == {None}
    windows = [layer.window for layer in config("Qwen1.5-MoE-A2.7B", use_sliding_window=True).layers]
    assert windows == [32768, None] * 10 + [32768, None, None, None]


def test_one_theta_beside_the_object_is_that_of_layers_without_a_window() -> None:
    """transformers takes its default for the sliding ones."""
    full, local = config("Olmo-3-7B-Instruct", rope_theta=10_000.0).ropes
    assert (full.theta, local.theta) == (10_000.0, 500_000.0)


def test_alpha_stretches_theta() -> None:
    [rope] = config("Hunyuan-4B-Instruct").ropes
    assert rope.kind == "default" and math.isclose(rope.theta, 10_000.0 * 1000.0 ** (128 / 126))
    [rope] = config("Hunyuan-4B-Instruct", rope_scaling={"type": "dynamic", "factor": 2.0}).ropes
    assert (rope.kind, rope.theta) == ("dynamic", 10_000.0)
    with pytest.raises(ConfigError, match=r"rope_scaling: alpha is -1.0"):
        config("Hunyuan-4B-Instruct", rope_scaling={"type": "dynamic", "alpha": -1.0})


def test_glm_rotates_neighbours_in_half_of_a_head() -> None:
    [rope] = config("GLM-4-9B-0414").ropes
    assert rope.neighbours and rope.dim == 64
    assert config("GLM-4-9B-0414", partial_rotary_factor=None) == config("GLM-4-9B-0414")


def test_qwen_with_states_has_parameters_as_its_name_says() -> None:
    names = ("Qwen3-Next-80B-A3B-Instruct", "Qwen3.5-4B", "Qwen3.5-35B-A3B")
    found = [
        Decoder(config(name), torch.bfloat16, torch.device("meta")).num_parameters() / 1e9 for name in names
    ]
    assert found == [pytest.approx(79.7, abs=0.3), pytest.approx(4.2, abs=0.1), pytest.approx(34.7, abs=0.3)]


def test_the_layers_of_qwen_follow_the_interval_and_a_quarter_of_a_head_is_rotated() -> None:
    for name in ("Qwen3-Next-80B-A3B-Instruct", "Qwen3.5-4B", "Qwen3.5-35B-A3B"):
        found = config(name)
        assert {layer.mixer for layer in found.layers[3::4]} == {"gated_attention"}
        assert [layer.mixer for layer in found.layers[:3]] == ["gated_delta"] * 3
        assert [rope.dim for rope in found.ropes] == [64]
    for field, value in (("attn_output_gate", False), ("mamba_ssm_dtype", "bfloat16")):
        with pytest.raises(ConfigError, match=f"{field} .* is not supported"):
            config("Qwen3-Next-80B-A3B-Instruct", **{field: value})


def test_lfm2_has_parameters_as_its_name_says() -> None:
    counts = {}
    for name in ("LFM2-1.2B", "LFM2-8B-A1B"):
        counts[name] = Decoder(config(name), torch.bfloat16, torch.device("meta")).num_parameters() / 1e9
    assert counts == {
        "LFM2-1.2B": pytest.approx(1.17, abs=0.01),
        "LFM2-8B-A1B": pytest.approx(8.34, abs=0.05),
    }


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 8192), ({"block_ff_dim": None, "intermediate_size": 12288}, 8192), ({"block_ffn_dim_multiplier": 1.3}, 10752),
        ({"block_auto_adjust_ff_dim": False}, 12288), ({"block_ffn_dim_multiplier": None, "block_ff_dim": 100}, 66),
        ({"intermediate_size": 77}, 8192),
    ],
)  # fmt: skip
def test_the_mlp_of_lfm2_is_adjusted(changes: dict[str, Any], size: int) -> None:
    assert config("LFM2-1.2B", **changes).intermediate_size == size


def test_older_fields_of_lfm2_count_before_the_usual_ones() -> None:
    assert (
        config("LFM2-1.2B").tied
        and not config("LFM2-1.2B", tie_embedding=False, tie_word_embeddings=True).tied
    )
    assert [layer.mixer == "attention" for layer in config("LFM2-1.2B").layers] == [
        i in (2, 5, 8, 10, 12, 14) for i in range(16)
    ]
    for field in ("block_use_swiglu", "use_pos_enc"):
        with pytest.raises(ConfigError, match=f"{field} False is not supported"):
            config("LFM2-1.2B", **{field: False})
    with pytest.raises(ConfigError, match="layer_types is missing"):
        config("LFM2-8B-A1B", layer_types=None)


def test_gemma4_has_parameters_as_its_name_says() -> None:
    """Of E2B 5.1 billion numbers with the table of 2.3; of 26B-A4B 25."""
    counts = {}
    for name in ("gemma-4-E2B-it", "gemma-4-26B-A4B-it"):
        decoder = Decoder(config(name), torch.bfloat16, torch.device("meta"))
        counts[name] = decoder.num_parameters() / 1e9
    assert counts == {
        "gemma-4-E2B-it": pytest.approx(4.65, abs=0.1),
        "gemma-4-26B-A4B-it": pytest.approx(25.2, abs=0.5),
    }
