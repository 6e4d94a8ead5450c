"""A checkpoint that is as large as a real one and takes next to no room: all weights are zeros, in a hole of the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.e2e.checkpoints import CONFIG, write_tokenizer


def write_sparse_model(folder: Path, layers: int = 13, **changes: Any) -> Path:
    """Write a Qwen3 of 12.6 million parameters a layer in bfloat16, with the byte tokenizer and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    config = {
        **CONFIG, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    _write_zeros(folder / "model.safetensors", _shapes(config))
    return folder


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)
    }  # fmt: skip
    for layer in range(config["num_hidden_layers"]):
        names = {
            "self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
            "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
            "input_layernorm": (width,), "post_attention_layernorm": (width,),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in names.items()}
    return shapes


def _write_zeros(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
