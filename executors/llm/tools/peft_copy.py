"""An adapter in a GGUF file as a folder in PEFT's format, for `cohort verify`: what PEFT adds to the reference.

Names and the order of rows are those that a start reads from the file, so a comparison shows faults in them.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from executors.llm.lora.gguf_modules import gguf_modules
from executors.llm.model.config import read_config
from executors.lora import pack, read_adapter
from executors.lora.peft import WEIGHTS
from executors.lora.peft_config import CONFIG


def write_peft_copy(adapter: Path, directory: Path, target: Path, max_rank: int) -> Path:
    """Write the adapter for the model in `directory` to the new folder `target`, and return it. Raises ConfigError."""
    target.mkdir()
    file = read_adapter(pack(adapter, target, max_rank).path)
    modules = gguf_modules(file, read_config(directory))
    tensors, ranks, alphas = {}, {}, {}
    for module in map(modules.in_usual_order, file.modules()):
        name = modules.usual[module.name]
        ranks[name], alphas[name] = len(module.a), module.scale * len(module.a)
        for part, values in (("A", module.a), ("B", module.b)):
            tensors[f"base_model.model.{name}.lora_{part}.weight"] = torch.from_numpy(values.copy())
    save_file(tensors, target / WEIGHTS, {"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": file.rank, "lora_alpha": file.rank, "init_lora_weights": True,
              "target_modules": list(ranks), "rank_pattern": ranks, "alpha_pattern": alphas, "inference_mode": True}  # fmt: skip
    (target / CONFIG).write_text(json.dumps(config))
    file.path.unlink()
    return target
