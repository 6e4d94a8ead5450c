"""Writes GGUF files from Hugging Face checkpoints, by the rules of llama.cpp's converter, and directories that serve them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import load_file

from executors.gguf.file import read_gguf
from executors.llm.model.gguf_source import header_digest
from tests.executors.kernels.blocks import dequantized, random_rows

Metadata = dict[str, Any]
"""Values below the architecture's prefix; a float is a float32, an int a uint32."""
Tensors = dict[str, torch.Tensor]

_STEMS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp", "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_AFTER = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
"""Names of norms in families with a norm behind attention."""
_GEMMA4 = {
    "per_layer_input_gate.weight": "inp_gate.weight", "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight", "layer_scalar": "layer_output_scale.weight",
    "router.proj.weight": "ffn_gate_inp.weight", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight", "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
}  # fmt: skip
"""Names below a layer that only Gemma 4 has."""
_WHOLE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj", "model.per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
_EXPERT = re.compile(r"((?:mlp|block_sparse_moe)\.)?experts\.(\d+)\.(\w+)")
_SHARED = re.compile(r"mlp\.shared_expert[._](\w+)")
_EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
INTERLEAVED = ("llama", "mistral3", "smollm3", "granite")
PLUS_ONE = ("gemma", "gemma2", "gemma3")
GPT_OSS = {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
OLLAMAS = {
    "post_attention_norm.": "ffn_norm.",
    "attn_output.": "attn_out.",
    "attn_sinks.weight": "attn_sinks",
}
"""Names of gpt-oss in files of Ollama's converters, by llama.cpp's."""
AFTER = ("gemma2", "gemma3", "gemma4", "olmo2", "exaone4", "glm4")


def interleaved(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys as a rotation of neighbours needs them: element j of the two halves of a head side by side."""
    return torch.cat(
        [torch.stack((half[0], half[1]), 1).flatten(0, 1) for half in weights.unflatten(0, (heads, 2, -1))]
    )


def converted(
    tensors: dict[str, torch.Tensor], arch: str, heads: int, kv_heads: int
) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors as the converter names and stores them."""
    found: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if (
            arch == "gemma4"
            and (match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name))
            and match[2] in _GEMMA4
        ):
            found[f"blk.{match[1]}.{_GEMMA4[match[2]]}"] = tensor.contiguous()
            continue
        stem, part = name.rsplit(".", 1)
        if part == "sinks":
            found[f"blk.{stem.split('.')[2]}.attn_sinks.weight"] = tensor
            continue
        layer = re.match(r"(?:model\.layers|transformer\.h)\.(\d+)\.(.+)", stem)
        if layer is None:
            new = f"{_WHOLE[stem]}.{part}"
        elif expert := _EXPERT.fullmatch(layer[2]):
            merged = f"blk.{layer[1]}.ffn_{_EXPERTS[expert[3]]}_exps.{part}"
            experts.setdefault(merged, {})[int(expert[2])] = tensor
            continue
        elif shared := _SHARED.fullmatch(layer[2]):
            own = "gate_inp" if shared[1] == "gate" else _EXPERTS[shared[1]]
            new = f"blk.{layer[1]}.ffn_{own}_shexp.{part}"
        else:
            stems = {**_STEMS, **(_AFTER if arch in AFTER else {})}
            if arch == "gpt-oss":
                stems |= GPT_OSS
            if arch == "glm4":
                stems |= {"post_attention_layernorm": "ffn_norm"}
            new = f"blk.{layer[1]}.{stems[layer[2]]}.{part}"
        if arch in INTERLEAVED and ".attn_q." in new:
            tensor = interleaved(tensor, heads)
        if arch in INTERLEAVED and ".attn_k." in new:
            tensor = interleaved(tensor, kv_heads)
        if arch in PLUS_ONE and new.endswith("norm.weight"):
            tensor = tensor + 1
        if arch == "gpt2" and layer is not None and tensor.dim() == 2:
            tensor = tensor.T
        found[new] = tensor.contiguous()
    found.update({name: torch.stack([parts[i] for i in sorted(parts)]) for name, parts in experts.items()})
    return found


def merge_qkv(tensors: Tensors) -> None:
    """As llama.cpp's converter does with --fuse-qkv: the rows of q, k and v, as the file has them."""
    for name in [name for name in tensors if ".attn_q." in name]:
        parts = [tensors.pop(name.replace("attn_q", stem)) for stem in ("attn_q", "attn_k", "attn_v")]
        tensors[name.replace("attn_q", "attn_qkv")] = torch.cat(parts)


def merge_gate_up(tensors: Tensors, into: str = "ffn_gate_up") -> None:
    """Gate first, of an MLP or of all experts [experts, rows, columns]."""
    for name in [name for name in tensors if ".ffn_gate." in name or ".ffn_gate_exps." in name]:
        parts = [tensors.pop(name), tensors.pop(name.replace("ffn_gate", "ffn_up"))]
        tensors[name.replace("ffn_gate", into)] = torch.cat(
            parts, dim=parts[0].dim() - 2 if parts[0].dim() > 1 else 0
        )


def merge_all(tensors: Tensors) -> None:
    merge_qkv(tensors)
    merge_gate_up(tensors)


def _quantized(array: np.ndarray, kind: str) -> np.ndarray:
    """Blocks of an array; random ones of its shape and size for the formats that the `gguf` package does not write."""
    try:
        return np.asarray(quants.quantize(array, GGMLQuantizationType[kind]))
    except NotImplementedError:
        size = array.std() / dequantized(kind, random_rows(kind, 64, array.shape[-1])).std()
        rows = random_rows(kind, math.prod(array.shape[:-1]), array.shape[-1], scale=float(size))
        return rows.reshape(*array.shape[:-1], -1)


def write_gguf(
    path: Path,
    arch: str,
    metadata: Metadata,
    tensors: dict[str, torch.Tensor],
    kinds: Callable[[str], str] = lambda name: "F32",
) -> Path:
    """Write a file; `kinds`: the type of each tensor. Those of one dimension are always F32."""
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        key = key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, tensor in tensors.items():
        array, kind = tensor.float().numpy(), kinds(name) if tensor.dim() > 1 else "F32"
        if kind == "F32":
            writer.add_tensor(name, array)
        else:
            number = GGMLQuantizationType[kind]
            writer.add_tensor(name, _quantized(array, kind), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def retyped(file: Path, name: str, dimensions: int, number: int) -> Path:
    """Change a tensor's type in the header; the types' sizes have to be equal."""
    raw = file.read_bytes()
    at = raw.index(name.encode()) + len(name) + 4 + 8 * dimensions
    file.write_bytes(raw[:at] + number.to_bytes(4, "little") + raw[at + 4 :])
    return file


def prepared(directory: Path, path: Path) -> Path:
    """A directory that serves a GGUF file."""
    directory.mkdir(parents=True, exist_ok=True)
    gguf = read_gguf(path)
    source = {"files": [str(part) for part in gguf.parts], "header": header_digest(gguf)}
    (directory / "gguf.json").write_text(json.dumps(source))
    return directory


def sizes(config: dict[str, Any]) -> Metadata:
    """The metadata that all architectures but GPT-2 have, from a config.json."""
    heads = config["num_attention_heads"]
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim", config["hidden_size"] // heads),
        "attention.value_length": config.get("head_dim", config["hidden_size"] // heads),
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        "rope.freq_base": float(config.get("rope_theta", 10_000.0)),
        "vocab_size": config["vocab_size"],
    }


def converted_checkpoint(directory: Path, arch: str) -> dict[str, torch.Tensor]:
    """The tensors of a Hugging Face directory as the converter stores them."""
    config = json.loads((directory / "config.json").read_text())
    heads = config.get("num_attention_heads", config.get("n_head"))
    return converted(
        load_file(directory / "model.safetensors"), arch, heads, config.get("num_key_value_heads", heads)
    )


def random_blocks(kind_bytes: int, count: int, seed: int = 0) -> np.ndarray:
    """Random bytes of blocks, uint8 [count, bytes of a block]."""
    return np.random.default_rng(seed).integers(0, 256, (count, kind_bytes), dtype=np.uint8)
