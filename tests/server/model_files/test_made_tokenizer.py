"""The tokenizer.json that grammars refer to, for a model whose tokenizer is made of another file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.text.tokenizer import Tokenizer
from server.model_files.made_tokenizer import tokenizer_directory
from server.settings.table import DEFAULTS
from server.startup.core_configs import executor_config
from tests.engine.text.gguf_strings import SENTENCES
from tests.engine.text.kinds import trained


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with vocab.json and merges.txt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parts = json.loads(trained("byte_level"))["model"]
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "vocab.json").write_text(json.dumps(parts["vocab"]))
    (directory / "merges.txt").write_text("\n".join(map(" ".join, parts["merges"])))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "chat_template": "t",
        "add_bos_token": True,
        "bos_token": "<s>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_it_gives_the_same_ids_and_is_made_once(model: Path) -> None:
    before = sorted(model.iterdir())
    made = tokenizer_directory(model)
    assert made != model and sorted(model.iterdir()) == before
    ours, its = Tokenizer.load(model), Tokenizer.load(made)
    for text in (*SENTENCES, "<|endoftext|><s>"):
        assert its.encode(text) == ours.encode(text)
        assert its.encode(text, False) == ours.encode(text, False)
    assert its.raw.get_vocab() == ours.raw.get_vocab()
    assert (its.eos_token_ids, its.special_tokens) == (ours.eos_token_ids, ours.special_tokens)
    assert its.added_tokens == ours.added_tokens and its.chat_template == ours.chat_template
    when = (made / "tokenizer.json").stat().st_mtime_ns
    assert tokenizer_directory(model) == made and (made / "tokenizer.json").stat().st_mtime_ns == when
    (model / "tokenizer_config.json").write_text("{}")
    assert tokenizer_directory(model) != made


def test_grammars_of_a_model_with_a_tokenizer_json_use_its_own(model: Path) -> None:
    assert executor_config(DEFAULTS, model).tokenizer == str(tokenizer_directory(model))
    (model / "tokenizer.json").write_text(trained("byte_level"))
    assert executor_config(DEFAULTS, model).tokenizer == ""
    assert tokenizer_directory(model) == model


def test_a_tokenizer_that_cannot_be_made_stays_where_it_is(model: Path, tmp_path: Path) -> None:
    (model / "vocab.json").write_text("{")
    assert tokenizer_directory(model) == model
    assert tokenizer_directory(tmp_path / "nothing") == tmp_path / "nothing"
