"""The first column of `cohort list` is what `cohort serve` takes: each row of a disk with everything on it is walked through."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors import tiny
from server.commands.list import command
from server.commands.list.table import shell_word, show_models, table
from server.hub import HubModel
from server.model_files.folders import Found, find, roots
from server.model_files.short_names import FolderIndex
from server.settings.load import SettingsError
from server.settings.table import DEFAULTS
from server.startup.model_loader import model_source
from server.startup.model_source import LocalModel
from tests.server.commands.test_list import put, repository
from tests.server.model_files.ollama_store import write_model

LONG = "organisation-with-a-name/" + "and-a-model-whose-name-is-longer-than-the-column" * 2


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of four programs, in which the same names occur again and again."""
    home = tmp_path / "home"
    for name, folder in {
        "HF_HUB_CACHE": "hub",
        "LM_STUDIO_MODELS": "studio",
        "OLLAMA_MODELS": "ollama",
        "LLAMA_CACHE": "llama",
    }.items():
        monkeypatch.setenv(name, str(home / folder))
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    checkpoint = {"model.safetensors": b"x", "config.json": {"torch_dtype": "bfloat16"}}
    for name in ("acme/small", "gpt2", LONG):
        snapshot = repository(home / "hub", name)
        for file, content in checkpoint.items():
            put(snapshot / file, content)
    quantized = repository(home / "hub", "acme/small-GGUF")
    for file in ("small-Q4_K_M.gguf", "small-Q8_0.gguf", "twice.gguf"):
        put(quantized / file, b"GGUF" + file.encode())
    (home / "hub" / "models--acme--empty").mkdir()
    studio = home / "studio" / "acme"
    put(studio / "a GGUF" / "only here-Q6_K.gguf", b"GGUF1")
    put(studio / "b-GGUF" / "twice.gguf", b"GGUF2")
    put(studio / "b-GGUF" / "-dash.gguf", b"GGUF3")
    put(studio / "b-GGUF" / "llama3.2.gguf", b"GGUF4")
    put(studio / "b-GGUF" / "cohort-tiny.gguf", b"GGUF5")
    put(studio / "b-GGUF" / "of-this-folder.gguf", b"GGUF6")
    put(studio / "b-GGUF" / "new\nline.gguf", b"GGUF7")
    put(studio / "b-GGUF" / os.fsdecode(b"latin-\xe9.gguf"), b"GGUF8")
    put(cwd / "of-this-folder", b"no model")
    for file, content in checkpoint.items():
        put(studio / "MLX-model" / file, content)
    for part in (1, 2):
        put(home / "llama" / f"big-Q4_0-0000{part}-of-00002.gguf", b"GGUF9%d" % part)
    put(home / "llama" / "small-Q4_K_M.gguf", b"GGUF10")
    put(home / "llama" / "model.Q4.gguf", b"GGUF11")
    for name in ("llama3.2", "qwen3:0.6b"):
        write_model(home / "ollama", name, [("model", b"GGUF" + name.encode())])
    return home


def named(disk: Path) -> list[tuple[Found, str]]:
    others = list(find(roots(os.environ, disk)))
    return list(zip(others, command._short_names([], others), strict=True))


def test_each_row_is_served_by_its_first_column(disk: Path) -> None:
    rows = named(disk)
    assert len(rows) > 15
    for found, short in rows:
        source = model_source(replace(DEFAULTS, model=short))
        if isinstance(source, HubModel):
            assert (source.label, found.source) == (found.name, "Hugging Face")
        else:
            assert source.path == found.path, short
    assert len({short for _, short in rows}) == len(rows)


