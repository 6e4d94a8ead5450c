"""Checkpoints in every dtype, loaded in every dtype: what arrives is the checkpoint's numbers, rounded once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, ExecutorConfig
from executors.llm.checkpoint.loader import load_model
from executors.llm.checkpoint.weights import load_weights
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from tests.executors.llm.driver import config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def stored(reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint in four dtypes; its config.json names the dtype that it is in (float32 for float64, which configs do not
    know)."""
    original = reference("qwen3-tied-gqa").path
    found = {}
    for name, dtype in {**DTYPES, "float64": torch.float64}.items():
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(original, folder, dirs_exist_ok=True)
        tensors = load_file(original / "model.safetensors")
        save_file({key: value.to(dtype) for key, value in tensors.items()}, folder / "model.safetensors")
        fields = json.loads((folder / "config.json").read_text())
        fields.pop("torch_dtype", None)
        (folder / "config.json").write_text(
            json.dumps({**fields, "dtype": name if name in DTYPES else "float32"})
        )
        found[name] = folder
    return found


def loaded(folder: Path, dtype: torch.dtype) -> Decoder:
    decoder = Decoder(read_config(folder), dtype, torch.device("cpu"))
    load_weights(decoder, folder, lambda *_: None)
    return decoder


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("saved", [*DTYPES, "float64"])
def test_every_pair_of_dtypes(stored: dict[str, Path], saved: str, wanted: str) -> None:
    target = DTYPES[wanted]
    decoder = loaded(stored[saved], target)
    checkpoint = load_file(stored[saved] / "model.safetensors")
    heads = decoder.head_norms()
    for name, tensor in decoder.parameters().items():
        expected = checkpoint[name].to(target)
        assert tensor.dtype is target
        assert torch.equal(tensor, expected.expand_as(tensor) if name in heads else expected), name


@pytest.mark.parametrize("wanted", [*DTYPES, "auto"])
@pytest.mark.parametrize("saved", DTYPES)
def test_the_flag_decides_and_auto_is_the_checkpoints(
    stored: dict[str, Path], saved: str, wanted: str
) -> None:
    model = load_model(config(stored[saved], dtype=wanted), lambda *_: None)
    assert model.info.dtype == (saved if wanted == "auto" else wanted)


def test_a_tensor_of_another_dtype_than_the_rest(stored: dict[str, Path], tmp_path: Path) -> None:
    """Some checkpoints keep their norms in float32."""
    shutil.copytree(stored["float16"], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    norm = torch.full_like(tensors["model.norm.weight"], 1.0, dtype=torch.float32) + 1e-4
    save_file({**tensors, "model.norm.weight": norm}, tmp_path / "model.safetensors")
    assert torch.equal(
        loaded(tmp_path, torch.float32).parameters()["model.norm.weight"],
        norm,
    )


def test_an_unknown_dtype_is_one_line(stored: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="dtype 'int8' is not supported"):
        load_model(ExecutorConfig("llm", model=str(stored["float32"]), dtype="int8"), lambda *_: None)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"])
def test_numbers_beyond_float16_are_refused(stored: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(stored["bfloat16"], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name].view(-1)[3] = 70000.0
    save_file(tensors, tmp_path / "model.safetensors")
    loaded(tmp_path, torch.float32)
    with pytest.raises(ConfigError, match=f"{name} has numbers beyond float16"):
        load_model(config(tmp_path, dtype="float16"), lambda *_: None)
