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

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.files import SINGLE, Checkpoint
from executors.llm.model.config import DecoderConfig, config_of_gguf, parse_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.family import Family
from executors.llm.model.gguf_config import gguf_config
from executors.llm.model.gguf_source import read_source


def write_wide_copy(directory: Path, target: Path) -> None:
    """Write config.json, float32 weights and the tokenizer's files of a directory with a GGUF file to the new directory `target`.

    Takes 4 bytes per parameter in memory and on the disk. Raises ConfigError.
    """
    target.mkdir()
    gguf = read_source(directory)
    derived = gguf_config(gguf)
    values = {**derived.values, "dtype": "float32"}
    config, usual = config_of_gguf(gguf, derived), parse_config(values, str(gguf.path))
    extra = [
        name
        for name in ("qkv_bias", "o_bias", "mlp_bias")
        if getattr(config, name) and not getattr(usual, name)
    ]
    if extra:
        raise ConfigError(
            f"{gguf.path}: biases of {', '.join(one.removesuffix('_bias') for one in extra)}, which transformers does not have "
            f"for {usual.architecture}: nothing to compare with"
        )
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
    if config.family.names.delta_tiled:
        _group_value_heads(tensors, config)
    _merge(tensors, config.family, usual)
    whole = Decoder(usual, torch.float32, torch.device("meta"))
    for name, tensor in whole.parameters().items():
        if name.endswith(".bias") and name not in tensors:
            tensors[name] = torch.zeros(tuple(tensor.shape))
    if usual.family.names.alternating:
        _join_experts(tensors, usual)
    save_file(tensors, target / SINGLE, {"format": "pt"})
    for path in directory.glob("*token*.json"):
        shutil.copy(path, target)
    if (directory / "generation_config.json").is_file():
        shutil.copy(directory / "generation_config.json", target)


def _group_value_heads(tensors: dict[str, torch.Tensor], config: DecoderConfig) -> None:
    """Put the value heads of linear attention in place into the usual order, see `gguf_hybrids.py`: those of a key head follow
    each other."""
    names, sizes = config.family.names, config.sizes
    keys, heads = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    size, before = sizes["linear_value_head_dim"], 2 * keys * sizes["linear_key_head_dim"]

    def grouped(tensor: torch.Tensor, size: int, along: int = 0) -> torch.Tensor:
        parts = tensor.unflatten(along, (heads // keys, keys, size))
        return parts.transpose(along, along + 1).flatten(along, along + 2)

    for i in range(config.num_layers):
        if config.layers[i].mixer != "gated_delta":
            continue
        for name, rows in (
            (f"{names.delta_z}.weight", size), (f"{names.delta_b}.weight", 1), (f"{names.delta_a}.weight", 1),
            (names.delta_a_log, 1), (names.delta_dt_bias, 1),
        ):  # fmt: skip
            own = name.replace("{i}", str(i))
            tensors[own] = grouped(tensors[own], rows)
        for name in (names.delta_qkv, names.delta_conv):
            own = f"{name}.weight".replace("{i}", str(i))
            tensors[own] = torch.cat((tensors[own][:before], grouped(tensors[own][before:], size)))
        own = f"{names.delta_out}.weight".replace("{i}", str(i))
        tensors[own] = grouped(tensors[own], size, along=1).contiguous()


def _merge(tensors: dict[str, torch.Tensor], written: Family, usual: DecoderConfig) -> None:
    """Merge in place what the family has in one tensor and the file has apart."""
    names, apart = usual.family.names, written.names
    merged = (
        (names.qkv, (apart.q, apart.k, apart.v), apart.qkv),
        (names.gate_up, (apart.gate, apart.up), apart.gate_up),
    )
    if names.delta_qkvz and not apart.delta_qkvz:
        _join_by_key_head(tensors, written, usual)
    for whole, parts, same in merged:
        if not whole or same:
            continue
        for layer in range(usual.num_layers):
            for part in ("weight", "bias"):
                parts_or_none = [
                    tensors.pop(f"{one}.{part}".replace("{i}", str(layer)), None) for one in parts
                ]
                there = [one for one in parts_or_none if one is not None]
                if len(there) == len(parts):
                    along = 1 if usual.family.names.transposed and part == "weight" else 0
                    tensors[f"{whole}.{part}".replace("{i}", str(layer))] = torch.cat(there, along)


def _join_by_key_head(tensors: dict[str, torch.Tensor], written: Family, usual: DecoderConfig) -> None:
    """Join q, k, v and z of linear attention in place as Qwen3-Next has them: by key head."""
    names, sizes, apart = usual.family.names, usual.sizes, written.names
    keys, size = sizes["linear_num_key_heads"], sizes["linear_key_head_dim"]
    for i in range(usual.num_layers):
        if usual.layers[i].mixer != "gated_delta":
            continue
        qkv, z = (
            tensors.pop(f"{one}.weight".replace("{i}", str(i))) for one in (apart.delta_qkv, apart.delta_z)
        )
        q, k, v = qkv.split((keys * size, keys * size, len(z)))
        parts = [one.unflatten(0, (keys, -1)) for one in (q, k, v, z)]
        tensors[f"{names.delta_qkvz}.weight".replace("{i}", str(i))] = torch.cat(parts, 1).flatten(0, 1)


def _join_experts(tensors: dict[str, torch.Tensor], config: DecoderConfig) -> None:
    """Join the experts in place as the family's checkpoints have them: [experts, in, out], gate and up in alternation."""
    names, moe = config.family.names, config.moe
    assert moe is not None
    stem = names.expert_down.partition("{e}")[0]

    def of_all(name: str, layer: int) -> torch.Tensor:
        whole = name.replace("{i}", str(layer))
        return torch.stack([tensors.pop(whole.replace("{e}", str(e))) for e in range(moe.num_experts)])

    for i in range(config.num_layers):
        begin = stem.replace("{i}", str(i))
        for part, end in (("weight", ""), ("bias", "_bias")):
            gate, up, down = (
                of_all(f"{name}.{part}", i)
                for name in (names.expert_gate, names.expert_up, names.expert_down)
            )
            gate_up = torch.stack((gate, up), 2).flatten(1, 2)
            tensors[f"{begin}gate_up_proj{end}"] = (gate_up.mT if part == "weight" else gate_up).contiguous()
            tensors[f"{begin}down_proj{end}"] = (down.mT if part == "weight" else down).contiguous()
