"""The directory that a GGUF file is served from."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from executors.llm.model.gguf_source import config_path, model_path, read_source
from server.model_files import private_cache
from server.model_files.prepared import is_gguf, model_directory, model_file
from tests.small_gguf import write_small_gguf


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_gguf(tmp_path_factory.mktemp("gguf") / "small-Q8_0.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cohort" / "gguf"


def test_it_holds_the_tokenizer_and_names_the_weights(small: Path, cache: Path) -> None:
    directory = model_directory(small)
    assert directory.parent == cache
    assert {path.name for path in directory.iterdir()} == {
        "tokenizer.json", "tokenizer_config.json", "generation_config.json", "gguf.json",
    }  # fmt: skip
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.decode(tokenizer.encode("Hello there")) == "Hello there"
    assert tokenizer.chat_template is not None
    assert read_source(directory).path == small
    assert model_file(directory) == small
    assert model_path(directory) == config_path(directory) == small, "what messages name"
    assert cache.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("adapter", "a LoRA adapter, no model; .*--lora-modules NAME=.*x.gguf$"),
        ("mmproj", "general.type 'mmproj': no model"),
        ("model", "tokenizer.ggml.model: missing"),
    ],
)
def test_a_file_that_is_no_model_is_named_so(tmp_path: Path, kind: str, why: str) -> None:
    """Not by its lack of a tokenizer, which an encoder of images or an adapter never has."""
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=f"x.gguf: {why}"):
        model_directory(path)


def test_it_is_made_once(small: Path) -> None:
    directory = model_directory(small)
    before = (directory / "tokenizer.json").stat().st_ino
    assert model_directory(small) == directory
    assert (directory / "tokenizer.json").stat().st_ino == before


def test_a_directory_is_its_own(tmp_path: Path) -> None:
    assert model_directory(tmp_path) == model_path(tmp_path) == tmp_path
    assert config_path(tmp_path) == tmp_path / "config.json"


def test_a_changed_file_gets_another_directory(small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(small, copy)
    first = model_directory(copy)
    assert first != model_directory(small), "each names its own file"
    write_small_gguf(copy, **{"general.name": "another"})
    second = model_directory(copy)
    assert second != first and read_source(second).path == copy
    with copy.open("ab") as file:
        file.write(bytes(32))
    assert model_directory(copy) not in (first, second)


def test_a_truncated_file_is_refused_though_its_directory_is_there(small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(small, copy)
    model_directory(copy)
    with copy.open("r+b") as file:
        file.truncate(copy.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"copy\.gguf: truncated: tensor "):
        model_directory(copy)


def test_directories_of_files_that_are_gone_are_deleted(small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(small, copy)
    old = model_directory(copy)
    copy.unlink()
    assert model_directory(small).is_dir() and not old.exists()


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_small_gguf(tmp_path / "odd.gguf", **{"tokenizer.ggml.pre": "no-such-thing"})
    with pytest.raises(ConfigError, match=r"odd\.gguf: tokenizer\.ggml\.pre: .*no-such-thing.*--tokenizer$"):
        model_directory(path)
    directory = model_directory(path, own_tokenizer=False)
    assert [one.name for one in directory.iterdir()] == ["gguf.json"]
    with pytest.raises(ConfigError, match="no-such-thing"):
        model_directory(path)


def test_several_processes_at_once(small: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from server.model_files.prepared import model_directory\n"
        "print(model_directory(Path(sys.argv[1])))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(small)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    made = {process.communicate(timeout=50)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    [directory] = cache.iterdir()
    assert made == {str(directory)}
    Tokenizer.load(directory)


def test_a_cache_that_others_can_write_to_is_not_used(small: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    private_cache._temporary_folder.cache_clear()
    directory = model_directory(small)
    assert cache not in directory.parents and list(cache.iterdir()) == []
    assert directory.parent.stat().st_mode & 0o077 == 0
    assert (directory / "tokenizer.json").is_file()


def test_a_cache_that_cannot_be_made(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (model_directory(small) / "gguf.json").is_file()


def test_what_is_gguf(small: Path, tmp_path: Path) -> None:
    blob = tmp_path / f"sha256-{hashlib.sha256().hexdigest()}"
    shutil.copy(small, blob)
    other = tmp_path / "config.json"
    other.write_text(json.dumps({}))
    assert is_gguf(small) and is_gguf(blob) and not is_gguf(other) and not is_gguf(tmp_path)
    assert is_gguf(tmp_path / "absent.gguf") is False
