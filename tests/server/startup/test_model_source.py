"""What the setting `model` names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from executors.contract import ConfigError
from executors.kernels import compiler
from server.hub import HubModel
from server.model_files import default_model, ollama
from server.model_files.ollama_package import Package
from server.model_files.short_names import models_on_disk
from server.settings.load import SettingsError
from server.settings.table import DEFAULTS
from server.startup import model_source
from server.startup.model_source import LocalModel, find_source, in_folders, tagged_names, with_context
from tests.server.model_files.ollama_store import write_model

TINY = Path("/embedded")


@pytest.fixture(autouse=True)
def _no_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr(default_model, "find", lambda: None)


def find(model: str | None, **more: Any) -> model_source.Source:
    return find_source(dataclasses.replace(DEFAULTS, model=model, **more), TINY)


def gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def test_a_file_by_its_name_or_its_first_bytes(tmp_path: Path) -> None:
    file, blob = gguf(tmp_path / "Small-Q4_0.gguf"), gguf(tmp_path / "sha256-12")
    assert find(str(file)) == LocalModel(file, "Small-Q4_0")
    assert find(str(blob)) == LocalModel(blob, "sha256-12")
    part = gguf(tmp_path / "big-Q4_0-00001-of-00002.gguf")
    assert find(str(part)) == LocalModel(part, "big-Q4_0")
    with pytest.raises(SettingsError, match=r"^--revision v1: .* is a GGUF file, which has no revisions"):
        find(str(file), revision="v1")


def test_parts_of_a_file_that_was_cut_by_bytes(tmp_path: Path) -> None:
    parts = [tmp_path / f"big.Q6_K.gguf.part{number}of2" for number in (1, 2)]
    gguf(parts[0]), parts[1].write_bytes(b"more")
    cure = r"it is a part of a file that was cut: put the parts together first, cat big\.Q6_K\.gguf\.part\* > big\.Q6_K\.gguf"
    with pytest.raises(SettingsError, match=rf"part2of2: this is a file and no GGUF file; {cure}"):
        find(str(parts[1]))
    with pytest.raises(ConfigError, match=rf"part1of2: no GGUF file; {cure}$"):
        find(str(tmp_path))


def test_a_directory_with_gguf_files(tmp_path: Path) -> None:
    one = gguf(tmp_path / "m" / "Small-Q4_0.gguf")
    gguf(tmp_path / "m" / "mmproj-F16.gguf")
    assert find(str(tmp_path / "m")) == LocalModel(one, "Small-Q4_0")
    other = gguf(tmp_path / "m" / "Small-Q8_0.gguf")
    with pytest.raises(
        ConfigError, match=r"/m holds 2 GGUF models; name one of them: Small-Q4_0.gguf \(.*Small-Q8_0.gguf"
    ):
        find(str(tmp_path / "m"))
    assert find(str(other)) == LocalModel(other, "Small-Q8_0")
    preferred = gguf(tmp_path / "m" / "Small-Q4_K_M.gguf")
    assert find(str(tmp_path / "m")) == LocalModel(preferred, "Small-Q4_K_M")


def test_a_checkpoint_comes_before_gguf_files(tmp_path: Path) -> None:
    gguf(tmp_path / "m" / "a.gguf")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "m" / name).touch()
    assert find(str(tmp_path / "m")) == LocalModel(tmp_path / "m", "m")


def checkpoint(path: Path, weights: str = "model.safetensors") -> Path:
    path.mkdir(parents=True)
    for name in ("config.json", weights):
        (path / name).touch()
    return path


@pytest.mark.parametrize(
    "weights", ["foo.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.safetensors"]
)
def test_a_checkpoint_whatever_its_weights_are_called(tmp_path: Path, weights: str) -> None:
    path = checkpoint(tmp_path / "m", weights)
    gguf(path / "a.gguf")
    assert find(str(path)) == LocalModel(path, "m")


def test_an_adapter_beside_a_gguf_file_is_no_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", "adapter_model.safetensors")
    assert find(str(path)) == LocalModel(path, "m")  # its fault is told where it is loaded
    file = gguf(path / "a.gguf")
    assert find(str(path)) == LocalModel(file, "a")


def test_models_in_the_folders_of_a_directory_are_named(tmp_path: Path) -> None:
    top = tmp_path / "m"
    gguf(top / "Q4" / "small-Q4_K_M.gguf")
    gguf(top / "Q8" / "big-00001-of-00002.gguf")
    gguf(top / "Q8" / "big-00002-of-00002.gguf")
    gguf(top / "Q8" / "mmproj-F16.gguf")
    gguf(top / ".cache" / "hidden.gguf")
    checkpoint(top / "checkpoint-500", "foo.safetensors")
    with pytest.raises(ConfigError) as error:
        find(str(top))
    assert str(error.value) == (
        f"{top}: no model lies in the directory itself; name one of those below it: {top}/Q4/small-Q4_K_M.gguf, "
        f"{top}/Q8/big-00001-of-00002.gguf, {top}/checkpoint-500"
    )
    assert find(str(top / "checkpoint-500")) == LocalModel(top / "checkpoint-500", "checkpoint-500")
    file = gguf(top / "own.gguf")
    assert find(str(top)) == LocalModel(file, "own")


def test_the_one_model_of_a_parent_directory_is_named(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "models--a--b" / "snapshots" / "abc")
    with pytest.raises(ConfigError, match=f"name one of those below it: {path}$"):
        find(str(tmp_path / "models--a--b"))
    (tmp_path / "models--a--b" / "config.json").touch()  # for random weights
    assert find(str(tmp_path / "models--a--b"), load_format="dummy").name == "models--a--b"


def test_mistrals_own_layout_is_named(tmp_path: Path) -> None:
    for name in ("params.json", "consolidated.safetensors", "tekken.json"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"Mistral's own layout \(params.json\); take"):
        find(str(tmp_path))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"a LoRA adapter .*, no model; serve .* --lora-modules NAME="):
        find(str(tmp_path))


def test_a_prepared_directory_has_its_files_name(tmp_path: Path) -> None:
    (tmp_path / "gguf.json").write_text(json.dumps({"files": ["/m/Small-Q4_0.gguf"], "header": ""}))
    assert find(str(tmp_path)) == LocalModel(tmp_path, "Small-Q4_0")


def test_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = find(None)
    assert isinstance(found, LocalModel) and (found.path, found.name) == (TINY, "cohort-tiny")
    assert found.note is not None and "`cohort fetch-default`" in found.note
    with pytest.raises(
        SettingsError, match=r"^SmolLM2-135M-Instruct is not here: `cohort fetch-default` fetches"
    ):
        find("SmolLM2-135M-Instruct")
    file = tmp_path / default_model.FILE
    monkeypatch.setattr(default_model, "find", lambda: file)
    assert find(None) == LocalModel(file, "SmolLM2-135M-Instruct", is_default=True)
    assert find("SmolLM2-135M-Instruct") == find(None)
    assert find("cohort-tiny") == LocalModel(TINY, "cohort-tiny")
    assert find(None, executor="echo") == LocalModel(TINY, "cohort-tiny"), (
        "an executor that may not compute it"
    )


def test_ollamas_store(tmp_path: Path) -> None:
    blob = gguf(tmp_path / "ollama" / "blobs" / "sha256-aa")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:aa"}
    for place in (
        "registry.ollama.ai/library/llama3.2/1b",
        "registry.ollama.ai/library/phi/latest",
        "hf.co/acme/x/q8",
    ):
        path = tmp_path / "ollama" / "manifests" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"layers": [layer]}))
    for name in ("llama3.2:1b", "phi", "phi:latest", "acme/x:q8"):
        assert find(name) == LocalModel(blob, name, package=Package(name))
    assert find("hf.co/acme/x:q8") == find("acme/x:q8"), "as `ollama run` has it"
    with pytest.raises(SettingsError) as error:
        find("llama3.2:3b")
    assert str(error.value).startswith(
        "llama3.2:3b: no such file, and Ollama's store on this disk does not have it"
    )
    assert "ORG/NAME:Q4_K_M" in str(error.value)
    blob.unlink()
    with pytest.raises(SettingsError):
        find("llama3.2:1b")


def test_the_store_of_ollamas_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama's installer on Linux makes a service with a home directory of its own; there its models are."""
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ollama, "SERVICE", tmp_path / "service")
    write_model(tmp_path / "service", "phi", [("model", b"GGUF of the service")])
    found = find("phi")
    assert isinstance(found, LocalModel) and found.path.is_relative_to(tmp_path / "service")
    assert [one.name for one in models_on_disk(None)] == ["phi:latest"]
    write_model(tmp_path / "home" / ".ollama" / "models", "phi", [("model", b"GGUF of the user")])
    found = find("phi")
    assert isinstance(found, LocalModel) and found.path.is_relative_to(tmp_path / "home")
    models = list(models_on_disk(None))
    assert [in_folders(one).path for one in models] == [one.path for one in models] and len(models) == 2


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name in ("OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ollama, "SERVICE", tmp_path)
    monkeypatch.setattr(default_model, "environment_folder", lambda: tmp_path)

    def none(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", none)
    monkeypatch.setattr(Path, "home", lambda: none(Path()))
    found = find(None)
    assert isinstance(found, LocalModel) and found.path == TINY
    assert ollama.find("phi") is None
    assert compiler.cache_folder().is_dir(), "a temporary folder"


def test_the_hub() -> None:
    assert find("hf.co/acme/x:Q4_K_M") == find("acme/x:Q4_K_M") == HubModel("acme/x", gguf="Q4_K_M")
    assert find("huggingface.co/acme/x") == HubModel("acme/x")
    assert find("acme/x") == HubModel("acme/x")
    assert find("acme/x:Q4_K_M") == HubModel("acme/x", gguf="Q4_K_M")
    assert find("acme/x/sub/x-Q8_0.gguf") == HubModel("acme/x", gguf="sub/x-Q8_0.gguf")
    link = find("https://huggingface.co/acme/x/blob/v1/x-Q8_0.gguf")
    assert link == HubModel("acme/x", "v1", gguf="x-Q8_0.gguf")
    labels = [one.label for one in (find("acme/x:Q4_K_M"), link) if isinstance(one, HubModel)]
    assert labels == ["acme/x:Q4_K_M", "acme/x/x-Q8_0.gguf"]


@pytest.mark.parametrize(
    "name", ["acme/x/../y.gguf", "acme/x/y.bin", "acme/x:", "./acme/x.gguf", "nothing.gguf"]
)
def test_what_names_nothing(name: str) -> None:
    with pytest.raises(SettingsError, match="no such directory or file, and not a hub name"):
        find(name)


def ollama_model(tmp_path: Path, name: str, params: dict[str, object]) -> LocalModel:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("llama.context_length", 4096)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_model(
        tmp_path / "ollama", name, [("model", (tmp_path / "m.gguf").read_bytes()), ("params", params)]
    )
    found = find(name)
    assert isinstance(found, LocalModel)
    return found


@pytest.mark.parametrize(
    ("params", "given", "length"),
    [
        ({"num_ctx": 2048}, None, 2048),
        ({"num_ctx": 2048}, 1000, 1000),
        ({"num_ctx": 2048}, 3000, 3000),
        ({"num_ctx": 4096}, None, None),
        ({"num_ctx": 131072}, None, None),
        ({}, None, None),
    ],
)
def test_the_length_of_the_context_that_ollamas_model_asks_for(
    tmp_path: Path, params: dict[str, object], given: int | None, length: int | None
) -> None:
    settings = dataclasses.replace(DEFAULTS, max_model_len=given)
    assert with_context(settings, ollama_model(tmp_path, "m", params)).max_model_len == length


@pytest.mark.parametrize(
    ("name", "other"), [("m", ("m:latest", "m")), ("m:latest", ("m", "m:latest")), ("m:7b", None)]
)
def test_both_forms_of_a_name(tmp_path: Path, name: str, other: tuple[str, str] | None) -> None:
    source = ollama_model(tmp_path, name, {})
    assert tagged_names(source, (name,)) == (() if other is None else (other,))
    assert tagged_names(source, ("served",)) == () == tagged_names(LocalModel(tmp_path, name), (name,))
