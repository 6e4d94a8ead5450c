"""Biases that config.json asks for and no layer of a checkpoint has: zeros, as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.llm.checkpoint.loader import load_model
from executors.llm.checkpoint.weights import check_tensors
from executors.llm.model.config import read_config
from tests.executors.llm.checkpoint.test_gguf_models import BASE, GPT2, _checkpoint, _logits
from tests.executors.llm.driver import config

LLAMA: dict[str, Any] = {
    **BASE,
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": True,
    "mlp_bias": True,
}
QWEN2: dict[str, Any] = {**BASE, "architectures": ["Qwen2ForCausalLM"]}


def _without(directory: Path, target: Path, *modules: str, layer: str = "") -> Path:
    """A copy of a checkpoint without the biases of the modules, of one layer or of all."""
    tensors = load_file(directory / "model.safetensors")
    left = {
        name: tensor
        for name, tensor in tensors.items()
        if not (name.endswith(tuple(f"{module}.bias" for module in modules)) and layer in name)
    }
    assert len(left) < len(tensors)
    target.mkdir()
    save_file(left, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_bytes((directory / "config.json").read_bytes())
    return target


def _zeros(directory: Path, target: Path, *modules: str) -> Path:
    """A copy of a checkpoint with zeros as the biases of the modules."""
    tensors = load_file(directory / "model.safetensors")
    for name in tensors:
        if name.endswith(tuple(f"{module}.bias" for module in modules)):
            tensors[name] = torch.zeros_like(tensors[name])
    target.mkdir()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_bytes((directory / "config.json").read_bytes())
    return target


KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "o": (LLAMA, ("o_proj",)),
    "k and down": (LLAMA, ("k_proj", "down_proj")),
    "gate and up": (LLAMA, ("gate_proj", "up_proj")),
    "all": (LLAMA, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
    "a family that always has them": (QWEN2, ("q_proj", "v_proj")),
    "gpt2": (GPT2, ("c_attn",)),
}


@pytest.mark.parametrize("name", KINDS)
async def test_a_kind_that_no_layer_has_is_zero(tmp_path: Path, name: str):
    fields, modules = KINDS[name]
    hf = _checkpoint(tmp_path / "hf", fields)
    lacking, zeros = _without(hf, tmp_path / "lacking", *modules), _zeros(hf, tmp_path / "zeros", *modules)

    assert np.array_equal(await _logits(lacking), await _logits(zeros))
    assert not np.array_equal(await _logits(hf), await _logits(zeros))
    check_tensors(read_config(lacking), lacking)


def test_a_note_names_them(tmp_path: Path):
    hf = _checkpoint(tmp_path / "hf", LLAMA)
    loaded = load_model(config(_without(hf, tmp_path / "lacking", "o_proj", "up_proj")), lambda *step: None)

    assert "6 biases (o_proj, up_proj) are missing and are zeros" in str(loaded)


@pytest.mark.parametrize(
    ("fields", "module", "layer"),
    [(LLAMA, "o_proj", ".1."), (QWEN2, "k_proj", ".0."), (GPT2, "ln_1", ""), (GPT2, "c_proj", ".h.2.attn.")],
)
def test_what_some_layers_have_others_need(tmp_path: Path, fields: dict[str, Any], module: str, layer: str):
    """And norms need theirs."""
    lacking = _without(_checkpoint(tmp_path / "hf", fields), tmp_path / "lacking", module, layer=layer)

    with pytest.raises(ConfigError, match=r"(tensor .*bias is|3 tensors .* are) missing"):
        check_tensors(read_config(lacking), lacking)


@pytest.mark.long
async def test_transformers_reads_them_as_zeros(tmp_path: Path):
    from transformers import AutoModelForCausalLM

    from tests.executors.llm.checkpoint.test_gguf_models import IDS

    hf = _checkpoint(tmp_path / "hf", {**LLAMA, "model_type": "llama"})
    lacking = _without(hf, tmp_path / "lacking", "o_proj", "down_proj")
    model = AutoModelForCausalLM.from_pretrained(lacking, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = np.asarray(model(torch.tensor([IDS])).logits[0, -1])

    assert np.abs(await _logits(lacking) - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max())
