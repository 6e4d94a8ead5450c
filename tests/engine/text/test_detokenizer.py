"""Incremental detokenizing equals detokenizing whole, for random ids and real text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenizer import detokenizer
from engine.text.tokenizer import Tokenizer
from tests.engine.tokenizers_for_tests import byte_level, load, sentencepiece_like

TEXTS = [
    "the thing in the tin",
    "Zażółć gęślą jaźń, größer, naïve",
    "Съешь же ещё этих мягких булок",
    "Ξεσκεπάζω τὴν ψυχοφθόρα",
    "中文字符测试，日本語のテスト、한국어",
    "مرحبا بالعالم שלום עולם",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 two words <|end|> \u0000\n\t",
]


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return (
        load(byte_level(), folder)
        if request.param == "byte_level"
        else load(sentencepiece_like(), folder, "</s>")
    )


def incremental(tokenizer: Tokenizer, ids: list[int], skip: bool) -> list[str]:
    of = detokenizer(tokenizer, skip)
    return [*(of.push(i) for i in ids), of.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_real_text(tokenizer: Tokenizer, text: str, skip: bool) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = incremental(tokenizer, ids, skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert not any("\ufffd" in piece for piece in pieces), "half a character was shown"


@given(st.data())
def test_random_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    skip = data.draw(st.booleans())
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(incremental(tokenizer, ids, skip)) == whole


def test_an_invalid_run_of_fallback_bytes_loses_only_its_invalid_bytes(tmp_path: Path) -> None:
    tokenizer = load(sentencepiece_like(), tmp_path, "</s>")
    ids = [tokenizer.raw.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode() + b"\xff"]
    ids.append(tokenizer.raw.token_to_id("a"))
    assert "".join(incremental(tokenizer, ids, True)) == "😀\ufffda"


def test_token_bytes_are_exact(tmp_path: Path) -> None:
    tokenizer = load(byte_level(), tmp_path)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(99999) == b""


def test_end_tokens_come_from_every_place(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    raw = byte_level()
    tokenizer = load(raw, tmp_path)
    assert tokenizer.eos_token_ids == {3, 4, raw.token_to_id("<|end|>")}
    assert tokenizer.warnings == ()


@pytest.mark.parametrize(
    ("generation", "config", "ids", "named"),
    [
        (-1, None, [], ["generation_config.json: eos_token_id: -1"]),
        (-1, 5, [5], ["generation_config.json: eos_token_id: -1"]),
        ([3, None, 3, -1], 5, [3], ["generation_config.json: eos_token_id: null, -1"]),
        (None, [None, 5], [5], ["config.json: eos_token_id: null"]),
        (None, -1, [], ["config.json: eos_token_id: -1"]),
        ([3, 900], None, [3], ["generation_config.json: eos_token_id: 900"]),
        ([], 5, [5], []),
        ([3, 800], None, [3, 800], []),  # the model's vocabulary is larger than the tokenizer's
    ],
)
def test_end_tokens_that_are_no_ids_are_named_and_left(
    tmp_path: Path, generation: Any, config: Any, ids: list[int], named: list[str]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config, "vocab_size": 900}))
    raw = byte_level()
    tokenizer = load(raw, tmp_path)
    assert tokenizer.eos_token_ids == {*ids, raw.token_to_id("<|end|>")}
    assert [line.partition(" not used")[0] for line in tokenizer.warnings] == named


def test_marks_stand_for_tokens(tmp_path: Path) -> None:
    """They are shown whether or not special tokens are, and end a character that is not complete."""
    tokenizer = load(byte_level(), tmp_path)
    special = tokenizer.added_tokens["<|im_end|>"]
    [first, _] = tokenizer.encode("\u00e9", False)
    for skip in (True, False):
        stream = detokenizer(tokenizer, skip, marks={special: "\udb80"})
        assert [stream.push(one) for one in (*tokenizer.encode("a", False), first, special, special)] == [
            "a", "", "\ufffd\udb80", "\udb80",
        ]  # fmt: skip
        assert stream.flush() == ""


def test_texts_that_calls_share_depend_on_no_call(tmp_path: Path) -> None:
    """A token alone is kept as text; within an open character, hidden or as a mark it is something else."""
    tokenizer = load(byte_level(), tmp_path)
    ids = {raw: i for i in range(tokenizer.vocab_size) if len(raw := tokenizer.token_bytes(i)) == 1}
    letter, lead, tail = ids[b"a"], ids[b"\xc3"], ids[b"\xa9"]
    special = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
    for _ in range(2):  # the second time, texts of the first are known
        plain = detokenizer(tokenizer)
        assert [plain.push(i) for i in (letter, lead, tail, letter)] == ["a", "", "é", "a"]
        assert [plain.push(i) for i in (lead, letter, letter)] == ["", "\ufffda", "a"]
        assert [plain.push(i) for i in (tail, letter)] == ["\ufffd", "a"]
        assert plain.push(lead) == "" and plain.flush() == "\ufffd" and plain.push(letter) == "a"
        assert detokenizer(tokenizer).push(special) == ""
        assert detokenizer(tokenizer, skip_special_tokens=False).push(special) != ""
        assert detokenizer(tokenizer, marks={letter: "<mark>"}).push(letter) == "<mark>"
    assert lead not in tokenizer.whole_texts and special not in tokenizer.whole_texts
