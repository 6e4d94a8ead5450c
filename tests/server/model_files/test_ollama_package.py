"""What a manifest of Ollama's names beside the model: every type of layer is read, noted or refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError
from server.model_files import ollama
from server.model_files.ollama_package import FILE, SUPPORTED, Package, read_package
from tests.server.model_files.ollama_store import PREFIX, blob, write_model

HI = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}]


def package(store: Path, *layers: tuple[str, Any]) -> Package:
    write_model(store, "m", [("model", b"GGUF model"), *layers])
    found = ollama.find("m", store)
    assert found is not None and found.path is not None and found.path.read_bytes() == b"GGUF model"
    return found.package()


def test_all_that_a_modelfile_says(tmp_path: Path) -> None:
    found = package(
        tmp_path,
        ("adapter", b"GGUF adapter"),
        ("system", "Answer like a pirate."),
        ("params", {"temperature": 0.1, "stop": ["<|x|>"]}),
        ("messages", HI),
        ("template", "{{ .Prompt }}"),
        ("license", "MIT"),
        ("license", "and more"),
    )
    assert found.adapter is not None and found.adapter.read_bytes() == b"GGUF adapter"
    assert (found.name, found.system, found.template) == ("m", "Answer like a pirate.", "{{ .Prompt }}")
    assert found.params == {"temperature": 0.1, "stop": ["<|x|>"]} and list(found.messages) == HI
    assert found.licenses == ("MIT", "and more") and found.notes == ()
    (tmp_path / FILE).write_bytes(found.to_json())
    assert read_package(tmp_path) is None, "a checkpoint with a file of that name"
    (tmp_path / "gguf.json").write_text("{}")
    assert read_package(tmp_path) == found
    (tmp_path / FILE).write_text('{"system": 5}')
    assert read_package(tmp_path) is None


def test_a_model_alone(tmp_path: Path) -> None:
    assert package(tmp_path) == Package("m") and Package("m").digest == ""
    assert read_package(tmp_path) is None


def test_the_older_name_of_a_template_and_the_last_of_several(tmp_path: Path) -> None:
    assert package(tmp_path, ("prompt", "{{ .Prompt }}")).template == "{{ .Prompt }}"
    assert package(tmp_path, ("system", "one"), ("system", "two")).system == "two"


@pytest.mark.parametrize("kind", ["projector", "draft"])
def test_layers_that_are_noted(tmp_path: Path, kind: str) -> None:
    found = package(tmp_path, (kind, b"GGUF"))
    assert len(found.notes) == 1 and f"its {kind} is not used" in found.notes[0]


@pytest.mark.parametrize("kind", ["embed", "json", "license"])
def test_layers_without_effect(tmp_path: Path, kind: str) -> None:
    assert package(tmp_path, (kind, b"{}")).notes == ()


def test_every_type_of_layer_of_ollama_has_a_place() -> None:
    kinds = {
        "model",
        "adapter",
        "projector",
        "template",
        "system",
        "params",
        "messages",
        "license",
        "prompt",
        "json",
        "embed",
        "draft",
    }
    assert set(SUPPORTED) == kinds


@pytest.mark.parametrize("media", ["tensor", "of-tomorrow", "application/vnd.docker.image.rootfs.diff"])
def test_unknown_layers_are_refused_by_name(tmp_path: Path, media: str) -> None:
    whole = media if "/" in media else PREFIX + media
    with pytest.raises(ConfigError, match=f"^Ollama's model m: .*'{whole}', which is not supported"):
        package(tmp_path, (media, b""))
    write_model(tmp_path, "n", [("tensor", b"")])
    with pytest.raises(ConfigError, match=r"Ollama's model n: .*tensor"):
        ollama.find("n", tmp_path)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([("adapter", b"a"), ("adapter", b"b")], "2 layers of type adapter; one is supported"),
        ([("model", b"b")], "2 layers of type model"),
        ([("params", b"[1]")], "its layer params is not a JSON object"),
        ([("params", b"{")], "its layer params is not a JSON object"),
        ([("messages", {})], "its layer messages is not a JSON list"),
        ([("messages", [{"role": "tool", "content": "x"}])], "message 0 needs a role"),
        ([("messages", [*HI, {"role": "user", "content": "x", "images": ["a"]}])], "message 2 has 'images'"),
        ([("system", b"\xff\xfe")], "is not text in UTF-8"),
    ],
)
def test_faults_are_named(tmp_path: Path, layers: list[tuple[str, Any]], why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Ollama's model m: .*{why}"):
        package(tmp_path, *layers)


def test_a_blob_that_is_missing(tmp_path: Path) -> None:
    write_model(tmp_path, "m", [("model", b"GGUF"), ("system", "text")])
    (tmp_path / "blobs" / blob(tmp_path, b"text").replace(":", "-")).unlink()
    found = ollama.find("m", tmp_path)
    with pytest.raises(ConfigError, match=r"its layer system, .*, cannot be read"):
        assert found and found.package()
