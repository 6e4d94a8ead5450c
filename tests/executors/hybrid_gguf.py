"""Writes GGUF files of models whose layers are not all attention, by the rules of llama.cpp's converter
(conversion/lfm2.py, conversion/qwen.py)."""

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


_QWEN = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}  # fmt: skip


def qwen_metadata(fields: dict[str, Any], more: Metadata) -> Metadata:
    """The keys of `qwen3next`, `qwen35` and `qwen35moe`."""
    heads, size = fields["linear_num_value_heads"], fields["linear_value_head_dim"]
    rope = fields["rope_parameters"]
    made = _common(fields, "rms_norm_eps") | {
        "attention.head_count_kv": fields["num_key_value_heads"], "attention.key_length": fields["head_dim"],
        "attention.value_length": fields["head_dim"], "feed_forward_length": fields.get("intermediate_size", 1),
        "rope.dimension_count": int(fields["head_dim"] * rope["partial_rotary_factor"]),
        "ssm.conv_kernel": fields["linear_conv_kernel_dim"], "ssm.state_size": fields["linear_key_head_dim"],
        "ssm.group_count": fields["linear_num_key_heads"], "ssm.time_step_rank": heads, "ssm.inner_size": heads * size,
    }  # fmt: skip
    if "num_experts" in fields or "num_local_experts" in fields:
        made |= {
            "expert_count": fields.get("num_experts", fields.get("num_local_experts")),
            "expert_used_count": fields["num_experts_per_tok"],
            "expert_feed_forward_length": fields["moe_intermediate_size"],
            "expert_shared_feed_forward_length": fields["shared_expert_intermediate_size"],
        }
    return made | more


def tiled(weights: torch.Tensor, fields: dict[str, Any], size: int, along: int = 0) -> torch.Tensor:
    """Rows or columns of value heads of `size` each in the converter's order: that of the first of each key head, and so on."""
    keys, heads = fields["linear_num_key_heads"], fields["linear_num_value_heads"]
    parts = weights.unflatten(along, (keys, heads // keys, size))
    return parts.transpose(along, along + 1).flatten(along, along + 2)


def _reordered(own: str, tensor: torch.Tensor, fields: dict[str, Any]) -> torch.Tensor:
    """A tensor below `linear_attn.` of qwen35 and qwen35moe in the converter's order of value heads."""
    size, keys = (
        fields["linear_value_head_dim"],
        2 * fields["linear_num_key_heads"] * fields["linear_key_head_dim"],
    )
    match own:
        case "in_proj_qkv" | "conv1d":
            return torch.cat((tensor[:keys], tiled(tensor[keys:], fields, size)))
        case "in_proj_z":
            return tiled(tensor, fields, size)
        case "in_proj_b" | "in_proj_a" | "A_log" | "dt_bias":
            return tiled(tensor, fields, 1)
        case "out_proj":
            return tiled(tensor, fields, size, along=1)
    return tensor


def _apart(tensor: torch.Tensor, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k and v of all heads, and z, of qkvz by key head."""
    keys, size = fields["linear_num_key_heads"], fields["linear_key_head_dim"]
    values = fields["linear_num_value_heads"] // keys * fields["linear_value_head_dim"]
    q, k, v, z = tensor.unflatten(0, (keys, -1)).split((size, size, values, values), 1)
    return torch.cat([one.flatten(0, 1) for one in (q, k, v)]), z.flatten(0, 1)


_HEAD = {
    "eh_proj.weight": "nextn.eh_proj.weight", "enorm.weight": "nextn.enorm.weight", "hnorm.weight": "nextn.hnorm.weight",
    "shared_head.norm.weight": "nextn.shared_head_norm.weight",
}  # fmt: skip


def _of_head(name: str, layers: int) -> str:
    """The name of a tensor, of an MTP head as `_QwenMtpMixin` changes it."""
    parts = name.split(".", 3)
    if parts[0] != "mtp":
        return name
    if parts[1] == "layers":
        return f"model.layers.{layers + int(parts[2])}.{parts[3]}"
    own = {
        "fc": "eh_proj",
        "pre_fc_norm_embedding": "enorm",
        "pre_fc_norm_hidden": "hnorm",
        "norm": "shared_head.norm",
    }
    return f"model.layers.{layers}.{own[parts[1]]}.{parts[2]}"


def with_head_of(metadata: Metadata, heads: int = 1) -> Metadata:
    """The keys of a file whose `block_count` has the layers of an MTP head, too."""
    recurrent = metadata.get("attention.recurrent_layers")
    more = {} if recurrent is None else {"attention.recurrent_layers": [*recurrent, *[False] * heads]}
    return {**metadata, "block_count": metadata["block_count"] + heads, "nextn_predict_layers": heads, **more}


def qwen_tensors(directory: Path, arch: str) -> Tensors:
    """The tensors of a directory as the converter stores them, those of images left out."""
    fields, found = fields_of(directory), dict[str, torch.Tensor]()
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for written, tensor in load_file(directory / "model.safetensors").items():
        name = _of_head(written.replace("model.language_model.", "model."), fields["num_hidden_layers"])
        if "visual" in name:
            continue
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor + 1
        layer = re.match(r"model\.layers\.(\d+)\.(.+)", name)
        if layer is None:
            stem, part = name.rsplit(".", 1)
            found[f"{_WHOLE[stem]}.{part}"] = tensor
            continue
        own, blk = layer[2], f"blk.{layer[1]}"
        if own in _HEAD:
            found[f"{blk}.{_HEAD[own]}"] = tensor
            continue
        delta = own.removeprefix("linear_attn.").removesuffix(".weight")
        if own.startswith("linear_attn.conv1d"):
            tensor = tensor.squeeze(1)
        if arch != "qwen3next" and own.startswith("linear_attn."):
            tensor = _reordered(delta, tensor, fields)
        if delta == "A_log":
            found[f"{blk}.ssm_a"] = -tensor.exp()
        elif delta == "dt_bias":
            found[f"{blk}.ssm_dt.bias"] = tensor
        elif delta == "in_proj_qkvz":
            found[f"{blk}.attn_qkv.weight"], found[f"{blk}.attn_gate.weight"] = _apart(tensor, fields)
        elif expert := re.fullmatch(r"mlp\.experts\.(\d+)\.(\w+)\.weight", own):
            experts.setdefault(f"{blk}.ffn_{_EXPERT[expert[2]]}_exps.weight", {})[int(expert[1])] = tensor
        elif own == "mlp.experts.gate_up_proj":
            gate, up = tensor.chunk(2, 1)
            found |= {f"{blk}.ffn_gate_exps.weight": gate, f"{blk}.ffn_up_exps.weight": up}
        elif own == "mlp.experts.down_proj":
            found[f"{blk}.ffn_down_exps.weight"] = tensor
        else:
            stem, part = own.rsplit(".", 1)
            found[f"{blk}.{_QWEN[stem]}.{part}"] = tensor
    found |= {name: torch.stack([parts[i] for i in sorted(parts)]) for name, parts in experts.items()}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def write_hybrid(
    target: Path, arch: str, metadata: Metadata, tensors: Tensors, kinds: Any = lambda name: "F32"
) -> Path:
    """Write the file below `target` and return a directory that serves it."""
    target.mkdir(parents=True, exist_ok=True)
    return prepared(target / "served", write_gguf(target / "m.gguf", arch, metadata, tensors, kinds))
