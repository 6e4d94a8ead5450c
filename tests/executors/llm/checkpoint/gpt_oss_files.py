"""Small checkpoints of gpt-oss, written by transformers: their experts in float32, and in MXFP4 as published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.executors.llm.models import GPT_OSS, Reference, write

FILE = "model.safetensors"
SCHEME = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
}  # fmt: skip
PACKED: dict[str, Any] = {
    **GPT_OSS, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 32, "num_local_experts": 8,
    "vocab_size": 211,
}  # fmt: skip
"""Sizes whose columns are whole groups of 32."""


def in_mxfp4(folder: Path, fields: dict[str, Any] = PACKED, seed: int = 3) -> tuple[Path, Reference]:
    """A checkpoint with random experts in MXFP4, and one with the same numbers in float32. transformers' function is the
    judge of what they are."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    reference = write("GptOss", fields, folder / "wide", seed)
    tensors, rng = dict(load_file(folder / "wide" / FILE)), np.random.default_rng(seed)
    stored = dict(tensors)
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        count, columns, rows = tensor.shape
        blocks = torch.from_numpy(rng.integers(0, 256, (count, rows, columns // 32, 16), dtype=np.uint8))
        top = 127 - round(np.log2(columns) / 2)
        scales = torch.from_numpy(rng.integers(top - 3, top, (count, rows, columns // 32), dtype=np.uint8))
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(tensors, folder / "wide" / FILE)
    reference.model.load_state_dict(tensors)
    packed = folder / "packed"
    packed.mkdir()
    save_file(stored, packed / FILE)
    values = json.loads((folder / "wide" / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(values | {"quantization_config": SCHEME}))
    return packed, reference


def apart(source: Path, target: Path) -> Path:
    """A checkpoint in float32 with a tensor for each linear layer of each expert."""
    tensors = {}
    for name, tensor in load_file(source / FILE).items():
        begin, experts, own = name.partition("experts.")
        if not experts:
            tensors[name] = tensor
            continue
        role, part = own.removesuffix("_bias"), "bias" if own.endswith("_bias") else "weight"
        for e, one in enumerate(tensor):
            rows = one if part == "bias" else one.T
            parts = (
                {"gate_proj": rows[::2], "up_proj": rows[1::2]} if role == "gate_up_proj" else {role: rows}
            )
            for linear, weight in parts.items():
                tensors[f"{begin}experts.{e}.{linear}.{part}"] = weight.contiguous()
    target.mkdir()
    shutil.copy(source / "config.json", target)
    save_file(tensors, target / FILE)
    return target
