"""Adapters of linear attention and short convolutions, in PEFT's form and in GGUF, over checkpoints and GGUF files: what they
compute equals the adapter merged into the model, in whatever order each file has the value heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executors.contract import ConfigError
from executors.llm.model.config import read_config
from executors.llm.tools.lora_check import check_adapter
from executors.lora import pack
from tests.executors.hybrid_gguf import (
    _LFM2,
    _QWEN,
    _reordered,
    fields_of,
    lfm2_metadata,
    lfm2_tensors,
    qwen_metadata,
    qwen_tensors,
    write_hybrid,
)
from tests.executors.llm.checkpoint.hybrid_checkpoints import write_hybrid_checkpoint
from tests.executors.llm.lora.test_loras import logits, merged, prompt, start
from tests.executors.lora.gguf_loras import write_gguf_adapter
from tests.executors.lora.peft_files import write_peft

RECURRENT = {"attention.recurrent_layers": [True, False, True, True]}
SHARED = "mlp.shared_expert"
# By shape: the architecture of GGUF, modules below a layer, and those whose weights a GGUF file has in the same form.
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "qwen3_next": ("qwen3next", ("linear_attn.in_proj_ba", "linear_attn.out_proj", "self_attn.q_proj", f"{SHARED}.up_proj")),
    "qwen3_5": (
        "qwen35",
        (
            "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a",
            "linear_attn.out_proj", "self_attn.o_proj", "mlp.down_proj",
        ),
    ),
    "lfm2": (
        "lfm2",
        ("conv.in_proj", "conv.out_proj", "self_attn.out_proj", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
    ),
}  # fmt: skip

Made = dict[str, tuple[torch.Tensor, torch.Tensor]]


def sizes_of(model: Path, modules: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """By the names of the modules, of all layers."""
    tensors = load_file(model / "model.safetensors")
    names = [
        name.removesuffix(".weight")
        for name in tensors
        if name.endswith(tuple(f".{one}.weight" for one in modules))
    ]
    return {name: tuple(tensors[f"{name}.weight"].shape) for name in names}  # type: ignore[misc]


def as_gguf(path: Path, made: Made, arch: str, fields: dict[str, Any]) -> Path:
    """The adapter as it lies beside what llama.cpp's converter makes of the model."""
    tensors = {}
    for module, (a, b) in made.items():
        _, _, number, own = module.split(".", 3)
        stem = _LFM2[own] if arch == "lfm2" else _QWEN[own]
        if arch == "qwen35" and own.startswith("linear_attn."):
            changed = _reordered(own.removeprefix("linear_attn."), b @ a, fields)
            kept = own.endswith("out_proj")
            a, b = (
                (_columns(a, fields), b)
                if kept
                else (a, _reordered(own.removeprefix("linear_attn."), b, fields))
            )
            torch.testing.assert_close(b @ a, changed)
        tensors |= {
            f"blk.{number}.{stem}.weight.lora_a": a.numpy(),
            f"blk.{number}.{stem}.weight.lora_b": b.numpy(),
        }
    return write_gguf_adapter(path, {}, arch, alpha=8.0, tensors=tensors)


def _columns(a: torch.Tensor, fields: dict[str, Any]) -> torch.Tensor:
    return _reordered("out_proj", a, fields).contiguous()


def gguf_of(model: Path, target: Path, arch: str) -> Path:
    if arch == "lfm2":
        return write_hybrid(target, arch, lfm2_metadata(fields_of(model)), lfm2_tensors(model))
    return write_hybrid(target, arch, qwen_metadata(fields_of(model), RECURRENT), qwen_tensors(model, arch))


async def answer(model: Path, adapter: Path | None, tmp_path: Path) -> np.ndarray:
    executor = await start(model, int(adapter is not None))
    (tmp_path / "packed").mkdir(exist_ok=True)
    try:
        if adapter is not None:
            packed = pack(adapter, tmp_path / "packed", 64, f"/path/{adapter.name}")
            await executor.load_adapter("a", str(packed.path), packed.digest)  # type: ignore[attr-defined]
        [found] = await logits(executor, [(prompt(1, 20), None if adapter is None else "a")])
        return found
    finally:
        await executor.shutdown()


