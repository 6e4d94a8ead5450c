"""Filling in the middle with real tokenizers: what stands behind goes on from the middle, with no space of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from engine.errors import InvalidRequest
from engine.text.tokenizer import Tokenizer
from server.prepare.fill_in_middle import encode_behind, fill_in_middle
from server.state.server_state import ServedModel
from tests.engine.text.kinds import trained
from tests.server.fakes import House

LINE_KINDS = [
    "byte_level",
    "byte_level_split",
    "sp_bpe_first",
    "sp_bpe_always",
    "sp_bpe_never",
    "unigram_fallback",
]
TEXTS = ["fox", " fox", "fox jumped over", "(x, y)", "\n    code", "größer", "", "  two", "日本語"]


def model_with(folder: Path, kind: str, *marks: str) -> ServedModel:
    raw = RawTokenizer.from_str(trained(kind))
    raw.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    raw.save(str(folder / "tokenizer.json"))
    served = House().state.model
    assert served is not None
    info = replace(served.info, logits_width=100_000)
    return replace(served, tokenizer=Tokenizer.load(folder), info=info)


@pytest.mark.parametrize("kind", LINE_KINDS)
def test_what_stands_behind_reads_as_it_was_written(tmp_path: Path, kind: str) -> None:
    model = model_with(tmp_path, kind)
    before = model.tokenizer.encode("The quick", False)
    start = model.tokenizer.decode(before)
    for text in TEXTS:
        whole = model.tokenizer.decode([*before, *encode_behind(model, text)])
        assert whole.removeprefix(start) == text, text


def test_code_llamas_marks(tmp_path: Path) -> None:
    marks = ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>")
    model = model_with(tmp_path, "sp_bpe_first", *marks)
    assert isinstance(model.tokenizer, Tokenizer)
    notation = fill_in_middle(model.tokenizer)
    before, behind = model.tokenizer.encode("fox", False), encode_behind(model, "dogs")
    strings = [model.tokenizer.token_string(id_) for id_ in notation.prompt(before, behind)]
    assert [strings[0], strings[1 + len(before)], strings[-1]] == list(marks[:3])
    assert strings[1].startswith("\u2581")
    assert not strings[2 + len(before)].startswith("\u2581")
    assert [model.tokenizer.token_string(id_) for id_ in notation.end_ids] == list(marks)


def test_marks_that_are_only_text_are_none(tmp_path: Path) -> None:
    """A byte-level tokenizer can write every text: only an added token is a mark."""
    model = model_with(tmp_path, "byte_level", "<|fim_prefix|>", "<|fim_suffix|>", "[SUFFIX]")
    with pytest.raises(InvalidRequest, match="filling in the middle"):
        fill_in_middle(model.tokenizer)
