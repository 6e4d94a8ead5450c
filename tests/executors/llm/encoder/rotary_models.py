"""Random encoders with rotary positions, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY = 300
LENGTHS = (1, 2, 7, 7, 33, 64, 18, 150, 300)
"""Below the window of the local layers, at its bounds, and far beyond; above 256 they attend in chunks."""
REACH = 8
"""Positions that a local layer sees to each side."""
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 80,
    "max_position_embeddings": 320, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "modernbert": (
        transformers.ModernBertModel,
        {
            "num_hidden_layers": 5,
            "local_attention": 2 * REACH,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "initializer_cutoff_factor": 3.0,
        },
    ),
    "nomic_bert": (transformers.NomicBertModel, {"num_hidden_layers": 3}),
    "gemma3_text": (
        transformers.Gemma3TextModel,
        {
            "num_hidden_layers": 7,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 2 * REACH,
            "use_bidirectional_attention": True,
        },
    ),
}


def made(folder: Path, family: str, **changes: Any) -> transformers.PreTrainedModel:
    """A random model of that family, saved; norms and biases are random, too."""
    kind, own = CONFIGS[family]
    torch.manual_seed(1)
    model = kind(kind.config_class(**{**_SIZES, **own, **changes})).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name.lower() or name.endswith("bias"):
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    return model


def texts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCABULARY, length).astype(np.int32) for length in lengths]


def change(folder: Path, **values: Any) -> Path:
    """Change fields of config.json; `...` takes one away. Returns its path."""
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
    return path


NOMIC_PUBLISHED: dict[str, Any] = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "bos_token_id": None, "causal":
    False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None, "fused_bias_fc": True, "fused_dropout_add_ln":
    True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12, "max_trained_positions": 320, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_embd": 48, "n_head": 3, "n_inner": 80, "n_layer": 3, "n_positions":
    640, "pad_vocab_size_multiple": 4, "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False,
    "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout":
    0.0, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "torch_dtype": "float32",
    "transformers_version": "4.34.0", "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False,
    "use_xentropy": True, "vocab_size": 298,
}  # fmt: skip
"""config.json with the fields of nomic-embed-text-v1.5."""
