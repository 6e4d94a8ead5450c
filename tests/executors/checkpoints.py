"""Small random checkpoints written without transformers, whose import takes seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from executors.llm.model.config import DecoderConfig, read_config
from executors.llm.model.decoder import Decoder

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 211, "hidden_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 72,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "attention_bias": False, "dtype": "float32",
}  # fmt: skip
LLAMA = {**QWEN3, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def write_config(directory: Path, fields: dict[str, Any]) -> Path:
    """config.json alone, which is enough for load_format dummy."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def with_sinks(config: DecoderConfig) -> DecoderConfig:
    """The same model, whose heads have sinks."""
    names = replace(config.family.names, sinks="model.layers.{i}.self_attn.sinks")
    return replace(config, family=replace(config.family, names=names))


def write_checkpoint(
    directory: Path, fields: dict[str, Any], seed: int = 0,
    changed: Callable[[DecoderConfig], DecoderConfig] = lambda config: config,
) -> Path:  # fmt: skip
    """config.json and weights that are large enough for peaked logits which depend on positions. `changed`: what the model has
    that config.json does not say."""
    write_config(directory, fields)
    decoder = Decoder(changed(read_config(directory)), torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    heads, tensors = decoder.head_norms(), {}
    for name, target in decoder.parameters().items():
        tensor = torch.empty(target.shape[1:] if name in heads else target.shape)
        if tensor.dim() > 1:
            tensor.normal_(0.0, 1.2 / tensor.shape[-1] ** 0.5, generator=generator)
            if name == decoder.config.family.names.embed + ".weight":
                tensor.normal_(0.0, 1.2, generator=generator)
        else:
            tensor.uniform_(0.5, 1.5, generator=generator)
        tensors[name] = tensor
    save_file(tensors, directory / "model.safetensors")
    return directory
