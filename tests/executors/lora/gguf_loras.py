"""GGUF files with adapters, written by the rules of llama.cpp's convert_lora_to_gguf.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants

from tests.executors.gguf_files import INTERLEAVED, converted, interleaved

Made = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""A and B by the checkpoint's name of a module."""


def write_gguf_adapter(
    path: Path,
    made: Made,
    arch: str = "llama",
    alpha: float = 8.0,
    heads: tuple[int, int] = (4, 2),
    kind: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write A and B of each module. `heads`: of queries and of keys. `kind`: the type of all tensors; `tensors`: further ones."""
    writer = GGUFWriter(path, arch)
    for key, value in {
        "general.type": "adapter", "general.version": "v0.2", "adapter.type": "lora", "adapter.lora.alpha": alpha,
        **(metadata or {}),
    }.items():  # fmt: skip
        if value is not None:
            add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}.get(
                type(value), writer.add_array
            )
            add(key, value)
    named = converted({f"{module}.weight": torch.zeros(2 * heads[0], 1) for module in made}, "qwen2", *heads)
    for name, (module, (a, b)) in zip(named, made.items(), strict=True):
        if arch in INTERLEAVED and module.endswith(("q_proj", "k_proj")):
            b = interleaved(b, heads[module.endswith("k_proj")])
        for part, tensor in (("lora_a", a), ("lora_b", b)):
            array, of = tensor.float().contiguous().numpy(), GGMLQuantizationType[kind]
            writer.add_tensor(
                f"{name}.{part}", quants.quantize(array, of) if kind != "F32" else array, raw_dtype=of
            )
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
