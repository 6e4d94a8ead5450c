"""Writes GGUF files of models whose layers are not all attention, by the rules of llama.cpp's converter (conversion/lfm2.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.executors.gguf_files import Metadata, Tensors, prepared, write_gguf

_LFM2 = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down", "feed_forward.gate": "ffn_gate_inp", "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
}  # fmt: skip
_WHOLE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
}  # fmt: skip
_EXPERT = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def fields_of(directory: Path) -> dict[str, Any]:
    """The text part of a config.json."""
    fields: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return fields.get("text_config", fields)


def _common(fields: dict[str, Any], eps: str) -> Metadata:
    rope = fields["rope_parameters"]
    return {
        "block_count": fields["num_hidden_layers"], "context_length": fields["max_position_embeddings"],
        "embedding_length": fields["hidden_size"], "attention.head_count": fields["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(fields[eps]), "rope.freq_base": float(rope["rope_theta"]),
    }  # fmt: skip


def lfm2_metadata(fields: dict[str, Any]) -> Metadata:
    """The keys of `lfm2` and `lfm2moe`."""
    kinds = fields["layer_types"]
    made = _common(fields, "norm_eps") | {
        "attention.head_count_kv": [fields["num_key_value_heads"] if one != "conv" else 0 for one in kinds],
        "shortconv.l_cache": fields["conv_L_cache"], "vocab_size": fields["vocab_size"],
    }  # fmt: skip
    if "num_experts" not in fields:
        size = int(2 * fields["intermediate_size"] / 3) * fields["block_ffn_dim_multiplier"]
        multiple = fields["block_multiple_of"]
        return made | {"feed_forward_length": -(-int(size) // multiple) * multiple}
    return made | {
        "feed_forward_length": fields["intermediate_size"], "expert_count": fields["num_experts"],
        "expert_used_count": fields["num_experts_per_tok"], "expert_gating_func": 2,
        "expert_feed_forward_length": fields["moe_intermediate_size"],
        "leading_dense_block_count": fields["num_dense_layers"], "expert_weights_norm": fields["norm_topk_prob"],
        "expert_weights_scale": float(fields["routed_scaling_factor"]),
    }  # fmt: skip


def lfm2_tensors(directory: Path) -> Tensors:
    """The tensors of a directory as the converter stores them."""
    found: Tensors = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        stem, part = name.rsplit(".", 1)
        layer = re.match(r"model\.layers\.(\d+)\.(.+)", stem)
        if layer is None:
            found[f"{_WHOLE[stem]}.{part}"] = tensor
        elif part == "expert_bias":
            found[f"blk.{layer[1]}.exp_probs_b.bias"] = tensor
        elif expert := re.fullmatch(r"feed_forward\.experts\.(\d+)\.(\w+)", layer[2]):
            whole = f"blk.{layer[1]}.ffn_{_EXPERT[expert[2]]}_exps.weight"
            experts.setdefault(whole, {})[int(expert[1])] = tensor
        else:
            own = tensor.squeeze(1) if layer[2] == "conv.conv" and part == "weight" else tensor
            found[f"blk.{layer[1]}.{_LFM2[layer[2]]}.{part}"] = own
    return found | {name: torch.stack([parts[i] for i in sorted(parts)]) for name, parts in experts.items()}


def write_hybrid(
    target: Path, arch: str, metadata: Metadata, tensors: Tensors, kinds: Any = lambda name: "F32"
) -> Path:
    """Write the file below `target` and return a directory that serves it."""
    target.mkdir(parents=True, exist_ok=True)
    return prepared(target / "served", write_gguf(target / "m.gguf", arch, metadata, tensors, kinds))
