"""Checkpoints that hold more than a decoder: its fields lie in an object, its tensors under another beginning."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, PrefillInput, Tensor
from executors.llm.checkpoint.weights import fp8_names
from executors.llm.model.config import parse_config
from executors.llm.model.families import family_of
from executors.llm.model.names import BEGINNINGS, WrittenNames
from tests.executors.llm.driver import start

IDS = Tensor.of([[3, 1, 4, 1, 5, 9, 2, 6]], "int32")
GEMMA, MISTRAL = "gemma3-beside-images", "mistral-beside-images"


async def _logits(path: Path) -> np.ndarray:
    executor = await start(path)
    row = (await executor.prefill(PrefillInput(IDS))).last_token_logits()
    await executor.shutdown()
    return row


def _renamed(source: Path, to: Path, name: Callable[[str], str]) -> Path:
    tensors = load_file(source / "model.safetensors")
    save_file({name(key): tensor for key, tensor in tensors.items()}, to / "model.safetensors")
    shutil.copy(source / "config.json", to)
    return to


def _later(name: str) -> str:
    """As later savers write it."""
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    inner = name.removeprefix("language_model.model.")
    return f"model.language_model.{inner}" if inner != name else f"model.{name}"


@pytest.mark.parametrize("shape", [GEMMA, MISTRAL])
@pytest.mark.parametrize(
    "way", [_later, lambda name: name.removeprefix("language_model.")], ids=["later", "plain"]
)
async def test_three_ways_to_name_the_tensors(
    reference: Any, tmp_path: Path, shape: str, way: Callable[[str], str]
) -> None:
    path = reference(shape).path
    names = load_file(path / "model.safetensors")
    assert any(name.startswith("language_model.model.layers.") for name in names), "as published"
    assert any("vision_tower" in name for name in names) and any(
        "multi_modal_projector" in name for name in names
    )
    assert np.array_equal(await _logits(_renamed(path, tmp_path, way)), await _logits(path))


@pytest.mark.parametrize(
    ("shape", "body", "head"),
    [
        (MISTRAL, "language_model.model.", "lm_head."),
        (MISTRAL, "model.language_model.", "language_model.lm_head."),
        (GEMMA, "model.language_model.", "language_model.lm_head."),
    ],
)
async def test_the_head_is_found_beside_any_form_of_the_body(
    reference: Any, tmp_path: Path, shape: str, body: str, head: str
) -> None:
    """A tied one's too: a copy that some savers write."""
    path = reference(shape).path
    tensors = load_file(path / "model.safetensors")
    tensors.setdefault(
        "language_model.lm_head.weight", tensors["language_model.model.embed_tokens.weight"].clone()
    )
    renamed = {
        key.replace("language_model.model.", body).replace("language_model.lm_head.", head): tensor
        for key, tensor in tensors.items()
    }
    assert f"{body}norm.weight" in renamed and f"{head}weight" in renamed
    save_file(renamed, tmp_path / "model.safetensors")
    shutil.copy(path / "config.json", tmp_path)
    assert np.array_equal(await _logits(tmp_path), await _logits(path))


@pytest.mark.parametrize("shape", [GEMMA, "qwen3-tied-gqa"])
async def test_a_head_of_its_own_is_used_whatever_the_configuration_says(
    reference: Any, tmp_path: Path, shape: str
) -> None:
    """As transformers 5 does: it calls the configuration wrong."""
    known = reference(shape)
    tensors = load_file(known.path / "model.safetensors")
    embed = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    head = "language_model.lm_head.weight" if shape == GEMMA else "lm_head.weight"
    save_file({**tensors, head: tensors[embed].flip(0).contiguous()}, tmp_path / "model.safetensors")
    shutil.copy(known.path / "config.json", tmp_path)
    loaded = type(known.model).from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = loaded(torch.from_numpy(IDS.numpy()).long()).logits[0, -1].numpy()
    found = (await _logits(tmp_path)).reshape(-1)
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(found - (await _logits(known.path)).reshape(-1)).max() > 0.1


