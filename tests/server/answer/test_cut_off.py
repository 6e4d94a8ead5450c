"""Answers of reasoning, text and calls that something cuts off: streamed or whole, they say the same and show no notation."""

from __future__ import annotations

from typing import Any

import pytest

from server.answer.choice import Choice, Reading
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place, ReasoningParser, Thought
from server.answer.reasoning.tags import Tags
from server.answer.tools.events import CallArguments, CallBegun
from server.answer.tools.harmony import Harmony
from server.answer.tools.hermes import Hermes
from server.apis.chat.encode import finish_of, message_of
from server.schemas.tool_choice import Function, ToolChoice
from tests.server.fakes import TextDelta

FUNCTIONS = (Function(0, "f", None, False),)
CALL = '\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
HARMONY = (
    "<|channel|>analysis<|message|>Hm. So.<|end|><|start|>assistant<|channel|>commentary<|message|>Well.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
)


def bytes_of(token_id: int) -> bytes:
    return b"" if token_id >= 256 else bytes([token_id])


def reading_of(kind: str, place: Place = Place.UNDECIDED, tools: bool = True) -> Reading:
    notation = ModelNotation(
        Harmony("openai") if kind == "openai_gptoss" else Hermes("hermes"), REASONING[kind]
    )
    choice = ToolChoice("auto", FUNCTIONS) if tools else ToolChoice()
    return Reading(notation, choice, place, bytes_of)


def ended(
    reading: Reading, pieces: list[str], reason: str = "length", stop: str | int | None = None
) -> dict[str, Any]:
    """The whole answer, after a look at whether a stream says the same."""
    whole, stream = Choice(0, reading), Choice(0, reading)
    content, thoughts, calls = "", "", list[list[str]]()
    deltas = [TextDelta(0, piece, tuple(piece.encode())) for piece in pieces]
    for delta in [*deltas, TextDelta(0, "", (), finish_reason=reason, stop_reason=stop)]:
        whole.take(delta)
        for piece in stream.pieces(delta):
            match piece:
                case str():
                    content += piece
                case Thought(text):
                    thoughts += text
                case CallBegun(_, _, name):
                    calls.append([name, ""])
                case CallArguments(index, text):
                    calls[index][1] += text
    message = message_of(whole, ("reasoning",))
    assert (message["content"] or "") == content
    assert message.get("reasoning", "") == thoughts
    assert [
        [call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())
    ] == calls
    return {"content": content, "reasoning": thoughts, "calls": calls, **finish_of(whole)}


@pytest.mark.parametrize("kind", REASONING)
@pytest.mark.parametrize("opened", [False, True])
def test_no_beginning_of_notation_is_shown(kind: str, opened: bool) -> None:
    notation = REASONING[kind]
    text = HARMONY
    if isinstance(notation, Tags):
        text = f"{notation.opening}\nHm. So.\n{notation.closing}\n\nWell.{CALL}"
        text = text.removeprefix(notation.opening) if opened else text
    elif opened:
        text = text.removeprefix("<|channel|>analysis<|message|>")
    reading = reading_of(kind, Place.INSIDE if opened else Place.UNDECIDED)
    for end in range(len(text) + 1):
        answer = ended(reading, [text[:end]])
        assert answer["finish_reason"] == "length"
        # Blanks are no notation, and may still be followed by text.
        assert "Hm. So.".startswith(answer["reasoning"].rstrip()), (end, answer)
        assert "Well.".startswith(answer["content"].rstrip()), (end, answer)
        assert all(name == "f" and '{"a": 1}'.startswith(arguments) for name, arguments in answer["calls"])
        if end % 3 == 0:
            assert ended(reading, list(text[:end])) == answer


@pytest.mark.parametrize(
    ("place", "text", "thoughts", "content"),
    [
        (Place.UNDECIDED, "<thi", "", ""),
        (Place.UNDECIDED, " \n<", "", ""),
        (Place.UNDECIDED, "<thin", "", ""),
        (Place.UNDECIDED, "<this", "", "<this"),
        (Place.UNDECIDED, " ", "", " "),
        (Place.UNDECIDED, "<think>a </thi", "a", ""),
        (Place.UNDECIDED, "<think>a < b", "a < b", ""),
        (Place.UNDECIDED, "<think>a </thim", "a </thim", ""),
        (Place.INSIDE, "<", "", ""),
        (Place.INSIDE, "</thin", "", ""),
        (Place.INSIDE, "a\n", "a\n", ""),
        (Place.AFTER, "<thi", "", "<thi"),
        (Place.UNDECIDED, "Yes <thi", "", "Yes <thi"),
    ],
)
def test_tags_of_reasoning_that_break_off(place: Place, text: str, thoughts: str, content: str) -> None:
    """Without tools, what can be no tag is text."""
    answer = ended(reading_of("qwen3", place, tools=False), [text])
    assert (answer["reasoning"], answer["content"]) == (thoughts, content)
    shown = ended(reading_of("qwen3", place, tools=False), [text], "stop")
    assert shown["reasoning"] + shown["content"] in (text, text.removeprefix("<think>"))


@pytest.mark.parametrize(
    ("text", "content"), [("<|chan", ""), ("<|channel|>fin", ""), ("to=functions.f", ""), ("to=5 is", "to=5 is"), ("tom", "tom"),
    ("<|channel|>final<|message|>a <|e", "a "), ("<|channel|>final<|message|>a <b", "a <b")]
)  # fmt: skip
def test_headers_that_break_off(text: str, content: str) -> None:
    assert ended(reading_of("openai_gptoss", tools=False), [text])["content"] == content


@pytest.mark.parametrize(
    ("text", "stop", "content"),
    [
        ("a <", "\n", "a <"),
        ("<", "\n", "<"),
        ("<", "think>", ""),
        ("<", "tool_call>", ""),
        ('<tool_call>{"name": "f"', ", ", ""),
        ('Well.\n<tool_call>{"name": "f"', ", ", "Well."),
        ("<tool_call>\n", ord("{"), ""),
        ("<tool_call>\n", 300, "<tool_call>\n"),
        ("a <", ord("t"), "a"),
        ("a <", ord("\n"), "a <"),
        ("<tool_call>\n", None, "<tool_call>\n"),
    ],
)
def test_a_stop_cuts_off_too(text: str, stop: str | int | None, content: str) -> None:
    """300 is a special token: models end their answers with one."""
    answer = ended(reading_of("qwen3"), [text], "stop", stop)
    assert (answer["content"], answer["calls"], answer["finish_reason"]) == (content, [], "stop")


def test_a_parser_of_reasoning_shows_what_the_model_ends() -> None:
    parser = ReasoningParser(REASONING["qwen3"], Place.UNDECIDED)
    assert parser.push("<thi") == []
    assert parser.finish() == ["<thi"]
