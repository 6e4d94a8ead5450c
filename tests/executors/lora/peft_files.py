"""Folders in PEFT's form, written without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

PREFIX = "base_model.model."


def write_peft(
    folder: Path,
    weights: Mapping[str, tuple[int, int]],
    rank: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    config: Mapping[str, Any] | None = None,
    ranks: Mapping[str, int] | None = None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Write an adapter for `weights`, (outputs, inputs) by module name; `ranks` of some differ. Returns A and B by module."""
    generator = torch.Generator().manual_seed(seed)
    made, tensors = {}, {}
    for module, (outputs, inputs) in weights.items():
        own = (ranks or {}).get(module, rank)
        a = torch.randn(own, inputs, generator=generator).div(inputs**0.5).to(dtype)
        b = torch.randn(outputs, own, generator=generator).div(own**0.5).to(dtype)
        made[module] = a, b
        tensors[f"{PREFIX}{module}.lora_A.weight"] = a
        tensors[f"{PREFIX}{module}.lora_B.weight"] = b
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    fields = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "use_dora": False, "modules_to_save": None,
        "target_modules": sorted({module.rpartition(".")[2] for module in weights}), "base_model_name_or_path": "org/base",
        "init_lora_weights": True, "fan_in_fan_out": False, "inference_mode": True, "task_type": "CAUSAL_LM",
    }  # fmt: skip
    if ranks:
        fields["rank_pattern"] = dict(ranks)
    (folder / "adapter_config.json").write_text(json.dumps({**fields, **(config or {})}))
    return made
