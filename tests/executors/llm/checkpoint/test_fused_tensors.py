"""Tensors that hold several weights: the layout of transformers 5, and of savers that join q, k and v, or gate and up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, LogitsMode, PrefillInput, Tensor
from executors.llm.checkpoint import weights
from executors.llm.checkpoint.files import INDEX, Checkpoint
from executors.llm.finite import not_finite
from executors.llm.model.config import read_config
from executors.llm.model.families import FAMILIES
from executors.llm.tools.describe import describe
from executors.llm.tools.reference import ReferenceModel
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.executors.llm.checkpoint.fused_layouts import (
    FILE,
    experts_in_one,
    linears_apart,
    linears_in_one,
)
from tests.executors.llm.checkpoint.test_fp8_weights import MOE as FP8_MOE
from tests.executors.llm.checkpoint.test_fp8_weights import write_fp8
from tests.executors.llm.driver import config, start
from tests.executors.llm.models import SHAPES, build

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
_MOE: dict[str, Any] = {
    **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [],
}  # fmt: skip
_MIXTRAL: dict[str, Any] = {
    **QWEN3, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
    "num_experts_per_tok": 2, "intermediate_size": 24, "sliding_window": None,
}  # fmt: skip
_OLMOE: dict[str, Any] = {
    **QWEN3, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2,
    "intermediate_size": 24, "norm_topk_prob": False,
}  # fmt: skip
_PHI3: dict[str, Any] = {**LLAMA, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
_BIASES: dict[str, Any] = {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}


async def _logits(path: Path) -> np.ndarray:
    """float32 [tokens, V]."""
    executor = await start(path, dtype="float32")
    found = await executor.prefill(PrefillInput(Tensor.of([IDS], "int32"), logits=LogitsMode.ALL))
    assert found.logits is not None
    row = found.logits.numpy().copy().reshape(len(IDS), -1)
    await executor.shutdown()
    return row


@pytest.mark.parametrize("fields", [_MOE, _MIXTRAL, _OLMOE], ids=["qwen3_moe", "mixtral", "olmoe"])
async def test_experts_in_one_tensor(fields: dict[str, Any], tmp_path: Path) -> None:
    apart = write_checkpoint(tmp_path / "apart", fields)
    joined = experts_in_one(apart, tmp_path / "joined")
    names = load_file(joined / FILE)
    assert "model.layers.1.mlp.experts.gate_up_proj" in names
    assert not any(".experts.0." in name or "block_sparse_moe" in name for name in names)
    np.testing.assert_array_equal(await _logits(joined), await _logits(apart))
    facts, expected = (describe(config(path)) for path in (joined, apart))
    assert facts["checkpoint"] == expected["checkpoint"] and facts["parameters"] == expected["parameters"]


@pytest.mark.parametrize("fields", [LLAMA, _BIASES], ids=["plain", "biases"])
async def test_linears_in_one_tensor(fields: dict[str, Any], tmp_path: Path) -> None:
    apart = write_checkpoint(tmp_path / "apart", fields)
    joined = linears_in_one(apart, tmp_path / "joined")
    assert not any("q_proj" in name or "gate_proj" in name for name in load_file(joined / FILE))
    np.testing.assert_array_equal(await _logits(joined), await _logits(apart))


async def test_linears_of_phi3_apart(tmp_path: Path) -> None:
    joined = write_checkpoint(tmp_path / "joined", _PHI3)
    shape = read_config(joined)
    rows = {
        "qkv_proj": {"q_proj": shape.q_size, "k_proj": shape.kv_size, "v_proj": shape.kv_size},
        "gate_up_proj": dict.fromkeys(("gate_proj", "up_proj"), shape.intermediate_size),
    }
    apart = linears_apart(joined, tmp_path / "apart", rows)
    np.testing.assert_array_equal(await _logits(apart), await _logits(joined))
    assert describe(config(apart))["checkpoint"]["problem"] is None


async def test_fp8_blocks_of_experts_in_one_tensor(tmp_path: Path) -> None:
    fields = {**FP8_MOE, "moe_intermediate_size": 128}
    fp8, wide = write_fp8(write_checkpoint(tmp_path / "source", fields), tmp_path, "blocks")
    joined = experts_in_one(fp8, tmp_path / "joined")
    assert "model.layers.0.mlp.experts.gate_up_proj_scale_inv" in load_file(joined / FILE)
    np.testing.assert_allclose(await _logits(joined), await _logits(wide), atol=1e-4, rtol=0)


def _edited(source: Path, target: Path, **changes: torch.Tensor | str | None) -> Path:
    """A copy with other tensors. A text is another name for the tensor; None leaves it out."""
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / FILE)
    for name, change in changes.items():
        if isinstance(change, str):
            tensors[change] = tensors.pop(name)
        elif change is None:
            del tensors[name]
        else:
            tensors[name] = change
    save_file(tensors, target / FILE)
    return target


def _refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        weights.check_tensors(weights.settle_config(read_config(path), path), path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


def test_forms_that_cannot_be_divided_are_named(tmp_path: Path) -> None:
    apart = write_checkpoint(tmp_path / "apart", _MOE)
    joined = experts_in_one(apart, tmp_path / "joined")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    turned = load_file(joined / FILE)[name].transpose(1, 2).contiguous()
    assert f"{name} has shape {list(turned.shape)}" in _refused(
        _edited(joined, tmp_path / "turned", **{name: turned})
    )
    blocks = _edited(joined, tmp_path / "blocks", **{name: f"{name}_blocks"})
    assert f"{name}_blocks holds several weights in one in a form" in _refused(blocks)
    llama = linears_in_one(write_checkpoint(tmp_path / "llama", LLAMA), tmp_path / "fused")
    qkv = "model.layers.0.self_attn.qkv_proj"
    words = _edited(llama, tmp_path / "words", **{f"{qkv}.weight": f"{qkv}.qweight"})
    assert f"{qkv}.qweight holds several weights in one in a form" in _refused(words)
    short = load_file(llama / FILE)[f"{qkv}.weight"][1:].contiguous()
    assert f"{qkv}.weight has shape {list(short.shape)}" in _refused(
        _edited(llama, tmp_path / "short", **{f"{qkv}.weight": short})
    )


def test_scales_of_blocks_that_reach_over_gate_and_up_are_refused(tmp_path: Path) -> None:
    fields = {**FP8_MOE, "moe_intermediate_size": 160}
    fp8, _ = write_fp8(write_checkpoint(tmp_path / "source", fields), tmp_path, "blocks")
    joined = experts_in_one(fp8, tmp_path / "joined")
    name = "model.layers.0.mlp.experts.gate_up_proj_scale_inv"
    scales = load_file(joined / FILE)[name][:, :3].contiguous()  # 320 rows are 2 blocks and a half
    assert f"{name} has shape {list(scales.shape)}" in _refused(
        _edited(joined, tmp_path / "one", **{name: scales})
    )


def test_messages_name_what_the_file_has(tmp_path: Path) -> None:
    joined = experts_in_one(write_checkpoint(tmp_path / "apart", _MOE), tmp_path / "joined")
    name = "model.layers.1.mlp.experts.down_proj"
    values = load_file(joined / FILE)[name]
    values[2, 0, 0] = float("nan")
    broken = _edited(joined, tmp_path / "broken", **{name: values})
    assert not_finite(broken) == (broken / FILE, name)
    (joined / FILE).rename(joined / "model-00001-of-00002.safetensors")
    shards = dict.fromkeys(load_file(broken / FILE), "model-00001-of-00002.safetensors")
    shards[name] = "model-00002-of-00002.safetensors"
    (joined / INDEX).write_text(json.dumps({"weight_map": shards}))
    (joined / "model-00001-of-00002.safetensors").unlink()
    save_file(
        {key: one for key, one in load_file(broken / FILE).items() if key != name},
        joined / "model-00001-of-00002.safetensors",
    )
    assert "model-00002-of-00002.safetensors: no such file" in _refused(joined)


def test_a_joined_tensor_beside_the_parts_is_not_used(tmp_path: Path) -> None:
    apart = write_checkpoint(tmp_path / "apart", _MOE)
    name = "model.layers.1.mlp.experts.down_proj"
    joined = load_file(experts_in_one(apart, tmp_path / "joined") / FILE)[name]
    both = _edited(apart, tmp_path / "both", **{name: joined + 1})
    checkpoint = Checkpoint(both)
    target = torch.empty(joined.shape[1:])
    checkpoint.file_of("model.layers.1.mlp.experts.2.down_proj.weight").copy_into(
        "model.layers.1.mlp.experts.2.down_proj.weight", target
    )
    checkpoint.close()
    assert torch.equal(target, joined[2])


@pytest.mark.parametrize("shape", ["gemma3-beside-images", "mistral-beside-images"])
async def test_linears_in_one_tensor_of_a_nested_decoder(reference: Any, tmp_path: Path, shape: str) -> None:
    """Tensors of the image encoder may have the same names, and are not looked at."""
    apart = reference(shape).path
    joined = linears_in_one(apart, tmp_path / "joined")
    names = load_file(joined / FILE)
    assert any("language_model" in name and ".qkv_proj." in name for name in names)
    assert shape.startswith("mistral") or any("vision" in name and ".qkv_proj." in name for name in names)
    np.testing.assert_array_equal(await _logits(joined), await _logits(apart))


@pytest.mark.long
def test_verify_names_what_transformers_cannot_load(tmp_path: Path) -> None:
    """It would fill the missing weights with random numbers, and every comparison would fail."""
    joined = linears_in_one(write_checkpoint(tmp_path / "apart", _BIASES), tmp_path / "joined")
    with pytest.raises(ConfigError, match=r"transformers does not find \d+ tensors"):
        ReferenceModel(joined, torch.float32)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_both_layouts_of_transformers_are_the_reference(tmp_path: Path) -> None:
    """`save_pretrained` in the layout of publication and in that of the classes, which transformers 5 keeps on request."""
    families, fused = set(), 0
    for shape, (kind, fields) in SHAPES.items():
        family = kind, fields.get("text_config", {}).get("model_type")  # of which one class holds several
        if family in families:
            continue
        families.add(family)
        reference = build(shape, tmp_path / f"{shape}-published")
        reference.model.save_pretrained(tmp_path / f"{shape}-classes", save_original_format=False)
        expected = reference.logits(IDS)
        for layout in ("published", "classes"):
            path = tmp_path / f"{shape}-{layout}"
            difference = float(np.abs(await _logits(path) - expected).max())
            assert difference < 1e-4, f"{shape} in the layout {layout}: {difference}"
        fused += any("experts.gate_up_proj" in name for name in load_file(path / FILE))
    assert len(families) == len(FAMILIES) and fused == 9
