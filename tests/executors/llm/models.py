"""Small random checkpoints of odd shapes, written by transformers, and its logits for comparison."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

QWEN3: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 20, "intermediate_size": 72, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": 130, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 56, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE,
}  # fmt: skip
_BASE: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
GEMMA: dict[str, Any] = {**_BASE, "head_dim": 20, "tie_word_embeddings": True, "pad_token_id": 0}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
MOE: dict[str, Any] = {
    **_BASE, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {**_BASE, "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 2}
# As published, but for sizes: windows and YaRN's bounds are reached, and both limits of the activation.
GPT_OSS: dict[str, Any] = {
    **_BASE, "num_hidden_layers": 4, "head_dim": 20, "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 3,
    "sliding_window": 17, "swiglu_limit": 1.5, "pad_token_id": None,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1500.0, "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
        "beta_slow": 1.0, "truncate": False,
    },
}  # fmt: skip
OLMOE: dict[str, Any] = {
    **_BASE,
    "intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "pad_token_id": 0,
}
# Layers with a window have heads of 16, the others of 24. llama.cpp takes it that of the layers before those that share KV the
# last has no window and the one before it has.
GEMMA4: dict[str, Any] = {
    **_BASE, "num_hidden_layers": 8, "head_dim": 16, "global_head_dim": 24, "tie_word_embeddings": True, "pad_token_id": 0,
    "sliding_window": 19, "hidden_size_per_layer_input": 0,
    "layer_types": [f"{'full' if i in (2, 5, 7) else 'sliding'}_attention" for i in range(8)],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip
GEMMA4_SHARED: dict[str, Any] = {
    **GEMMA4, "num_kv_shared_layers": 5, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 131, "final_logit_softcapping": 5.0,
}  # fmt: skip
GEMMA4_EQUAL: dict[str, Any] = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
GRANITE: dict[str, Any] = {
    **_BASE, "embedding_multiplier": 12.0, "attention_multiplier": 0.11, "residual_multiplier": 0.22, "logits_scaling": 7.0,
    "pad_token_id": 0,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
PHI3: dict[str, Any] = {**_BASE, "pad_token_id": 0}
# As published, but for sizes: two value heads read a key head, keys and values differ in size, a fourth of a head is rotated.
QWEN3_NEXT: dict[str, Any] = {
    **_BASE, "num_hidden_layers": 4, "head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 12, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
QWEN3_NEXT_MOE: dict[str, Any] = {
    **QWEN3_NEXT, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28,
}  # fmt: skip
_MROPE = {**QWEN3_NEXT["rope_parameters"], "mrope_section": [1, 1, 1], "mrope_interleaved": True}
_QWEN_VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 48, "num_position_embeddings": 16,
}  # fmt: skip
# Published ones have attention in 6 of 16 layers (of the 1.2B) at uneven distances.
LFM2: dict[str, Any] = {
    **_BASE, "num_hidden_layers": 5, "num_attention_heads": 6, "intermediate_size": 84, "block_multiple_of": 8,
    "tie_word_embeddings": True, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
}  # fmt: skip
GPT2: dict[str, Any] = {"vocab_size": 131, "n_positions": 256, "n_embd": 48, "n_layer": 3, "n_head": 3}
# Factors as long as half of what is rotated: 12 elements a head, 8 with a partial factor of 0.7.
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1000.0, "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.7, 2.0], "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}  # fmt: skip
# As published, but for lengths: queries grow from 32 tokens on.
MINISTRAL_ROPE = {
    "type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
    "max_position_embeddings": 256, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}  # fmt: skip

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-tied-gqa": ("Qwen3", QWEN3),
    "qwen3-untied-one-kv-head": ("Qwen3", {**QWEN3, "num_key_value_heads": 1, "tie_word_embeddings": False}),
    "qwen3-window-on-last-layers": (
        "Qwen3", {**QWEN3, "use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1},
    ),
    "llama-biases-llama3-rope": ("Llama", LLAMA),
    "llama-tied-no-gqa-linear-rope": (
        "Llama",
        {
            **LLAMA, "num_key_value_heads": 5, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
            "head_dim": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        },
    ),
    "llama-dynamic-rope": (
        "Llama",
        {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama-yarn": (
        "Llama",
        {
            **LLAMA, "head_dim": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral-window": ("Mistral", {**_BASE, "head_dim": 10, "sliding_window": 17}),
    "mistral-no-window-one-kv-head": ("Mistral", {**_BASE, "num_key_value_heads": 1, "sliding_window": None}),
    "qwen2-biases": ("Qwen2", _BASE),
    "qwen2-window-on-last-layers-yarn": (
        "Qwen2",
        {
            **_BASE, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "norm_topk_prob": True}),
    "qwen3-moe-some-dense-layers": (
        "Qwen3Moe", {**MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen2-moe-shared-expert": ("Qwen2Moe", {**MOE, "shared_expert_intermediate_size": 28}),
    "qwen2-moe-windows-some-dense-layers": (
        "Qwen2Moe",
        {
            **MOE, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3],
            "shared_expert_intermediate_size": 33,
            "use_sliding_window": True, "sliding_window": 13, "max_window_layers": 4, "norm_topk_prob": True, "qkv_bias": False,
        },
    ),
    "mixtral": ("Mixtral", {**MIXTRAL, "sliding_window": None}),
    "mixtral-window-one-kv-head": ("Mixtral", {**MIXTRAL, "num_key_value_heads": 1, "head_dim": 10, "sliding_window": 13}),
    "olmoe": ("Olmoe", {**OLMOE, "norm_topk_prob": False}),
    "olmoe-normalized-no-gqa": ("Olmoe", {**OLMOE, "norm_topk_prob": True, "num_key_value_heads": 4}),
    "gpt-oss-sinks-windows": ("GptOss", GPT_OSS),
    "gpt-oss-one-kv-head-no-biases-of-attention": (
        "GptOss",
        {
            **GPT_OSS, "num_key_value_heads": 1, "attention_bias": False, "num_experts_per_tok": 1, "swiglu_alpha": 2.5,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "gemma-one-kv-head": ("Gemma", {**GEMMA, "num_key_value_heads": 1}),
    "gemma2-caps-alternating-windows": (
        "Gemma2",
        {
            **GEMMA, "sliding_window": 23, "query_pre_attn_scalar": 37, "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma2-no-caps-untied": (
        "Gemma2",
        {
            **GEMMA, "tie_word_embeddings": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "query_pre_attn_scalar": 20, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 5,
        },
    ),
    "gemma3-two-ropes": (
        "Gemma3Text",
        {
            **GEMMA, "num_hidden_layers": 7, "sliding_window": 19, "query_pre_attn_scalar": 24,
            "rope_parameters": GEMMA3_ROPES,
        },
    ),
    "gemma3-beside-images": (
        "Gemma3",
        {
            "text_config": {
                **GEMMA, "num_hidden_layers": 7, "sliding_window": 19, "query_pre_attn_scalar": 24, "eos_token_id": None,
                "rope_parameters": GEMMA3_ROPES,
            },
            "vision_config": VISION, "mm_tokens_per_image": 4,
        },
    ),
    "gemma4-inputs-of-layers-and-shared-kv": ("Gemma4", {**GEMMA4_SHARED}),
    "gemma4-keys-that-are-values": ("Gemma4", GEMMA4_EQUAL),
    "gemma4-experts-beside-mlp": (
        "Gemma4",
        {**GEMMA4_EQUAL, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 20},
    ),
    "gemma4-beside-images": (
        "Gemma4Whole",
        {
            "text_config": {**GEMMA4_SHARED, "eos_token_id": None, "bos_token_id": None},
            "vision_config": {**VISION, "num_key_value_heads": 2, "head_dim": 8},
            "audio_config": {
                "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 16,
            },
        },
    ),
    "gemma4-unified": ("Gemma4Unified", {**GEMMA4_EQUAL, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "gemma4-unified-beside-images": (
        "Gemma4UnifiedWhole",
        {
            "text_config": {**GEMMA4_EQUAL, "eos_token_id": None, "bos_token_id": None},
            "vision_config": {"mm_embed_dim": 48, "mm_posemb_size": 16, "output_proj_dims": 48, "patch_size": 2},
            "audio_config": None,
        },
    ),
    "mistral-beside-images": (
        "Mistral3",
        {
            "text_config": {**_BASE, "model_type": "mistral", "head_dim": 10, "sliding_window": None, "eos_token_id": None},
            "vision_config": {**VISION, "model_type": "pixtral", "head_dim": 8}, "tie_word_embeddings": False,
        },
    ),
    "qwen3-beside-images": (
        "Qwen3VL",
        {
            "text_config": {
                **QWEN3, "rope_parameters": {
                    "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 3, 3], "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 48,
                "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
            },
            "tie_word_embeddings": True,
        },
    ),
    "ministral3-growing-queries": ("Ministral3", {**_BASE, "head_dim": 12, "rope_parameters": MINISTRAL_ROPE}),
    "ministral3-beside-images": (
        "Mistral3",
        {
            "text_config": {
                **_BASE, "model_type": "ministral3", "head_dim": 12, "rope_parameters": MINISTRAL_ROPE, "eos_token_id": None,
            },
            "vision_config": {**VISION, "model_type": "pixtral", "head_dim": 8}, "tie_word_embeddings": False,
        },
    ),
    "phi3-window": ("Phi3", {**PHI3, "sliding_window": 33}),
    "phi3-longrope": ("Phi3", {**PHI3, "rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    "phi3-partial-rotary": (
        "Phi3",
        {**PHI3, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.7}},
    ),
    "phi4-mini-tied-longrope-of-a-part": (
        "Phi3",
        {
            **PHI3, "hidden_size": 64, "tie_word_embeddings": True, "sliding_window": 255, "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.75, "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.75},
        },
    ),
    "glm4-neighbours-of-half-a-head": ("Glm4", {**_BASE, "head_dim": 20, "pad_token_id": 0}),
    "glm4-yarn-no-biases-tied": (
        "Glm4",
        {
            **_BASE, "head_dim": 16, "pad_token_id": 0, "attention_bias": False, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    "olmo2": ("Olmo2", {**_BASE, "pad_token_id": 0}),
    "olmo2-no-gqa": ("Olmo2", {**_BASE, "num_key_value_heads": 4, "pad_token_id": 0}),
    "olmo3-windows-yarn": (
        "Olmo3",
        {
            **_BASE, "num_hidden_layers": 5, "sliding_window": 19, "pad_token_id": 0,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            },
        },
    ),
    "exaone4-windows-rotated-alone": ("Exaone4", {**_BASE, "num_hidden_layers": 5, "head_dim": 20, "sliding_window": 19}),
    "exaone4-no-window-llama3-rope": (
        "Exaone4",
        {
            **_BASE, "sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "hunyuan-norms-last-alpha": (
        "HunYuanDenseV1",
        {
            **_BASE, "head_dim": 20, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 1000.0, "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1,
                "mscale": 1.0, "mscale_all_dim": 1.0,
            },
        },
    ),
    "hunyuan-biases-one-kv-head": (
        "HunYuanDenseV1", {**_BASE, "head_dim": 12, "num_key_value_heads": 1, "attention_bias": True},
    ),
    "smollm3-some-layers-without-rope": (
        "SmolLM3", {**_BASE, "num_hidden_layers": 5, "no_rope_layer_interval": 2, "tie_word_embeddings": True, "pad_token_id": 0},
    ),
    "granite": ("Granite", GRANITE),
    "granite-tied-biases": (
        "Granite",
        {**GRANITE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "residual_multiplier": 1.0},
    ),
    "lfm2-short-convolutions": ("Lfm2", LFM2),
    "lfm2-biases-kernel-of-5-untied": (
        "Lfm2",
        {
            **LFM2, "conv_L_cache": 5, "conv_bias": True, "tie_word_embeddings": False, "block_ffn_dim_multiplier": 1.3,
            "layer_types": None, "full_attn_idxs": [0, 3],
        },
    ),
    "lfm2-moe-sigmoid-router": (
        "Lfm2Moe",
        {
            **LFM2, "num_dense_layers": 2, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
            "routed_scaling_factor": 1.5,
        },
    ),
    "lfm2-moe-no-bias-of-choice": (
        "Lfm2Moe",
        {
            **LFM2, "num_dense_layers": 0, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
            "use_expert_bias": False, "norm_topk_prob": False, "tie_word_embeddings": False,
        },
    ),
    "qwen3-next": ("Qwen3Next", QWEN3_NEXT_MOE),
    "qwen3-next-some-dense-layers-biases-one-kv-head": (
        "Qwen3Next",
        {
            **QWEN3_NEXT_MOE, "layer_types": None, "mlp_only_layers": [1], "num_key_value_heads": 1, "attention_bias": True,
            "norm_topk_prob": False, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 3, "tie_word_embeddings": True,
        },
    ),
    "qwen3.5": ("Qwen3_5Text", {**QWEN3_NEXT, "rope_parameters": _MROPE, "linear_num_value_heads": 6}),
    "qwen3.5-beside-images": (
        "Qwen3_5",
        {
            "text_config": {**QWEN3_NEXT, "layer_types": None, "rope_parameters": _MROPE, "tie_word_embeddings": True},
            "vision_config": _QWEN_VISION, "tie_word_embeddings": True,
        },
    ),
    "qwen3.5-wide": (
        "Qwen3_5Text",
        {
            **QWEN3_NEXT, "hidden_size": 64, "intermediate_size": 64, "rope_parameters": _MROPE, "head_dim": 16,
            "linear_num_value_heads": 4,
        },
    ),
    "qwen3.5-attention-alone": (
        "Qwen3_5Text", {**QWEN3_NEXT, "rope_parameters": _MROPE, "layer_types": ["full_attention"] * 4},
    ),
    "qwen3.5-moe": ("Qwen3_5MoeText", {**QWEN3_NEXT_MOE, "rope_parameters": _MROPE}),
    "qwen3.5-moe-beside-images": (
        "Qwen3_5Moe",
        {
            "text_config": {**QWEN3_NEXT_MOE, "rope_parameters": _MROPE},
            "vision_config": _QWEN_VISION, "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("GPT2", GPT2),
    "gpt2-untied-n-inner": ("GPT2", {**GPT2, "n_inner": 77, "tie_word_embeddings": False, "activation_function": "relu"}),
}  # fmt: skip
MODEL_CLASSES = {
    "GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM", "Gemma3": "Gemma3ForConditionalGeneration",
    "Gemma4Whole": "Gemma4ForConditionalGeneration", "Gemma4UnifiedWhole": "Gemma4UnifiedForConditionalGeneration",
    "Mistral3": "Mistral3ForConditionalGeneration", "Qwen3VL": "Qwen3VLForConditionalGeneration",
    "Qwen3_5Text": "Qwen3_5ForCausalLM", "Qwen3_5": "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeText": "Qwen3_5MoeForCausalLM", "Qwen3_5Moe": "Qwen3_5MoeForConditionalGeneration",
}  # fmt: skip
"""Where the class is not called <kind>ForCausalLM."""
CONFIG_CLASSES = {
    "Gemma4": "Gemma4TextConfig", "Gemma4Whole": "Gemma4Config", "Gemma4Unified": "Gemma4UnifiedTextConfig",
    "Gemma4UnifiedWhole": "Gemma4UnifiedConfig",
}  # fmt: skip
"""Where the class is not called <kind>Config."""


@dataclass(frozen=True)
class Reference:
    """A checkpoint on disk and the model that wrote it."""

    path: Path
    model: Any

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config().vocab_size

    def logits(self, ids: list[int] | np.ndarray) -> np.ndarray:
        """float32 [len(ids), V]."""
        with torch.no_grad():
            return self.model(torch.tensor([list(ids)])).logits[0].float().numpy()

    def greedy(self, ids: list[int], n: int) -> list[int]:
        """n tokens after `ids`, each the most likely one."""
        out = self.model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
            max_new_tokens=n, min_new_tokens=n, pad_token_id=0,
        )  # fmt: skip
        return out[0, len(ids) :].tolist()


def decays(count: int) -> torch.Tensor:
    """`A_log` of heads with half-lives from 1 to 10,000 tokens where a + dt_bias is 0: those that random weights have forget all
    within a few tokens, which hides a state that is wrong."""
    half_lives = 10.0 ** torch.linspace(0.0, 4.0, count)
    return -half_lives.log()


def build(name: str, directory: Path, **save: Any) -> Reference:
    """Write the checkpoint of a shape in SHAPES."""
    kind, fields = SHAPES[name]
    return write(kind, fields, directory, len(name), **save)


def write(kind: str, fields: dict[str, Any], directory: Path, seed: int, **save: Any) -> Reference:
    """Write a checkpoint of transformers' `kind`; weights are large enough for peaked, position-dependent logits."""
    import transformers

    # Copies: transformers writes into the objects that it is given, which shapes share.
    config = getattr(transformers, CONFIG_CLASSES.get(kind, f"{kind}Config"))(
        **copy.deepcopy(fields), bos_token_id=None, eos_token_id=None
    )
    torch.manual_seed(seed)
    # The plain form: fused ones leave out the bound of scores.
    config._attn_implementation = "eager"
    plus_one = (kind.startswith("Gemma") and not kind.startswith("Gemma4")) or kind.startswith(
        ("Qwen3Next", "Qwen3_5")
    )
    model = getattr(transformers, MODEL_CLASSES.get(kind, f"{kind}ForCausalLM"))(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                fan_in = (
                    parameter.shape[0] if kind == "GPT2" and ".c_" in parameter_name else parameter.shape[-1]
                )
                # Scaled embeddings are large already; with larger ones the layers would not matter.
                scale = fan_in**-0.5 if kind.startswith("Gemma") and "embed" in parameter_name else 1.0
                parameter.normal_(0.0, 1.2 * scale / fan_in**0.5)
            elif parameter_name.endswith("A_log"):
                parameter.copy_(decays(len(parameter)))
            elif parameter_name.endswith("dt_bias"):
                parameter.zero_()
            elif parameter_name.endswith("linear_attn.norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif parameter_name.endswith("sinks"):
                parameter.normal_(1.0, 1.0)
            else:
                parameter.uniform_(-0.5, 0.5) if plus_one else parameter.uniform_(0.5, 1.5)
                if kind.startswith("Gemma4") and parameter_name.endswith(("q_norm.weight", "k_norm.weight")):
                    parameter *= 0.5  # scores have no other factor
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
            elif buffer_name.endswith("expert_bias"):
                buffer.normal_(0.0, 0.3)
    if fields.get("tie_word_embeddings", True):
        model.tie_weights()
    model.save_pretrained(directory, **save)
    return Reference(directory, model)
