"""Which folders and files of adapters are read: none outside of the root, however they are named or linked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import InvalidRequest, ModelNotFound
from executors.contract import ConfigError
from server.lora.files import CONFIG, GGUF, WEIGHTS, below, copy_files, own_template, weights_file
from tests.server.lora.lora_files import write_adapter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_adapter(tmp_path / "outside" / "secret", "secret")
    write_adapter(tmp_path / "root" / "one")
    write_adapter(tmp_path / "root" / "team" / "two")
    return tmp_path / "root"


@pytest.mark.parametrize("said", ["one", "team/two", "./one", "one/", "team/../one"])
def test_folders_below_the_root(root: Path, said: str) -> None:
    assert below(root, said) == (root / said).resolve()


def test_an_absolute_path_below_the_root(root: Path) -> None:
    assert below(root, str(root / "one")) == root / "one"


@pytest.mark.parametrize(
    "said", ["", " ", ".", "..", "../outside/secret", "/etc", "one\0", "team/../../outside/secret"]
)
def test_paths_that_lead_out(root: Path, said: str) -> None:
    with pytest.raises(InvalidRequest, match="below the server's --lora-root") as caught:
        below(root, said)
    assert caught.value.status == 400 and str(root) not in caught.value.message


def test_a_link_that_leads_out(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside" / "secret")
    (root / "inside").symlink_to(root / "one")
    with pytest.raises(InvalidRequest):
        below(root, "link")
    assert below(root, "inside") == root / "one"


@pytest.mark.parametrize("said", ["nowhere", "one/nowhere", f"one/{CONFIG}"])
def test_folders_that_are_not_there(root: Path, said: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        below(root, said)
    assert str(root) not in caught.value.message


def test_a_root_that_is_a_link_itself(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    folder = below(link, "one")
    copy_files(folder, root.parent / "copy", 1000, link)
    assert (root.parent / "copy" / WEIGHTS).read_text() == "a"


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "chat_template.jinja"])
def test_a_file_that_is_a_link_out_of_the_root(root: Path, name: str) -> None:
    (root / "one" / name).unlink(missing_ok=True)
    (root / "one" / name).symlink_to(root.parent / "outside" / "secret" / WEIGHTS)
    with pytest.raises(InvalidRequest, match=f"{name} lies outside"):
        copy_files(root / "one", root.parent / "copy", 1000, root)
    copy_files(root / "one", root.parent / "other", 1000, None)  # the operator's may link where they like
    assert (root.parent / "other" / name).read_text() == "secret"


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_is_missing(root: Path, name: str) -> None:
    (root / "one" / name).unlink()
    with pytest.raises(InvalidRequest, match=f"no {name}"):
        copy_files(root / "one", root.parent / "copy", 1000, root)


def test_what_is_no_file(root: Path) -> None:
    (root / "one" / WEIGHTS).unlink()
    os.mkfifo(root / "one" / WEIGHTS)  # opened to read, it would wait for a writer
    with pytest.raises(InvalidRequest, match="is not a file"):
        copy_files(root / "one", root.parent / "copy", 1000, root)
    (root / "team" / "two" / CONFIG).unlink()
    (root / "team" / "two" / CONFIG).mkdir()
    with pytest.raises(InvalidRequest, match="is not a file"):
        copy_files(root / "team" / "two", root.parent / "other", 1000, root)


def test_pickled_weights(root: Path) -> None:
    (root / "one" / WEIGHTS).rename(root / "one" / "adapter_model.bin")
    with pytest.raises(InvalidRequest, match=r"adapter_model.bin: pickled weights are not read"):
        copy_files(root / "one", root.parent / "copy", 1000, root)


def test_a_file_that_is_too_large(root: Path) -> None:
    write_adapter(root / "one", "x" * 1001)
    with pytest.raises(InvalidRequest, match="1001 bytes, more than the 1000"):
        copy_files(root / "one", root.parent / "copy", 1000, root)


def test_the_template_that_an_adapter_brings(tmp_path: Path) -> None:
    assert own_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    assert own_template(tmp_path) == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert own_template(tmp_path) == "new"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"chat_template.jinja is not text"):
        own_template(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{" * 10)
    with pytest.raises(ConfigError, match=r"tokenizer_config.json is not JSON"):
        own_template(tmp_path)


def test_a_gguf_file_below_the_root(root: Path) -> None:
    (root / "sql.gguf").write_text("gguf")
    (root / "text.txt").write_text("text")
    assert below(root, "sql.gguf") == root / "sql.gguf" == weights_file(root / "sql.gguf")
    copy_files(root / "sql.gguf", root.parent / "copy", 1000, root)
    assert [one.name for one in (root.parent / "copy").iterdir()] == [GGUF]
    with pytest.raises(ModelNotFound):
        below(root, "text.txt")
    (root / "sha256-aa").write_text("GGUF of Ollama's")
    assert below(root, "sha256-aa") == weights_file(root / "sha256-aa")
    (root / "link.gguf").symlink_to(root.parent / "outside" / "secret" / WEIGHTS)
    with pytest.raises(InvalidRequest, match="below the server's --lora-root"):
        below(root, "link.gguf")


def test_a_folder_with_a_gguf_file(root: Path) -> None:
    folder = root / "gguf"
    folder.mkdir()
    (folder / "one.gguf").write_text("gguf")
    assert weights_file(folder) == folder / "one.gguf"
    copy_files(folder, root.parent / "copy", 1000, root)
    assert (root.parent / "copy" / GGUF).read_text() == "gguf"
    (folder / "two.gguf").write_text("gguf")
    with pytest.raises(InvalidRequest, match=r"2 GGUF files: name one of one.gguf, two.gguf"):
        weights_file(folder)
    write_adapter(folder)  # PEFT's form counts before files of other programs
    assert weights_file(folder) == folder / WEIGHTS


def test_pickled_weights_name_the_cure(root: Path) -> None:
    (root / "one" / WEIGHTS).rename(root / "one" / "adapter_model.bin")
    with pytest.raises(InvalidRequest, match=r"adapter_model.bin: .*save_pretrained"):
        copy_files(root / "one", root.parent / "copy", 1000, root)