def test_the_names_are_short(disk: Path) -> None:
    by_path = {str(found.path): short for found, short in named(disk)}
    short = set(by_path.values())
    assert {
        "acme/small", "gpt2", "small-Q8_0", "only here-Q6_K", "MLX-model", "big-Q4_0", "model.Q4", "llama3.2", "qwen3:0.6b"
    } <= short  # fmt: skip
    by_file = {Path(path).name: name for path, name in by_path.items()}
    for file in ("twice.gguf", "-dash.gguf", "cohort-tiny.gguf", "of-this-folder.gguf", "new\nline.gguf"):
        assert Path(by_file[file]).is_absolute() or by_file[file] == file, file
    # Two files of that name, and a model of Ollama's.
    assert "small-Q4_K_M" not in short and Path(by_file["llama3.2.gguf"]) != Path("llama3.2")


def test_a_name_of_several_models_names_their_paths(disk: Path) -> None:
    with pytest.raises(
        Exception,
        match=r"^twice: 2 models on this disk have this name; give the path of one: /.*twice.gguf, /",
    ) as error:
        model_source(replace(DEFAULTS, model="twice"))
    assert "\n" not in str(error.value)
    with pytest.raises(SettingsError, match="no such directory or file"):
        model_source(replace(DEFAULTS, model="not-here"))


def test_a_short_name_costs_nothing_where_another_rule_knows_it(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.startup.model_source.folder_index", None)
    for name in ("cohort-tiny", "acme/other", str(disk / "llama" / "small-Q4_K_M.gguf"), "qwen3:0.6b"):
        assert model_source(replace(DEFAULTS, model=name)) is not None


def test_of_ollamas_models_the_package_counts(disk: Path) -> None:
    index = FolderIndex(find(roots(os.environ, disk)))
    [found] = [one for one in index.named("llama3.2") if one.source == "Ollama"]
    source = model_source(replace(DEFAULTS, model="llama3.2:latest"))
    assert (
        isinstance(source, LocalModel)
        and source.package is not None
        and source.package.digest == found.package
    )


@pytest.mark.parametrize(
    "name",
    ["plain", "with space", "it's", "new\nline", os.fsdecode(b"latin-\xe9"), "$(rm)", "a\\b\t", "\x1b[31m"],
)
def test_a_shell_reads_the_name_back(name: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {shell_word(name)}"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(name)
    assert shell_word(name).isprintable()


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_no_name_is_cut_or_folded(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    path = "/a/folder/" + "very/" * 30 + "deep-Q4_K_M.gguf"
    rows: list[dict[str, Any]] = [
        {"short": name, "format": "GGUF Q4_K_M", "size": 2**31, "context": context, "source": "LM Studio", "problem": problem,
         "chosen": name == "short"}
        for name, context, problem in (
            ("short", 40960, None), (path, None, "1 of 2 parts are missing"), ("two words", 8192, None)
        )
    ]  # fmt: skip
    show_models(rows, "of 3 models")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == "short" and line.split()[1] == "*" and "40,960" in line for line in lines)
    assert path in [line.rstrip() if columns != "200" else line.partition("  ")[0] for line in lines]
    assert any(line.startswith("'two words'  ") for line in lines)
    assert f"{path}: 1 of 2 parts are missing" in lines
    assert lines[-1] == "* what `cohort serve` serves without a name: of 3 models"


def test_columns_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a", "1", "x"), ("b" * 31, "22", "yy")]
    assert table(("N", "SIZE", "C"), rows, right=(1,)) == [
        f"{'N':<30}  SIZE  C",
        f"{'a':<30}     1  x",
        "b" * 31,
        f"{'':<30}    22  yy",
    ]


def test_the_default_model_and_the_embedded_one(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(disk / "SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
    monkeypatch.setattr("server.model_files.default_model.find", lambda: file)
    own = list(command._own())
    assert command._short_names(own, []) == ["SmolLM2-135M-Instruct", "cohort-tiny"]
    sources = [model_source(replace(DEFAULTS, model=name)) for name in command._short_names(own, [])]
    assert [one.path for one in sources if isinstance(one, LocalModel)] == [file, tiny.weights_dir()]
