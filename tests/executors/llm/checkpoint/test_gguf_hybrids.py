"""GGUF files of models whose layers are not all attention compute what their checkpoints compute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executors.contract import ConfigError, LogitsMode, PrefillInput, Tensor
from executors.llm.model.config import read_config
from executors.llm.tools import compare
from executors.llm.tools.wide_copy import write_wide_copy
from tests.executors.hybrid_gguf import (
    fields_of,
    lfm2_metadata,
    lfm2_tensors,
    qwen_metadata,
    qwen_tensors,
    with_head_of,
    write_hybrid,
)
from tests.executors.llm.driver import start

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


async def logits(path: Path) -> np.ndarray:
    executor = await start(path, dtype="float32")
    out = (await executor.prefill(PrefillInput(Tensor.of([IDS], "int32"), logits=LogitsMode.ALL))).logits
    assert out is not None
    await executor.shutdown()
    return np.asarray(out.numpy()[0])


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("lfm2-short-convolutions", "lfm2"),
        ("lfm2-biases-kernel-of-5-untied", "lfm2"),
        ("lfm2-moe-sigmoid-router", "lfm2moe"),
        ("lfm2-moe-no-bias-of-choice", "lfm2moe"),
    ],
)
async def test_a_file_of_lfm2_is_its_checkpoint(reference: Any, tmp_path: Path, name: str, arch: str) -> None:
    ref = reference(name)
    path = write_hybrid(tmp_path, arch, lfm2_metadata(fields_of(ref.path)), lfm2_tensors(ref.path))
    ours, theirs = read_config(path), read_config(ref.path)
    assert (ours.layers, ours.moe, ours.sizes) == (theirs.layers, theirs.moe, theirs.sizes)
    assert np.abs(await logits(path) - ref.logits(IDS)).max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention.head_count_kv": 2}, "a number for each of 5 layers is needed"),
        ({"attention.head_count_kv": [0] * 5}, r"head_count_kv .* is not supported; supported: one number"),
        ({"attention.head_count_kv": [0, 1, 2, 0, 0]}, "one number for the layers with attention"),
        ({"shortconv.l_cache": None}, "shortconv.l_cache is missing"),
        ({"shortconv.l_cache": 1}, "conv_L_cache is 1; at least 2"),
        ({"attention.sliding_window": 8}, "attention.sliding_window 8 is not supported"),
        ({"expert_gating_func": 1}, r"expert_gating_func 1 is not supported; supported: 2 \(sigmoid\)"),
    ],
)
async def test_other_files_are_refused_by_name(
    reference: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    ref = reference("lfm2-moe-sigmoid-router")
    metadata = lfm2_metadata(fields_of(ref.path)) | change
    kept = {key: value for key, value in metadata.items() if value is not None}
    path = write_hybrid(tmp_path, "lfm2moe", kept, lfm2_tensors(ref.path))
    with pytest.raises(ConfigError, match=message):
        await start(path)


RECURRENT = {"attention.recurrent_layers": [True, False, True, True]}


@pytest.mark.parametrize(
    ("name", "arch", "more"),
    [
        ("qwen3-next", "qwen3next", RECURRENT),
        ("qwen3.5", "qwen35", {**RECURRENT, "rope.dimension_sections": [1, 1, 1, 0]}),
        ("qwen3.5-beside-images", "qwen35", {}),
        ("qwen3.5-beside-images", "qwen35", {"full_attention_interval": 4}),
        ("qwen3.5-moe", "qwen35moe", RECURRENT),
    ],
)
async def test_a_file_of_qwen_is_its_checkpoint(
    reference: Any, tmp_path: Path, name: str, arch: str, more: dict[str, Any]
) -> None:
    """Also where the converter has put the value heads into another order."""
    ref = reference(name)
    path = write_hybrid(
        tmp_path, arch, qwen_metadata(fields_of(ref.path), more), qwen_tensors(ref.path, arch)
    )
    ours, theirs = read_config(path), read_config(ref.path)
    assert (ours.layers, ours.moe, ours.sizes) == (theirs.layers, theirs.moe, theirs.sizes)
    assert np.abs(await logits(path) - ref.logits(IDS)).max() < 1e-4


async def test_projections_of_older_files_of_qwen3_next_stay_in_one(reference: Any, tmp_path: Path) -> None:
    ref = reference("qwen3-next")
    tensors = qwen_tensors(ref.path, "qwen3next")
    for i in (0, 2, 3):
        del tensors[f"blk.{i}.attn_qkv.weight"], tensors[f"blk.{i}.attn_gate.weight"]
        tensors[f"blk.{i}.ssm_in.weight"] = ref.model.state_dict()[
            f"model.layers.{i}.linear_attn.in_proj_qkvz.weight"
        ].contiguous()
    path = write_hybrid(tmp_path, "qwen3next", qwen_metadata(fields_of(ref.path), RECURRENT), tensors)
    assert np.abs(await logits(path) - ref.logits(IDS)).max() < 1e-4


@pytest.mark.parametrize(
    ("name", "arch"), [("qwen3.5", "qwen35"), ("qwen3.5-moe", "qwen35moe"), ("qwen3-next", "qwen3next")]
)
async def test_a_head_that_guesses_tokens_is_left_out_with_a_note(
    reference: Any, tmp_path: Path, name: str, arch: str
) -> None:
    """block_count counts it in such a file, where llama.cpp's converter has seen a checkpoint with a head."""
    ref = reference(name)
    tensors = qwen_tensors(ref.path, arch)
    tensors |= {name.replace("blk.1.", "blk.4."): one for name, one in tensors.items() if "blk.1." in name}
    tensors |= {"blk.4.nextn.eh_proj.weight": torch.zeros(48, 96), "blk.4.nextn.enorm.weight": torch.ones(48)}
    metadata = with_head_of(qwen_metadata(fields_of(ref.path), RECURRENT))
    path = write_hybrid(tmp_path, arch, metadata, tensors)
    assert read_config(path).num_layers == 4
    assert np.abs(await logits(path) - ref.logits(IDS)).max() < 1e-4
    count = sum(name.startswith("blk.4.") for name in tensors)
    [note] = [one for one in (await start(path)).status().notes if "MTP" in one]
    assert note.startswith(f"the MTP head ({count} tensors, nextn_predict_layers) is not used")


