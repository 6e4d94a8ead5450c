"""A GGUF file as a Hugging Face checkpoint in float32, for `cohort verify`: what transformers and the executor both load.

Names, order of rows, norms and configuration are those that a start reads from the file, and the numbers are its dequantized
ones, so a comparison shows faults in all of these. Products in the file's own formats are not part of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from executors.llm.checkpoint.files import SINGLE, Checkpoint
from executors.llm.model.gguf_config import gguf_config
from executors.llm.model.gguf_source import read_source


def write_wide_copy(directory: Path, target: Path) -> None:
    """Write config.json, float32 weights and the tokenizer's files of a directory with a GGUF file to the new directory `target`.

    Takes 4 bytes per parameter in memory and on the disk. Raises ConfigError.
    """
    target.mkdir()
    values = {**gguf_config(read_source(directory)).values, "dtype": "float32"}
    (target / "config.json").write_text(json.dumps(values))
    checkpoint = Checkpoint(directory)
    tensors: dict[str, torch.Tensor] = {}
    try:
        for name in checkpoint.names():
            file = checkpoint.file_of(name)
            tensors[name] = torch.empty(tuple(file.shape(name)), dtype=torch.float32)
            file.copy_into(name, tensors[name])
    finally:
        checkpoint.close()
    save_file(tensors, target / SINGLE, {"format": "pt"})
    for path in directory.glob("*token*.json"):
        shutil.copy(path, target)
    if (directory / "generation_config.json").is_file():
        shutil.copy(directory / "generation_config.json", target)
