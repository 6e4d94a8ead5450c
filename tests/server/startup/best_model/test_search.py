"""A start without a model looks through the folders of other programs; the executor is asked in this process' stead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ModelInfo
from server.model_files import headers
from server.settings.load import load
from server.settings.table import DEFAULTS
from server.startup.best_model import choose, rule, search
from server.system.executor_tool import ToolError
from tests.small_gguf import write_small_gguf
from tests.sparse_model import write_sparse_model

INFO = asdict(ModelInfo("m", "qwen3", 20, 8, 4, 128, 1024, 258, 258, 8192, "bfloat16"))
GOOD = {
    "context": 8192,
    "context_length": 8192,
    "problem": None,
    "generates": True,
    "device": "cpu",
    "threads": 2,
    "info": INFO,
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    return tmp_path / "hub"


def put(hub: Path, name: str, layers: int, **config: Any) -> Path:
    return write_sparse_model(hub / f"models--acme--{name}" / "snapshots" / "abc", layers, **config)


def answers(
    monkeypatch: pytest.MonkeyPatch, rows: Mapping[str, Mapping[str, Any]] | None = None
) -> list[list[str]]:
    """The executor's tool, which finds nothing wrong but with `rows`, by the folder's name; returns what it was asked."""
    asked: list[list[str]] = []

    def ask(tool: str, job: Mapping[str, Any], timeout: float | None = None) -> Any:
        assert (
            tool == "fits" and job["compile"] is False and timeout is not None and timeout <= search.LIMIT_S
        )
        names = [Path(one["model"]).parts[-3].removeprefix("models--acme--") for one in job["configs"]]
        asked.append(names)
        sizes = [(Path(one["model"]) / "model.safetensors").stat().st_size for one in job["configs"]]
        return [
            {**GOOD, "parameters": size // 2, "loaded_bytes": size, **(rows or {}).get(name, {})}
            for name, size in zip(names, sizes, strict=True)
        ]

    monkeypatch.setattr(search, "ask", ask)
    return asked


def test_nothing_on_this_disk_is_the_default_model_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ask", None)
    said: list[str] = []
    began = time.process_time()
    choice = choose(DEFAULTS, said.append)
    assert (choice.model, choice.why, said) == (None, "", [])
    assert time.process_time() - began < 0.2


def test_the_largest_that_chats(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, layers in {"small": 13, "large": 20, "larger-base": 30, "Embedding-large": 30}.items():
        put(hub, name, layers)
    (put(hub, "without-template", 31) / "tokenizer_config.json").unlink()
    (put(hub, "of-sentences", 32) / "modules.json").write_text("[]")
    asked, said = answers(monkeypatch), []
    choice = choose(DEFAULTS, said.append)
    assert asked == [["large", "small"]]
    assert choice.model is not None and choice.model.name == "acme/large" and not choice.model.is_default
    assert choice.model.path == hub / "models--acme--large" / "snapshots" / "abc"
    assert (
        "of 6 models on this disk the largest that chats and fits into memory (0.25B parameters, about"
        in choice.why
    )
    assert choice.model.why == choice.why
    assert said == ["no model is named: looking for the best of 6 on this disk"]


def test_what_the_executor_refuses_is_passed_over(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(search._AT_ONCE + 2):
        put(hub, f"m{number}", 40 - 3 * number)
    bad = {f"m{number}": {"problem": "model_type 'm' is not supported"} for number in range(search._AT_ONCE)}
    asked = answers(monkeypatch, bad)
    choice = choose(DEFAULTS)
    assert choice.model is not None and choice.model.name == f"acme/m{search._AT_ONCE}"
    assert len(asked) == 2, "the rest is asked about where none of the first will do"


def test_a_tokenizer_that_would_end_the_start_is_passed_over(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (put(hub, "torn", 20) / "tokenizer.json").write_text("{")
    config = put(hub, "odd-template", 19) / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{% for m", "{% fur m"))
    put(hub, "whole", 13)
    answers(monkeypatch)
    choice = choose(DEFAULTS)
    assert choice.model is not None and choice.model.name == "acme/whole"


def test_none_that_will_do_is_said(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(hub, "slow", 20)
    answers(monkeypatch, {"slow": {"loaded_bytes": 40e9}})
    choice = choose(DEFAULTS)
    assert choice.model is None
    assert choice.why == (
        "the default model is served: no other one on this disk will do unasked (acme/slow: about 0.5 tokens per second on "
        "this CPU)"
    )


@pytest.mark.parametrize("answer", ["no kernels yet", "no answer"])
def test_without_the_executors_answer_sizes_decide(
    answer: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that are not compiled yet take a minute: a start does not wait for that twice."""
    put(hub, "small", 13)
    put(hub, "large", 20)

    def ask(*_: Any, **__: Any) -> Any:
        if answer == "no answer":
            raise ToolError("its process ended with signal SIGKILL")
        return None

    monkeypatch.setattr(search, "ask", ask)
    choice = choose(DEFAULTS)
    assert choice.model is not None and choice.model.name == "acme/large"
    monkeypatch.setattr(search, "free_memory", lambda device: 1 << 30)
    assert choose(DEFAULTS).model is None, "weights that would leave too little"


