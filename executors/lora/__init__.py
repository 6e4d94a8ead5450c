"""LoRA adapters (Hu et al., 2021) as files: read as PEFT and llama.cpp write them, checked, and written as one file that is
named by its content.

    lora_file.py   the one file: what an executor loads
    peft.py           a folder of PEFT's into it          peft_config.py   the keys of its configuration
    gguf_lora.py   a GGUF file into it
    other_parts.py    parts of models that are not served base_weights.py  embeddings that equal the model's

Nothing here needs torch: the server packs adapters, and an executor's process reads them.
"""

from __future__ import annotations

from pathlib import Path

from executors.lora.gguf_lora import GGUF, check_gguf, gguf_rank, pack_gguf
from executors.lora.lora_file import LoraFile, Module, PackedLora, read_adapter
from executors.lora.peft import WEIGHTS, check_folder, pack_folder

__all__ = ["LoraFile", "Module", "PackedLora", "check", "gguf_rank", "pack", "read_adapter"]


def pack(
    source: Path, target: Path, max_rank: int, label: str | None = None, base: Path | None = None
) -> PackedLora:
    """Check an adapter and write it to `target`, a folder, as `<digest>.safetensors`.

    `source`: a GGUF file, a folder that has one of the name `GGUF`, or a folder in PEFT's format. `label`: the name of the file
    with the weights in messages. `base`: the directory of the model that it is for. Raises ConfigError, and OSError if the target
    cannot be written.
    """
    file = source if source.is_file() else source / GGUF
    if file.is_file():
        return pack_gguf(file, target, max_rank, label)
    return pack_folder(source, target, max_rank, label or WEIGHTS, base)


def check(source: Path, max_rank: int, label: str) -> None:
    """Check what an adapter's configuration and the header of its weights say, as `pack` does, without reading the weights.

    `source`: a GGUF file, or a folder in PEFT's format. Raises ConfigError and OSError."""
    if source.is_file():
        check_gguf(source, max_rank, label)
    else:
        check_folder(source, max_rank, label)