async def test_layers_behind_the_last_are_refused_unless_they_guess_tokens(
    reference: Any, tmp_path: Path
) -> None:
    """Less layers than the file has are another model."""
    ref = reference("qwen3.5")
    metadata = qwen_metadata(fields_of(ref.path), {**RECURRENT, "block_count": 3})
    path = write_hybrid(tmp_path, "qwen35", metadata, qwen_tensors(ref.path, "qwen35"))
    with pytest.raises(ConfigError, match=r"tensor blk\.3\."):
        await start(path)


@pytest.mark.parametrize(
    ("name", "arch"),
    [("lfm2-moe-sigmoid-router", "lfm2moe"), ("qwen3-next", "qwen3next"), ("qwen3.5", "qwen35")],
)
async def test_verify_compares_a_file_with_transformers(
    reference: Any, tmp_path: Path, name: str, arch: str
) -> None:
    """Of which it makes a copy in the usual order of heads."""
    ref = reference(name)
    if arch == "lfm2moe":
        metadata, tensors = lfm2_metadata(fields_of(ref.path)), lfm2_tensors(ref.path)
    else:
        metadata, tensors = qwen_metadata(fields_of(ref.path), RECURRENT), qwen_tensors(ref.path, arch)
    path = write_hybrid(tmp_path, arch, metadata, tensors)
    write_wide_copy(path, tmp_path / "copy")
    copied, original = (
        load_file(tmp_path / "copy" / "model.safetensors"),
        load_file(ref.path / "model.safetensors"),
    )
    assert copied.keys() == original.keys()
    for key, tensor in original.items():
        torch.testing.assert_close(copied[key].view(tensor.shape), tensor, rtol=1e-5, atol=1e-5)
    job = {
        "model": str(path), "reference": str(path), "tokens": 6, "prompts": None, "dtype": "float32", "device": "cpu",
        "num_threads": 1, "tolerance": 1e-4, "has_tokenizer": False,
    }  # fmt: skip
    report = await asyncio.to_thread(compare.run, job, lambda stage: None)
    assert all(row["logits_equal"] and row["greedy_equal"] for row in report["prompts"]), report


async def test_quantized_projections_stay_as_the_file_has_them(reference: Any, tmp_path: Path) -> None:
    """In the order of heads of the file: blocks of columns have no other."""
    ref = reference("qwen3.5-wide")
    fields, tensors = fields_of(ref.path), qwen_tensors(ref.path, "qwen35")
    metadata = qwen_metadata(fields, RECURRENT)

    def kinds(name: str) -> str:
        return "Q8_0" if tensors[name].shape[-1] % 32 == 0 else "F32"

    narrow = write_hybrid(tmp_path / "narrow", "qwen35", metadata, tensors, kinds)
    found, expected = await logits(narrow), ref.logits(IDS)
    assert 1e-4 < np.abs(found - expected).mean() < 0.1 * expected.std()
    executor = await start(narrow)
    decoder = executor._runtime.runner.model
    assert all(linear.stored for layer in decoder.layers[::2] for linear in layer.mixer.linears)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ssm.group_count": None}, "ssm.group_count is missing"),
        ({"ssm.inner_size": 63}, "ssm.inner_size 63 is not supported"),
        ({"ssm.group_count": 5}, "linear_num_value_heads 6 is not a multiple of linear_num_key_heads 5"),
        ({"ssm.conv_kernel": 1}, "linear_conv_kernel_dim is 1"),
        ({"attention.recurrent_layers": [True]}, "recurrent_layers"),
    ],
)
async def test_other_files_of_qwen_are_refused_by_name(
    reference: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    ref = reference("qwen3.5")
    metadata = qwen_metadata(fields_of(ref.path), RECURRENT) | change
    kept = {key: value for key, value in metadata.items() if value is not None}
    path = write_hybrid(tmp_path, "qwen35", kept, qwen_tensors(ref.path, "qwen35"))
    with pytest.raises(ConfigError, match=message):
        await start(path)