@pytest.mark.parametrize(
    "flags",
    [
        {"executor": "echo"}, {"load_format": "dummy"}, {"lora_modules": ["a=/x"]}, {"tokenizer": "/t"},
        {"revision": "v1"}, {"chat_template": "chatml"}, {"model": "cohort-tiny"},
    ],
)  # fmt: skip
def test_other_executors_and_settings_of_one_model_keep_the_default(
    flags: dict[str, Any], hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hub, "large", 20)
    monkeypatch.setattr(search, "ask", None)
    settings, _ = load(flags, {})
    assert choose(settings).model is None


def test_a_search_ends_in_time(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand headers on a slow disk: what was seen by then counts."""
    for number in range(4):
        put(hub, f"m{number}", 20)
    clock = [0.0]
    monkeypatch.setattr(search.time, "monotonic", lambda: clock[0])
    read = search.read_header

    def slowly(path: Path) -> headers.Header:
        clock[0] += 6
        return read(path)

    monkeypatch.setattr(search, "read_header", slowly)
    monkeypatch.setattr(search, "ask", lambda *_, **__: None)
    assert choose(DEFAULTS).model is not None
    assert clock[0] == 12


def test_a_gguf_file_by_its_header(tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama").mkdir()
    plain = write_small_gguf(tmp_path / "llama" / "chat-Q8_0.gguf")
    header = headers.read_header(plain)
    assert header.chat_template and header.other_use is None and header.experts is None and header.changed > 0
    embedding = write_small_gguf(tmp_path / "llama" / "vectors.gguf", **{"pooling_type": 1})
    assert "pooling_type" in (headers.read_header(embedding).other_use or "")
    mute = write_small_gguf(tmp_path / "llama" / "mute.gguf", **{"tokenizer.chat_template": None})
    assert not headers.read_header(mute).chat_template
    monkeypatch.setattr(rule, "LEAST_PARAMETERS", 1000)

    def ask(tool: str, job: Mapping[str, Any], timeout: float | None = None) -> Any:
        info = {**INFO, "vocab_size": 1500, "logits_width": 1500}
        return [{**GOOD, "parameters": 10**6, "loaded_bytes": 10**6, "info": info} for _ in job["configs"]]

    monkeypatch.setattr(search, "ask", ask)
    choice = choose(DEFAULTS)
    assert choice.model is not None and (choice.model.path, choice.model.name) == (plain, "chat-Q8_0")


def test_the_next_start_does_not_search_again(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(hub, "small", 13)
    asked, said = answers(monkeypatch), []
    first = choose(DEFAULTS, said.append)
    assert choose(DEFAULTS, said.append) == first and len(asked) == len(said) == 1
    settings, _ = load({"max_model_len": "4096"}, {})
    assert choose(settings).model is not None and len(asked) == 2, "another setting"
    large = put(hub, "large", 20)
    found = choose(DEFAULTS).model
    assert found is not None and found.name == "acme/large" and len(asked) == 3, "another model"
    (large / "tokenizer.json").unlink()
    found = choose(DEFAULTS).model
    assert found is not None and found.name == "acme/small" and len(asked) == 4, "a file of it is gone"
    free = search.free_memory("auto")
    monkeypatch.setattr(search, "free_memory", lambda device: free // 2)
    assert choose(DEFAULTS).model is not None and len(asked) == 5, "much less memory"
    monkeypatch.setattr(search, "free_memory", lambda device: free)
    assert choose(DEFAULTS).model is not None and len(asked) == 6, "much more: a larger one may fit now"


def test_that_none_will_do_is_remembered_and_a_guess_is_not(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hub, "slow", 20)
    asked = answers(monkeypatch, {"slow": {"loaded_bytes": 40e9}})
    first = choose(DEFAULTS)
    assert "slow" in first.why and choose(DEFAULTS) == first and len(asked) == 1
    put(hub, "small", 13)
    monkeypatch.setattr(search, "ask", lambda *_, **__: None)
    assert choose(DEFAULTS).model is not None
    asked = answers(monkeypatch)
    assert choose(DEFAULTS).model is not None and len(asked) == 1
