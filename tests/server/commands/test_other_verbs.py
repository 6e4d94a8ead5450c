"""Verbs of other servers: one line says what does it instead, and names a command that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cohort_server import command_line
from server.commands import other_verbs
from server.commands.other_verbs import instead_of
from tests.server.commands.test_list import put, repository
from tests.server.model_files.ollama_store import write_model

KNOWN = set(command_line.VERBS)


@pytest.mark.parametrize("verb", [*other_verbs._INSTEAD, *other_verbs._REMOVE])
def test_what_does_it_instead_exists(verb: str) -> None:
    assert verb not in KNOWN
    line = instead_of([verb], KNOWN)
    assert line.startswith(f"cohort {verb}: ") and "\n" not in line and len(line) < 200
    assert set(re.findall(r"`cohort ([\w-]+)", line)) <= KNOWN


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("bogus", "no such command 'bogus'; see cohort --help"),
        ("lst", "no such command 'lst'; did you mean list?; see cohort --help"),
        ("rum", "no such command 'rum'; did you mean run?; see cohort --help"),
        ("PS", "no such command 'PS'; did you mean ps?; see cohort --help"),
        ("pul", "no such command 'pul'; did you mean pull?; see cohort --help"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B is no command; `cohort serve Qwen/Qwen3-4B` or `cohort run Qwen/Qwen3-4B`?"),
        ("my model.gguf", "my model.gguf is no command; `cohort serve 'my model.gguf'` or `cohort run 'my model.gguf'`?"),
    ],
)  # fmt: skip
def test_words_that_are_no_verbs(word: str, line: str) -> None:
    assert instead_of([word], KNOWN) == line


def test_where_a_model_is_to_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    put(repository(tmp_path / "hub", "acme/small") / "model.safetensors", b"x")
    put(repository(tmp_path / "hub", "acme/small-GGUF") / "small-Q8_0.gguf", b"x")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    file = put(tmp_path / "llama" / "one model.gguf", b"x")
    write_model(tmp_path / "ollama", "llama3.2", [("model", b"GGUF")])
    for name, removal in {
        "acme/small": f"rm -r {tmp_path}/hub/models--acme--small",
        "small-Q8_0": f"rm -r {tmp_path}/hub/models--acme--small-GGUF",
        "one model": f"rm -r '{file}'",
        "llama3.2": "`ollama rm llama3.2:latest`",
        "other": "no model on this disk is called other",
    }.items():
        assert removal in instead_of(["rm", name], KNOWN)
    assert file.exists() and (tmp_path / "hub" / "models--acme--small").exists(), "nothing is deleted"
