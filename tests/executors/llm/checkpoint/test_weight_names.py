"""Directories whose weights have other names than usual are the same model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.weights import load_weights, settle_config
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.tools.describe import describe
from tests.executors.checkpoints import LLAMA, write_checkpoint
from tests.executors.llm.driver import config

FILE = "model.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("source"), LLAMA)


def _split(path: Path, *names: str) -> None:
    """Put the tensors into files of these names in turn."""
    tensors = load_file(path / FILE)
    (path / FILE).unlink()
    for number, name in enumerate(names):
        part = {key: tensors[key] for key in sorted(tensors)[number :: len(names)]}
        save_file(part, path / name)


def _other(path: Path, name: str) -> None:
    """A file that is no part of the model, with a tensor of it."""
    save_file({"model.norm.weight": torch.zeros(3)}, path / name)


def _indexed(path: Path, index: str) -> None:
    _split(path, "x.safetensors", "y.safetensors")
    where = {key: name for name in ("x.safetensors", "y.safetensors") for key in load_file(path / name)}
    (path / index).write_text(json.dumps({"weight_map": where}))
    _other(path, "z.safetensors")


def _shards(path: Path) -> None:
    _split(path, *(f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)))


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "shards without an index": _shards,
    "one file of another name": lambda path: _split(path, "foo.safetensors"),
    "pytorch_model": lambda path: _split(path, "pytorch_model.safetensors"),
    "two files": lambda path: _split(path, "body.safetensors", "head.safetensors"),
    "another index": lambda path: _indexed(path, "pytorch_model.safetensors.index.json"),
    "Mistral's name, usual tensors": lambda path: _split(path, "consolidated.safetensors"),
    "a second copy beside shards": lambda path: (_shards(path), _other(path, "consolidated.safetensors"))[0],
    "an adapter beside it": lambda path: (_split(path, "foo.safetensors"), _other(path, "adapter_model.safetensors"))[0],
}  # fmt: skip


def _loaded(path: Path) -> dict[str, torch.Tensor]:
    decoder = Decoder(settle_config(read_config(path), path), torch.float32, torch.device("cpu"))
    assert load_weights(decoder, path, lambda *_: None) is None
    return {name: tensor.clone() for name, tensor in decoder.parameters().items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_the_same_model(layout: str, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(source, path)
    LAYOUTS[layout](path)
    assert not (path / FILE).exists()
    found, expected = _loaded(path), _loaded(source)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    facts = describe(config(path))["checkpoint"]
    assert facts["problem"] is None and facts["bytes"] == describe(config(source))["checkpoint"]["bytes"]


def _gap(path: Path) -> None:
    _shards(path)
    (path / "model-00002-of-00003.safetensors").unlink()


def _mistral(path: Path) -> None:
    (path / FILE).unlink()
    save_file({"tok_embeddings.weight": torch.zeros(2, 2)}, path / "consolidated.safetensors")


def _twice(path: Path) -> None:
    _split(path, "fp16.safetensors")
    shutil.copy(path / "fp16.safetensors", path / "fp32.safetensors")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a shard is missing": (_gap, "/model-00002-of-00003.safetensors is missing: there are 2 of 3 shards"),
    "Mistral's own layout": (_mistral, "/consolidated.safetensors: its tensors (tok_embeddings.weight, ...)"),
    "a tensor in two files": (
        _twice,
        "/fp32.safetensors: tensor model.embed_tokens.weight is in fp16.safetensors, too",
    ),
    "an adapter alone": (
        lambda path: (path / FILE).rename(path / "adapter_model.safetensors") and None,
        ": no weights; supported: safetensors",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(source, path)
    break_, words = FAULTS[fault]
    break_(path)
    with pytest.raises(ConfigError) as error:
        Checkpoint(path)
    assert str(error.value).startswith(f"{path}{words}") and "\n" not in str(error.value)
    assert describe(config(path))["checkpoint"]["problem"] == str(error.value)