@pytest.mark.parametrize("shape", MODELS)
async def test_either_form_over_either_file_is_the_merged_model(tmp_path: Path, shape: str) -> None:
    arch, modules = MODELS[shape]
    model = write_hybrid_checkpoint(tmp_path / "model", shape)
    made = write_peft(tmp_path / "peft", sizes_of(model, modules), rank=4)
    adapters = tmp_path / "peft", as_gguf(tmp_path / "a.gguf", made, arch, fields_of(model))
    expected = await answer(merged(model, made, 2.0, tmp_path / "merged"), None, tmp_path)
    plain = await answer(model, None, tmp_path)
    assert np.abs(expected - plain).max() > 0.1, "an adapter that changes nothing proves nothing"
    bound = 1e-4 * max(1.0, np.abs(expected).max())
    for base in (model, gguf_of(model, tmp_path / "gguf", arch)):
        assert np.abs(await answer(base, None, tmp_path) - plain).max() < bound
        for adapter in adapters:
            assert np.abs(await answer(base, adapter, tmp_path) - expected).max() < bound, (base, adapter)
            check_adapter(adapter, adapter.name, read_config(base), 64)


async def test_a_joint_projection_is_divided_for_a_file_that_has_two(tmp_path: Path) -> None:
    """Of Qwen3-Next a GGUF file has q, k and v of all heads and z apart, a checkpoint one matrix by key head."""
    model = write_hybrid_checkpoint(tmp_path / "model", "qwen3_next")
    served = gguf_of(model, tmp_path / "gguf", "qwen3next")
    made = write_peft(tmp_path / "peft", sizes_of(model, ("linear_attn.in_proj_qkvz",)), rank=4)
    expected = await answer(merged(model, made, 2.0, tmp_path / "merged"), None, tmp_path)
    plain = await answer(model, None, tmp_path)
    bound = 1e-4 * max(1.0, np.abs(expected).max())
    assert np.abs(expected - plain).max() > 0.1
    for base in (model, served):
        assert np.abs(await answer(base, tmp_path / "peft", tmp_path) - expected).max() < bound
        check_adapter(tmp_path / "peft", "peft", read_config(base), 64)
    wrong = {
        name: (rows + 1, columns) for name, (rows, columns) in sizes_of(model, ("in_proj_qkvz",)).items()
    }
    write_peft(tmp_path / "wrong", wrong, rank=4)
    with pytest.raises(ConfigError, match=r"in_proj_qkvz: the model has no such weight"):
        await answer(served, tmp_path / "wrong", tmp_path)


async def test_parts_of_a_joint_projection_are_refused_by_name(tmp_path: Path) -> None:
    model = write_hybrid_checkpoint(tmp_path / "model", "qwen3_next")
    served = gguf_of(model, tmp_path / "gguf", "qwen3next")
    a, b = np.ones((4, 160), np.float32), np.ones((288, 4), np.float32)
    pair = {"blk.0.attn_gate.weight.lora_a": a, "blk.0.attn_gate.weight.lora_b": b}
    adapter = write_gguf_adapter(tmp_path / "a.gguf", {}, "qwen3next", tensors=pair)
    await answer(served, adapter, tmp_path)
    with pytest.raises(ConfigError, match=r"blk\.0\.attn_gate: adapters of this weight are not supported"):
        await answer(model, adapter, tmp_path)


@pytest.mark.parametrize(
    "module", ["linear_attn.conv1d", "mlp.shared_expert_gate", "mlp.gate", "mlp.experts.0.up_proj"]
)
async def test_what_is_left_is_refused_by_name(tmp_path: Path, module: str) -> None:
    model = write_hybrid_checkpoint(tmp_path / "model", "qwen3_next")
    size = (4, 160)
    write_peft(tmp_path / "peft", {f"model.layers.0.{module}": size}, rank=2)
    with pytest.raises(ConfigError, match=rf"layers\.0\.{module}: adapters of this weight are not supported"):
        await answer(model, tmp_path / "peft", tmp_path)
