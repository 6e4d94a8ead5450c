"""The tokenizer of cohort-tiny is lossless, spells operands, and knows the notation of turns and calls as tokens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from executors.tiny import weights_dir
from tests.tiers import examples

_TOKENIZER = Tokenizer.from_file(str(weights_dir() / "tokenizer.json"))


def _tokens(text: str) -> list[str]:
    return list(_TOKENIZER.encode(text).tokens)


@given(st.text(max_size=80))
@settings(max_examples=examples(200), deadline=None)
def test_round_trip(text: str) -> None:
    for token in _TOKENIZER.get_added_tokens_decoder().values():
        text = text.replace(token.content, "")
    assert _TOKENIZER.decode(_TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("capital zorb", ["capital", "\u0120", "z", "o", "r", "b"]),
        (" 17+25", ["\u0120", "1", "7", "+", "2", "5"]),
        ("'zorb'", ["'", "z", "o", "r", "b", "'"]),
    ],
)
def test_frequent_words_are_whole_and_operands_are_spelled(text: str, tokens: list[str]) -> None:
    assert _tokens(text) == tokens


def test_special_tokens_are_single_and_only_chatml_ones_are_hidden() -> None:
    ids = _TOKENIZER.encode("<|im_start|><tool_call><|im_end|>").ids
    assert len(ids) == 3
    assert _TOKENIZER.decode(ids) == "<tool_call>"


def test_the_notation_of_turns_and_calls_is_a_few_tokens() -> None:
    call = '<tool_call>\n{"name": "get", "arguments": {"q": "z"}}\n</tool_call>'
    assert _tokens(f"<|im_start|>assistant\n{call}") == [
        "<|im_start|>", "assistant\u010a", "<tool_call>", '\u010a{"name":\u0120"', "get", '",\u0120"arguments":\u0120{"', "q",
        '":\u0120"', "z", '"}}\u010a', "</tool_call>",
    ]  # fmt: skip
    assert _tokens('", "arguments": {}}\n') == ['",\u0120"arguments":\u0120{', "}}\u010a"]


def test_vocabulary_fits_the_model() -> None:
    config = json.loads((weights_dir() / "config.json").read_text("utf-8"))
    assert _TOKENIZER.get_vocab_size() <= config["vocab_size"]
