"""The tokenizer is lossless and spells operands; the chat template renders any OpenAI conversation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from executors.tiny.data.sample import Sample
from executors.tiny.tokenizer import MARKERS, SPECIAL, VOCAB_SIZE, build, render

_TEXTS = [
    "What is the sum of 1 and 2?\n",
    'Please return {"name": "Anna", "age": 34} as JSON.',
    "What is the total?",
]
_TOKENIZER = build(_TEXTS * 3)


@given(st.text(max_size=80))
@settings(max_examples=200, deadline=None)
def test_round_trip(text: str) -> None:
    for token in (*SPECIAL, *MARKERS):
        text = text.replace(token, "")
    assert _TOKENIZER.decode(_TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def _tokens(text: str, tokenizer: Tokenizer = _TOKENIZER) -> list[str]:
    return list(tokenizer.encode(text).tokens)


def test_known_words_are_whole_and_others_are_spelled() -> None:
    assert _tokens("What total zorb") == ["What", "\u0120", "total", "\u0120", "z", "o", "r", "b"]
    assert _tokens("total What") == ["total", "\u0120", "What"], "the same token wherever a word stands"
    assert _tokens("the age") == ["the", "\u0120", "a", "g", "e"], (
        "short words are spelled, but for the most frequent"
    )
    assert _tokens(" 17+25") == ["\u0120", "1", "7", "+", "2", "5"]
    assert _tokens("'table'") == ["'", "t", "a", "b", "l", "e", "'"]


def test_special_tokens_are_single_and_only_chatml_ones_are_hidden() -> None:
    ids = _TOKENIZER.encode("<|im_start|><tool_call><|im_end|>").ids
    assert len(ids) == 3
    assert _TOKENIZER.decode(ids) == "<tool_call>"


def test_the_notation_of_turns_and_calls_is_a_few_tokens(shipped_tokenizer: Tokenizer) -> None:
    call = '<tool_call>\n{"name": "get", "arguments": {"q": "z"}}\n</tool_call>'
    assert _tokens(f"<|im_start|>assistant\n{call}", shipped_tokenizer) == [
        "<|im_start|>", "assistant\u010a", "<tool_call>", '\u010a{"name":\u0120"', "get", '",\u0120"arguments":\u0120{"', "q",
        '":\u0120"', "z", '"}}\u010a', "</tool_call>",
    ]  # fmt: skip
    assert _tokens('", "arguments": {}}\n', shipped_tokenizer) == ['",\u0120"arguments":\u0120{', "}}\u010a"]
    assert _tokens('assistant\n{"name": "z"}', shipped_tokenizer)[:4] == [
        "assistant\u010a",
        '{"',
        "name",
        '":\u0120"',
    ], "JSON that is extracted is spelled alike, whatever its first key"


def test_vocabulary_fits_the_model(shipped_tokenizer: Tokenizer) -> None:
    assert shipped_tokenizer.get_vocab_size() <= VOCAB_SIZE
    assert VOCAB_SIZE % 64 == 0


_TOOL = {
    "type": "function",
    "function": {"name": "timer", "parameters": {"type": "object", "properties": {}}},
}


def _render(messages: list[dict[str, object]], tools: tuple[dict[str, object], ...] = ()) -> str:
    return render(Sample("x", tuple(messages), tools, "", {}), with_answer=False)


def test_template_without_tools() -> None:
    prompt = _render([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert _render([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_with_tools() -> None:
    shown = 'timer\n{"name": "timer", "arguments": {}}'
    user: dict[str, object] = {"role": "user", "content": "Go"}
    assert _render([user], (_TOOL, _TOOL)) == (
        f"<|im_start|>system\n# Tools\n<tools>\n{shown}\n{shown}\n</tools><|im_end|>\n"
        "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "system\nBe kind.\n\n# Tools\n<tools>" in _render(
        [{"role": "system", "content": "Be kind."}, user], (_TOOL,)
    )


@pytest.mark.parametrize("arguments", ['{"minutes": 5}', {"minutes": 5}])
@pytest.mark.parametrize("content", ["", None])
def test_template_with_a_call_and_two_results(arguments: object, content: str | None) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "timer", "arguments": arguments}}
    prompt = _render(
        [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]
    )
    assert prompt == (
        "<|im_start|>user\nGo<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "timer", "arguments": {"minutes": 5}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nok\n</tool_response>\n<tool_response>\ndone\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
