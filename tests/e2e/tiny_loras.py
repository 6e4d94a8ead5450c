"""LoRA adapters for cohort-tiny, in PEFT's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from executors.tiny import weights_dir
from tests.executors.lora.peft_files import write_peft

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def targets() -> dict[str, tuple[int, int]]:
    """All linear layers of cohort-tiny."""
    with safe_open(weights_dir() / "model.safetensors", "pt") as file:
        found = {
            name.removesuffix(".weight"): tuple(file.get_slice(name).get_shape())
            for name in file.keys()  # noqa: SIM118
            if name.removesuffix(".weight").rpartition(".")[2] in LINEARS
        }
    return found  # type: ignore[return-value]


def write(folder: Path, seed: int, rank: int = 8, **config: Any) -> Path:
    """An adapter with weights drawn from `seed`, for all linear layers. Returns its folder."""
    write_peft(
        folder,
        targets(),
        rank=rank,
        seed=seed,
        dtype=torch.bfloat16,
        config={"lora_alpha": rank / 2, **config},
    )
    return folder
