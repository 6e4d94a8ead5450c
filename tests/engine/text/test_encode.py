"""Ids of a text: with and without the library's threads, of every kind of tokenizer, those of its own `encode`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.text.tokenizer import Tokenizer
from tests.engine.text.kinds import KINDS, TEXTS, load


@pytest.fixture(params=["false", "0", "", "true", None])
def parallelism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    if request.param is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    else:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", request.param)
    value: str | None = request.param
    return value


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_ids_are_those_of_the_library(kind: str, parallelism: str | None, tmp_path: Path) -> None:
    tokenizer = load(kind, tmp_path)
    for text in [*TEXTS.values(), "", " ", "a\x00b", "one\ntwo" * 50]:
        for special in (True, False):
            theirs = tokenizer.raw.encode(text, add_special_tokens=special).ids
            assert tokenizer.encode(text, special) == theirs, (text, special)


class Counting:
    """The library's tokenizer, which counts its calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._raw = tokenizer.raw
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.calls.append(name)
        return getattr(self._raw, name)


def test_the_short_way_is_taken_in_one_thread_alone(parallelism: str | None, tmp_path: Path) -> None:
    tokenizer = load(min(KINDS), tmp_path)
    tokenizer.raw = counting = Counting(tokenizer)
    tokenizer.encode("some text")
    assert counting.calls == ["encode" if parallelism in ("true", None) else "encode_batch_fast"]


def test_half_a_character_is_refused_in_both_ways(parallelism: str | None, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        load(min(KINDS), tmp_path).encode("a\ud800b")