async def test_it_says_that_only_the_text_is_served(reference: Any) -> None:
    executor = await start(reference(GEMMA).path)
    assert any("text only" in note for note in executor.status().notes)
    await executor.shutdown()


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("language_model.model.norm.weight", None, "is missing"),
        ("language_model.model.layers.0.mlp.up_proj.weight", None, "is missing"),
    ],
)
async def test_faults_name_tensors_as_they_are_written(
    reference: Any, tmp_path: Path, name: str, tensor: torch.Tensor | None, words: str
) -> None:
    path = reference(MISTRAL).path
    shutil.copy(path / "config.json", tmp_path)
    tensors = load_file(path / "model.safetensors")
    assert (name in tensors) == (tensor is None)
    changed = {**tensors, name: tensor}
    save_file({k: v for k, v in changed.items() if v is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=f"tensor {name} {words}"):
        await start(tmp_path)


def _config(**changes: Any) -> dict[str, Any]:
    """What Gemma 3's published 4B says: the rest are defaults."""
    inner = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    return {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {**inner, **changes},
        "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
    }  # fmt: skip


def test_the_fields_that_published_checkpoints_leave_out() -> None:
    shape = parse_config(_config())
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (8, 4, 256)
    assert (shape.vocab_size, shape.context_length, shape.dtype, shape.tied) == (
        262208,
        131072,
        "bfloat16",
        True,
    )
    assert shape.ropes[0].factor == 8.0 and shape.ropes[1].kind == "default"
    assert [layer.window for layer in shape.layers[:6]] == [1024] * 5 + [None]
    assert parse_config(_config(torch_dtype=None)).dtype == "bfloat16"
    assert parse_config(_config(torch_dtype="float16")).dtype == "bfloat16", "what the whole says is newer"
    assert parse_config(_config(dtype="float16")).dtype == "bfloat16"
    assert parse_config({**_config(dtype="float16"), "torch_dtype": None}).dtype == "float16"


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(True, False, True), (False, True, True), (False, False, False), (True, None, True), (None, False, False),
     (None, None, True)],
)  # fmt: skip
def test_ties_are_said_in_either_place(outer: bool | None, inner: bool | None, tied: bool) -> None:
    """And settled by what the files hold."""
    values = _config(**({} if inner is None else {"tie_word_embeddings": inner}))
    assert parse_config({**values, **({} if outer is None else {"tie_word_embeddings": outer})}).tied == tied


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (_config(model_type="ministral3"), "text_config: model_type 'ministral3' is not supported; supported: gemma3_text"),
        (_config(hidden_size=0), "text_config: hidden_size"),
        ({**_config(), "text_config": None}, "field text_config is missing or not an object"),
        ({**_config(), "text_config": [1]}, "field text_config is missing or not an object"),
        ({**_config(), "quantization_config": {"quant_method": "aqlm"}}, r"^config.json: quantization_config \(aqlm\)"),
        ({**_config(), "torch_dtype": "int4"}, "^config.json: dtype 'int4'"),
    ],
)  # fmt: skip
def test_faults_name_the_field_inside(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(values, "config.json")


def test_fp8_tensors_go_by_their_usual_names(tmp_path: Path) -> None:
    """They are compared with the decoder's, whatever the checkpoint calls them."""
    family = family_of("Mistral3ForConditionalGeneration")
    assert family is not None
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    tensors = {
        "language_model.model.embed_tokens.weight": torch.ones(2, 2),
        name: torch.ones(2, 2).to(torch.float8_e4m3fn),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert fp8_names(tmp_path, family) == {"model.layers.0.self_attn.q_proj.weight"}


@pytest.mark.parametrize(
    "architecture", ["GPT2LMHeadModel", "Gemma3ForConditionalGeneration", "Qwen3ForCausalLM"]
)
@pytest.mark.parametrize(
    "begin", [*BEGINNINGS, "_orig_mod.model.", "base_model.model.model.", "module.transformer."]
)
def test_names_go_there_and_back(architecture: str, begin: str) -> None:
    family = family_of(architecture)
    assert family is not None
    names = family.names

    def written(name: str) -> str:
        return begin + f"{name.removeprefix(names.beginning)}.weight"

    body = {written(names.embed), written(names.final_norm)}
    usual = f"{names.attn_norm.format(i=3)}.weight"
    found = WrittenNames(family, body)
    assert found.written(f"{names.embed}.weight") in body
    assert found.usual(found.written(usual)) == usual
    assert (found.written(usual) == usual) == (begin == names.beginning)
    head, parts = f"{names.lm_head}.weight", begin.rstrip(".").split(".")
    assert found.usual(found.written(head)) == head
    for count in range(len(parts) + 1):
        elsewhere = ".".join([*parts[:count], head]).lstrip(".")
        assert WrittenNames(family, {*body, elsewhere}).usual(elsewhere) == head
        assert WrittenNames(family, {*body, elsewhere}).written(head) == elsewhere
    assert WrittenNames(family, set()).written(usual) == usual, "nothing fits: errors name the usual ones"
