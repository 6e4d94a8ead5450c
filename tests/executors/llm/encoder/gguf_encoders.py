"""Writes GGUF files of encoders from Hugging Face directories, by the rules of llama.cpp's converter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.executors.gguf_files import write_gguf

_BERT = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm", "emb_ln": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm", "norm2": "layer_output_norm", "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down", "classifier.dense": "cls", "classifier.out_proj": "cls.output", "classifier": "cls.output",
}  # fmt: skip
_MODERN = {
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm",
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down", "head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output",
}  # fmt: skip
_GEMMA = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_BEFORE = ("bert.", "roberta.", "model.")
"""Beginnings of names in models with a head."""
_POOLER = ("pooler.dense.weight", "pooler.dense.bias")
"""What the converter leaves out."""
_LAYER = re.compile(r"(?:encoder\.)?layers?\.(\d+)\.(.+)")
ARCHITECTURES = {
    "bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "nomic_bert": "nomic-bert", "modernbert": "modern-bert",
    "gemma3_text": "gemma-embedding",
}  # fmt: skip
"""By `model_type`."""


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors as the converter names and stores them."""
    config = json.loads((directory / "config.json").read_text())
    kind = config["model_type"]
    names = {"modernbert": _MODERN, "gemma3_text": _GEMMA}.get(kind, _BERT)
    found = {}
    for whole, tensor in load_file(directory / "model.safetensors").items():
        before = next((one for one in _BEFORE if kind != "gemma3_text" and whole.startswith(one)), "")
        name = whole.removeprefix(before)
        if name in _POOLER:
            continue
        stem, part = name.rsplit(".", 1)
        layer = _LAYER.fullmatch(stem)
        new = names[stem] if layer is None else f"blk.{layer[1]}.{names[layer[2]]}"
        if kind == "gemma3_text" and new.endswith("norm"):
            tensor = tensor + 1.0
        if new == "position_embd" and "roberta" in kind:
            tensor = tensor[config["pad_token_id"] + 1 :]
        found[f"{new}.{part}"] = tensor.contiguous()
    return found


def metadata_of(directory: Path) -> dict[str, Any]:
    """The metadata below the architecture's prefix."""
    config = json.loads((directory / "config.json").read_text())
    kind = config["model_type"]
    positions = config["max_position_embeddings"]
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    found: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": positions - (config["pad_token_id"] + 1) if "roberta" in kind else positions,
        "embedding_length": hidden,
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
    }
    if kind == "gemma3_text":
        thetas = config["rope_parameters"]
        return found | {
            "attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": config["head_dim"],
            "attention.value_length": config["head_dim"], "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "attention.sliding_window": config["sliding_window"], "pooling_type": 1, "rope.scaling.type": "none",
            "rope.freq_base": float(thetas["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": float(thetas["sliding_attention"]["rope_theta"]),
        }  # fmt: skip
    found |= {"attention.causal": False, "pooling_type": 2}
    if config["architectures"][0].endswith("ForSequenceClassification"):
        names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        found["classifier.output_labels"] = [names[key] for key in sorted(names)]
    if "classifier_pooling" in config and kind == "modernbert":
        found["classifier.pooling_type"] = {"mean": 1, "cls": 2}[config["classifier_pooling"]]
    if kind == "modernbert":
        thetas = config["rope_parameters"]
        return found | {
            "attention.layer_norm_rms_epsilon": config["norm_eps"], "attention.layer_norm_epsilon": config["norm_eps"],
            "attention.sliding_window": config["local_attention"], "attention.sliding_window_pattern": 3,
            "rope.scaling.type": "none", "vocab_size": config["vocab_size"], "hidden_activation": config["hidden_activation"],
            "rope.freq_base": float(thetas["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": float(thetas["sliding_attention"]["rope_theta"]),
        }  # fmt: skip
    found["attention.layer_norm_epsilon"] = config["layer_norm_eps"]
    if kind == "nomic_bert":
        found["rope.freq_base"] = float(config["rope_parameters"]["rope_theta"])
    return found


def write_encoder(
    path: Path,
    directory: Path,
    kinds: Callable[[str], str] = lambda name: "F32",
    change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None,
    **metadata: Any,
) -> Path:
    """Write the file of a directory's model. `kinds`: the type of each tensor; `change`: what is done to the tensors before;
    `metadata`: more of them, with `__` for a dot, None to leave one out."""
    tensors = tensors_of(directory)
    change(tensors)
    own = {name.replace("__", "."): value for name, value in metadata.items()}
    given = {name: value for name, value in {**metadata_of(directory), **own}.items() if value is not None}
    kind = json.loads((directory / "config.json").read_text())["model_type"]
    return write_gguf(path, ARCHITECTURES[kind], given, tensors, kinds)
