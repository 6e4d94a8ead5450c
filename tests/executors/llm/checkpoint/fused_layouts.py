"""Checkpoints whose weights lie side by side in one tensor, made from usual ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FILE = "model.safetensors"
_EXPERT = re.compile(r"(.*\.)(mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight(_\w+)?")
_ROLES = {
    "gate_proj": "gate_up_proj",
    "w1": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "w3": "gate_up_proj",
    "down_proj": "down_proj",
    "w2": "down_proj",
}
_DENSE = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


def experts_in_one(source: Path, target: Path) -> Path:
    """As transformers 5 names and joins experts: [experts, rows, columns], gate before up, in `mlp` for Mixtral, too."""
    joined: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    tensors = {}
    for name, tensor in load_file(source / FILE).items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            tensors[name.replace(".block_sparse_moe.", ".mlp.")] = tensor
            continue
        begin, _, expert, role, scale = match.groups()
        whole = f"{begin}mlp.experts.{_ROLES[role]}{scale or ''}"
        joined.setdefault(whole, {}).setdefault(int(expert), {})[role] = tensor
    for name, experts in joined.items():
        parts = [
            torch.cat([one[role] for role in _ROLES if role in one]) for _, one in sorted(experts.items())
        ]
        tensors[name] = torch.stack(parts)
    return _written(source, target, tensors)


def linears_in_one(source: Path, target: Path) -> Path:
    """q, k and v in one, gate and up in one, as Phi-3 has them: weights and biases."""
    joined: dict[str, dict[str, torch.Tensor]] = {}
    tensors = {}
    for name, tensor in load_file(source / FILE).items():
        stem, role, part = _split(name)
        if role in _DENSE:
            joined.setdefault(f"{stem}.{_DENSE[role]}.{part}", {})[role] = tensor
        else:
            tensors[name] = tensor
    for name, roles in joined.items():
        tensors[name] = torch.cat([roles[role] for role in _DENSE if role in roles])
    return _written(source, target, tensors)


def linears_apart(source: Path, target: Path, rows: dict[str, dict[str, int]]) -> Path:
    """The reverse. `rows`: the modules' parts and their rows."""
    tensors = {}
    for name, tensor in load_file(source / FILE).items():
        stem, role, part = _split(name)
        if role not in rows:
            tensors[name] = tensor
            continue
        for own, piece in zip(rows[role], tensor.split(list(rows[role].values())), strict=True):
            tensors[f"{stem}.{own}.{part}"] = piece
    return _written(source, target, tensors)


def _split(name: str) -> tuple[str, str, str]:
    """Module, linear layer in it, weight or bias; a name outside of layers has no such parts."""
    match = re.fullmatch(r"(.+)\.(\w+)\.(weight|bias)", name)
    return (match[1], match[2], match[3]) if match else ("", "", "")


def _written(source: Path, target: Path, tensors: dict[str, torch.Tensor]) -> Path:
    target.mkdir()
    shutil.copy(source / "config.json", target)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, target / FILE)
    return target
