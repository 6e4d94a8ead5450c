"""Anthropic's blocks and events: a stream adds up to the whole answer, whatever the parts and however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic_core
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.generation import TextDelta, Usage
from server.answer.choice import Choice, Piece, Reading
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place, Thought
from server.answer.tools.events import CallArguments, CallBegun
from server.answer.tools.hermes import Hermes
from server.apis.anthropic.encode import (
    BlockWriter,
    Closed,
    Grew,
    MessageAnswer,
    MessageStream,
    MessageWhole,
    Opened,
    call_id,
    tool_use_id,
)
from server.schemas.tool_choice import Function, ToolChoice
from tests.server.api_schema import check, check_message_events
from tests.tiers import examples

TOOLS = ToolChoice("auto", (Function(0, "f", None, False), Function(1, "g", None, False)))
WORDS = st.sampled_from(
    [
        "<think>", "</think>", "\n", " ", "Well", "é😀", "{", "<tool_call>", "</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": "}\\n"}}</tool_call>',
        '<tool_call>{"name": "g", "arguments": {"b": \'x\', "c": 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2.5, {"d": null}]',
        '<tool_call>{"name": "f", "arguments": {"text": "line\nbreak"}}</tool_call>',
    ]
)  # fmt: skip


def reading(place: Place) -> Reading:
    model = ModelNotation(Hermes("hermes"), REASONING["qwen3"])
    return Reading(model, TOOLS, place, lambda byte: bytes([byte]))


def deltas(text: str, cuts: Sequence[int], finish: str, stop: str | None) -> list[TextDelta]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    made = [TextDelta(0, piece, tuple(piece.encode())) for piece in pieces]
    return [*made, TextDelta(0, "", (), finish_reason=finish, stop_reason=stop)]


def generation() -> Any:
    return SimpleNamespace(usage=Usage(40, 0, 16), seed=1)


def streamed(answer: MessageAnswer, place: Place, said: Sequence[TextDelta], pings: bool = False) -> bytes:
    encoder, call = MessageStream(answer, Choice(0, reading(place))), generation()
    encoder.begin(call)
    out = b""
    for delta in said:
        out += encoder.ping() if pings else b""
        call.usage.completion_tokens += len(delta.token_ids)
        out += encoder.delta(delta)
    return out + encoder.end()


def whole(answer: MessageAnswer, place: Place, said: Sequence[TextDelta]) -> dict[str, Any]:
    encoder, call = MessageWhole(answer, Choice(0, reading(place))), generation()
    for delta in said:
        call.usage.completion_tokens += len(delta.token_ids)
        assert encoder.take(delta) == 0
    body: dict[str, Any] = json.loads(msgspec.json.encode(encoder.body(call)))
    return body


def added_up(stream: bytes) -> dict[str, Any]:
    """The message that an SDK makes of a stream; anything out of order is a mistake."""
    message: dict[str, Any] = {}
    arguments: dict[int, bytes] = {}
    opened = None
    for block in stream.decode().split("\n\n")[:-1]:
        event = json.loads(block.split("\ndata: ")[1])
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
                assert message["content"] == [] and message["stop_reason"] is None
                assert message["usage"]["output_tokens"] == 0
            case "content_block_start":
                assert opened is None and event["index"] == len(message["content"])
                opened = event["index"]
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == opened
                content, delta = message["content"][opened], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        content["text"] += delta["text"]
                    case "thinking_delta":
                        content["thinking"] += delta["thinking"]
                    case "signature_delta":
                        assert not content["signature"]
                        content["signature"] = delta["signature"]
                    case "input_json_delta":
                        arguments[opened] = arguments.get(opened, b"") + delta["partial_json"].encode()
                        content["input"] = pydantic_core.from_json(arguments[opened], allow_partial=True)
            case "content_block_stop":
                assert event["index"] == opened
                opened = None
            case "message_delta":
                assert opened is None
                message |= event["delta"] | {"usage": event["usage"]}
    for index, text in arguments.items():
        if message["stop_reason"] == "tool_use":
            assert json.loads(text) == message["content"][index]["input"]
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return message


SAID = (
    st.lists(WORDS, max_size=9).map("".join),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.sampled_from([("stop", None), ("stop", "END"), ("length", None)]),
    st.sampled_from(Place),
    st.booleans(),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=examples(1000))
@given(*SAID)
def test_a_stream_adds_up_to_the_whole(
    text: str, cuts: list[int], ends: tuple[str, str | None], place: Place, limited: bool, shows: bool
) -> None:
    answer = MessageAnswer("msg_1", "m", 40, limited, shows)
    uncut = without_ids(whole(answer, place, deltas(text, [], *ends)))
    said = deltas(text, cuts, *ends)
    assert without_ids(whole(answer, place, said)) == uncut
    assert without_ids(added_up(streamed(answer, place, said))) == uncut
    assert without_ids(added_up(streamed(answer, place, said, pings=True))) == uncut
    assert uncut["content"], "clients read the first block"
    assert uncut["usage"]["input_tokens"] == 24 and uncut["usage"]["cache_read_input_tokens"] == 16
    assert uncut["usage"]["output_tokens"] == len(text.encode())
    assert (uncut["stop_sequence"] is not None) == (uncut["stop_reason"] == "stop_sequence")
    if ends[0] == "length":
        expected = "model_context_window_exceeded" if limited else "max_tokens"
        assert uncut["stop_reason"] == expected
    if not shows:
        assert all(block["thinking"] == "" for block in uncut["content"] if block["type"] == "thinking")
    assert all(block["signature"] for block in uncut["content"] if block["type"] == "thinking")


@settings(max_examples=examples(60))
@given(*SAID)
def test_every_answer_is_described(
    text: str, cuts: list[int], ends: tuple[str, str | None], place: Place, limited: bool, shows: bool
) -> None:
    answer, said = MessageAnswer("msg_1", "m", 40, limited, shows), deltas(text, cuts, *ends)
    check("Message", whole(answer, place, said))
    check_message_events(streamed(answer, place, said, pings=True).decode())


PARTS = st.lists(
    st.text(max_size=4)
    | st.text(min_size=1, max_size=4).map(Thought)
    | st.tuples(st.sampled_from(["f", "g"]), st.lists(st.text(alphabet='{}":,a1 \n', max_size=5), max_size=4)),
    max_size=8,
)  # fmt: skip


@settings(max_examples=examples(1000))
@given(PARTS, st.booleans(), st.booleans())
def test_parts_become_blocks_in_their_order(drawn: list[Any], complete: bool, shows: bool) -> None:
    """Any parts, also such as no parser gives: one block is open at a time, and nothing is lost."""
    pieces: list[Piece] = []
    for number, part in enumerate(drawn):
        if isinstance(part, tuple):
            pieces.append(CallBegun(number, f"call_{number:024x}", part[0]))
            pieces += [CallArguments(number, text) for text in part[1]]
        else:
            pieces.append(part)
    writer, open_, kinds = BlockWriter(shows), None, []
    texts: dict[str, str] = {"text": "", "thinking": ""}
    for event in [*writer.take(pieces), *writer.finish(complete)]:
        match event:
            case Opened(index, block):
                assert open_ is None and index == len(kinds)
                open_ = index
                kinds.append(block["type"])
            case Grew(index, delta):
                assert index == open_
                [name] = delta.keys() - {"type"}
                assert delta[name]
                if name in texts:
                    texts[name] += delta[name]
            case Closed(index):
                assert index == open_
                open_ = None
    assert open_ is None and kinds
    assert kinds.count("tool_use") == sum(isinstance(part, tuple) for part in drawn)
    said = "".join(part for part in drawn if isinstance(part, str))
    assert "".join(texts["text"].split()) == "".join(said.split())
    assert texts["thinking"] == (
        "".join(part.text for part in drawn if isinstance(part, Thought)) if shows else ""
    )


def test_a_call_that_is_cut_off_stays_cut_off() -> None:
    """Completed, it could be carried out: half a file would be written."""
    text = '<tool_call>{"name": "f", "arguments": {"path": "a", "text": "half of'
    answer = MessageAnswer("msg_1", "m", 40)
    stream = streamed(answer, Place.AFTER, deltas(text, [20, 60], "length", None))
    message = added_up(stream)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][0]["input"] == {"path": "a"}
    assert whole(answer, Place.AFTER, deltas(text, [], "length", None))["content"][0]["input"] == {
        "path": "a"
    }


def test_signatures_are_those_of_the_text() -> None:
    def signature(*texts: str) -> str:
        writer = BlockWriter()
        events = [*writer.take(map(Thought, texts)), *writer.finish(False)]
        [found] = [
            one.delta["signature"] for one in events if isinstance(one, Grew) and "signature" in one.delta
        ]
        return str(found)

    assert signature("a", "b") == signature("ab") != signature("ac")


def test_blanks_between_blocks_belong_to_a_text_that_follows() -> None:
    def texts(*after: str) -> list[str]:
        writer = BlockWriter()
        events = [*writer.take([CallBegun(0, "call_1", "f"), *after]), *writer.finish(True)]
        return [one.delta["text"] for one in events if isinstance(one, Grew) and "text" in one.delta]

    assert texts("\n", " ", "So", " it is") == ["\n So", " it is"]
    assert texts("\n", " ") == []


def test_a_message_without_contents_has_an_empty_text() -> None:
    answer = MessageAnswer("msg_1", "m", 40)
    assert whole(answer, Place.AFTER, deltas("", [], "stop", None))["content"] == [
        {"type": "text", "text": ""}
    ]


@pytest.mark.parametrize("made", ["call_0123456789abcdef01234567", "abc123def", "x"])
def test_ids_come_back_as_they_were(made: str) -> None:
    assert tool_use_id(made).startswith("toolu_")
    assert call_id(tool_use_id(made)) == made


def test_ids_of_others_lose_their_prefix() -> None:
    assert call_id("toolu_01A09q90qw90lq917835lq9ab") == "01A09q90qw90lq917835lq9ab"
    assert call_id("call_1") == "call_1"
