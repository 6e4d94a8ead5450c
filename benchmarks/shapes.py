"""Model shapes that workloads name: a config.json and random weights made in place, nothing downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": 151645,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "qwen3.5-0.8b": {
        **_QWEN3,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    },
    "lfm2-350m": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": 65536,
        "hidden_size": 1024,
        "intermediate_size": 6656,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
        "conv_L_cache": 3,
        "conv_bias": False,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 7,
    },
    # As many parameters as qwen3.5-0.8b and lfm2-350m, within 2%, in layers that all have attention.
    "dense-0.8b": _QWEN3
    | {
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 29,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "dense-350m": _QWEN3
    | {
        "vocab_size": 65536,
        "hidden_size": 1024,
        "intermediate_size": 4864,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "eos_token_id": 65535,
    },
    # Whose prompts of many ten thousand tokens end within minutes on two cores.
    "qwen3-2-layers": _QWEN3
    | {
        "max_position_embeddings": 131072,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
    },
    "qwen3-tiny": _QWEN3
    | {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}


def write_shape(name: str, folder: Path) -> Path:
    """Write the config.json of a shape; to be loaded with load_format "dummy". Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=2) + "\n")
    return folder


def matrix_flops(name: str, rows: int) -> float:
    """Floating-point operations of all linear layers, lm_head left out, for `rows` tokens. Raises ValueError for a shape whose
    layers differ."""
    shape = SHAPES[name]
    if "layer_types" in shape:
        raise ValueError(f"the layers of {name} differ")
    hidden, head = shape["hidden_size"], shape["head_dim"]
    q, kv = head * shape["num_attention_heads"], head * shape["num_key_value_heads"]
    weights = hidden * (2 * q + 2 * kv) + 3 * hidden * shape["intermediate_size"]
    return float(2.0 * rows * weights * int(shape["num_hidden_layers"]))
