"""Reasoning and calls in one text: however it is cut into pieces, the answer is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.answer.choice import Choice, Reading
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place
from server.answer.tools.hermes import Hermes
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.mistral import Mistral
from server.answer.tools.notation import ToolNotation
from server.apis.chat.encode import finish_of, message_of
from server.schemas.tool_choice import Function, ToolChoice
from tests.server.fakes import TextDelta

CALLS: dict[str, tuple[ToolNotation, str]] = {
    "hermes": (Hermes("hermes"), '<tool_call>{"name": "f", "arguments": {"a": "}"}}</tool_call>'),
    "llama3_json": (Llama3Json("llama3_json"), '{"name": "f", "parameters": {"a": 1}}; '),
    "mistral": (
        Mistral("mistral"),
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
    ),
}
WORDS = [
    "<think>",
    "</think>",
    "\n",
    " ",
    "Well",
    "{",
    "}",
    "<tool_call>",
    "[TOOL_CALLS]",
    '{"name": "f"',
    ", ",
    "é",
]


def answer(
    reading: Reading, pieces: Sequence[str], reason: str = "stop", stop: str | None = None
) -> dict[str, Any]:
    made = Choice(0, reading)
    for piece in pieces:
        made.take(TextDelta(0, piece, tuple(piece.encode())))
    made.take(TextDelta(0, "", (), finish_reason=reason, stop_reason=stop))
    message = message_of(made, ("reasoning",))
    for call in message.get("tool_calls", ()):
        del call["id"]
    return {**message, **finish_of(made), "reasoning_tokens": made.reasoning_tokens}


@pytest.mark.parametrize("kind", CALLS)
@given(data=st.data())
def test_pieces_do_not_matter(kind: str, data: st.DataObject) -> None:
    notation, call = CALLS[kind]
    text = "".join(data.draw(st.lists(st.sampled_from([*WORDS, call, call]), max_size=12)))
    hidden = frozenset(data.draw(st.sets(st.sampled_from(["<tool_call>", "</think>", "[TOOL_CALLS]"]))))
    functions = (Function(0, "f", None, False), Function(1, "g", None, False))
    mode, several = data.draw(
        st.sampled_from([("auto", True), ("auto", False), ("named", False), ("none", True)])
    )
    choice = ToolChoice(mode, functions, several) if mode != "none" else ToolChoice()
    place = data.draw(st.sampled_from(Place))
    model = ModelNotation(notation, REASONING["qwen3"], special=hidden)
    reading = Reading(model, choice, place, lambda byte: bytes([byte]), hidden, data.draw(st.booleans()))
    whole = answer(reading, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert answer(reading, pieces) == answer(reading, list(text)) == whole
    for end in (("length", None), ("stop", data.draw(st.sampled_from(["\n", "call>", "{", "k>", '"f"'])))):
        cut = answer(reading, [text], *end)
        assert answer(reading, pieces, *end) == answer(reading, list(text), *end) == cut
        for name in ("content", "reasoning"):
            assert (whole.get(name) or "").startswith(cut.get(name) or ""), (
                "nothing is shown that is not in the text"
            )
    made = len(whole.get("tool_calls", ()))
    assert made <= 1 or several
    assert (whole["finish_reason"] == "tool_calls") == (made > 0 and mode != "named")
    if not (made or "reasoning" in whole or hidden or whole["reasoning_tokens"]):
        assert whole["content"] == text


@given(st.lists(st.sampled_from([*WORDS, CALLS["hermes"][1]]), max_size=12))
def test_one_call_ends_where_the_engine_is_told(words: list[str]) -> None:
    """What is shown up to the character that ends the answer is all that is shown of the whole text."""
    text = "".join(words)
    functions = (Function(0, "f", None, False),)
    model = ModelNotation(Hermes("hermes"), REASONING["qwen3"])
    reading = Reading(
        model, ToolChoice("auto", functions, False), Place.UNDECIDED, lambda byte: bytes([byte])
    )
    ends = reading.end_of_answer()
    end = next((i for i, char in enumerate(text, 1) if ends(char)), len(text))
    assert answer(reading, [text[:end]]) == answer(reading, [text])
