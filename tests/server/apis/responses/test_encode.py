"""Items and events of the Responses API: a stream adds up to the whole answer, whatever the parts and however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.generation import TextDelta
from server.answer.carried_reasoning import decoded_reasoning, encoded_reasoning
from server.answer.choice import Choice
from server.answer.reasoning import Place, Thought
from server.answer.tools.events import CallArguments, CallBegun
from server.apis.responses.encode import CalledTool, ItemWriter, ResponseAnswer, ResponseStream, ResponseWhole
from tests.server.api_schema import check, check_response_events
from tests.server.apis.anthropic.test_encode import WORDS, deltas, generation, reading
from tests.tiers import examples

TOOLS = {"f": CalledTool("function", "f"), "g": CalledTool("custom", "patch", "ns")}
ECHO: dict[str, Any] = {
    "background": False, "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None}, "safety_identifier": None, "service_tier": "default", "store": True,
    "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
    "top_p": 1.0, "truncation": "disabled", "user": None, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip


def answer(encrypted: bool = False) -> ResponseAnswer:
    return ResponseAnswer("resp_1", "m", ECHO, TOOLS, encrypted, created_at=1)


def streamed(place: Place, said: Sequence[TextDelta], pings: bool, stop: int | None) -> bytes:
    """`stop`: number of deltas after which the response is cancelled."""
    encoder, call = ResponseStream(answer(), Choice(0, reading(place))), generation()
    encoder.begin(call)
    out = b""
    for delta in said[:stop]:
        out += encoder.keep_alive() if pings else b""
        call.usage.completion_tokens += len(delta.token_ids)
        out += encoder.delta(delta)
    return out + (encoder.end() if stop is None else encoder.stopped("cancelled", None))


def added_up(stream: bytes, shapes: bool = False) -> dict[str, Any]:
    """The response that an SDK makes of a stream; anything out of order is a mistake."""
    check_response_events(stream.decode(), shapes)
    output: list[dict[str, Any]] = []
    opened: dict[str, Any] | None = None
    for block in stream.decode().split("\n\n")[:-1]:
        event = json.loads(block.split("\ndata: ")[1])
        kind = event["type"].removeprefix("response.")
        if "output_index" in event:
            assert event["output_index"] == len(output)
        if "item_id" in event:
            assert opened is not None and event["item_id"] == opened["id"]
        match kind:
            case "output_item.added":
                assert opened is None and event["item"]["status"] == "in_progress"
                opened = event["item"]
            case "content_part.added":
                assert opened is not None and opened["content"] == []
                opened["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                assert opened is not None
                opened["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                assert opened is not None
                opened["arguments"] += event["delta"]
            case "custom_tool_call_input.delta":
                assert opened is not None
                opened["input"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert opened is not None and opened["content"][0]["text"] == event["text"]
            case "content_part.done":
                assert opened is not None and opened["content"] == [event["part"]]
            case "output_item.done":
                assert opened == {**event["item"], "status": "in_progress"}
                output.append(event["item"])
                opened = None
    assert opened is None
    last: dict[str, Any] = event["response"]
    assert last["output"] == output
    return last


def nameless(response: dict[str, Any]) -> dict[str, Any]:
    """Without what is made anew each time."""
    response["output"] = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in response["output"]
    ]
    return {name: value for name, value in response.items() if name != "completed_at"}


@settings(max_examples=examples(1000), deadline=None)
@given(
    st.lists(WORDS, max_size=8).map("".join),
    st.lists(st.integers(0, 1000), max_size=8),
    st.sampled_from([Place.UNDECIDED, Place.INSIDE, Place.AFTER]),
    st.sampled_from(["stop", "length"]),
    st.booleans(),
)
def test_a_stream_adds_up_to_the_whole(
    text: str, cuts: list[int], place: Place, finish: str, pings: bool
) -> None:
    said = deltas(text, cuts, finish, None)
    found = added_up(streamed(place, said, pings, None))
    whole, call = ResponseWhole(answer(), Choice(0, reading(place))), generation()
    for delta in deltas(text, [], finish, None):
        call.usage.completion_tokens += len(delta.token_ids)
        assert whole.take(delta) == 0
    body: dict[str, Any] = json.loads(msgspec.json.encode(whole.body(call)))
    assert nameless(found) == nameless(body)
    assert body["status"] == ("incomplete" if finish == "length" else "completed")
    assert body["output"] or finish == "length"


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(WORDS, max_size=6).map("".join), st.sampled_from(["stop", "length"]))
def test_events_are_what_the_description_says(text: str, finish: str) -> None:
    response = added_up(
        streamed(Place.UNDECIDED, deltas(text, [3, 9], finish, None), False, None), shapes=True
    )
    check("Response", response)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8).map("".join), st.integers(0, 12), st.booleans())
def test_a_stream_that_is_cut_off_is_in_order(text: str, stop: int, pings: bool) -> None:
    said = deltas(text, [1, 3, 7, 20, 40], "stop", None)[:-1]
    found = added_up(streamed(Place.UNDECIDED, said, pings, min(stop, len(said))))
    assert found["status"] == "cancelled"
    assert all(item["status"] == "completed" for item in found["output"][:-1])


def test_nothing_comes_after_the_end() -> None:
    encoder = ResponseStream(answer(), Choice(0, reading(Place.AFTER)))
    encoder.begin(generation())
    for delta in deltas("a", [], "stop", None):
        encoder.delta(delta)
    encoder.end()
    assert encoder.stopped("failed", {"code": "x", "message": "y"}) == b""
    assert encoder.snapshot()["status"] == "completed"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a\\nb"}', "a\nb"), ('{"input": 1}', '{"input": 1}'), ('{"input": "a', '{"input": "a'), ("", ""),
     ('{"input": "a", "x": 1}', '{"input": "a", "x": 1}')],
)  # fmt: skip
def test_the_input_of_a_custom_tool(arguments: str, text: str) -> None:
    writer = ItemWriter(TOOLS)
    writer.take([CallBegun(0, "call_1", "g"), CallArguments(0, arguments)])
    writer.finish(cut_off=False)
    [item] = writer.output
    assert (item["type"], item["name"], item["namespace"], item["input"]) == (
        "custom_tool_call",
        "patch",
        "ns",
        text,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [("", ""), ("{", ""), ('{"inp', ""), ('{"input": ', ""), ('{"input": "a\\n*** B', "a\n*** B"), ('{"input": "a\\', "a"),
     ('{"input": "a"}', "a"), ('{"other": "a', '{"other": "a'), ("[1", "[1"), ("a", "a")],
)  # fmt: skip
def test_the_input_of_a_custom_tool_that_breaks_off(arguments: str, text: str) -> None:
    """It is the beginning of the text, without the notation around it."""
    writer = ItemWriter(TOOLS)
    writer.take([CallBegun(0, "call_1", "g"), CallArguments(0, arguments)])
    events = writer.finish(cut_off=True)
    [item] = writer.output
    assert (item["status"], item["input"]) == ("incomplete", text)
    assert {
        event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"
    } == {text}


def test_blanks_make_no_message() -> None:
    writer = ItemWriter(TOOLS)
    writer.take([Thought("hm"), "\n\n", CallBegun(0, "call_1", "f"), CallArguments(0, "{}"), "\n"])
    writer.finish(cut_off=False)
    assert [item["type"] for item in writer.output] == ["reasoning", "function_call"]


def test_a_call_without_its_end_is_incomplete() -> None:
    writer = ItemWriter(TOOLS)
    writer.take(
        [
            CallBegun(0, "call_1", "f"),
            CallArguments(0, "{"),
            CallBegun(1, "call_2", "f"),
            CallArguments(1, "{"),
        ]
    )
    writer.finish(cut_off=False, call_complete=False)
    assert [item["status"] for item in writer.output] == ["completed", "incomplete"]


@given(st.text())
def test_reasoning_is_encoded_and_decoded(text: str) -> None:
    assert decoded_reasoning(encoded_reasoning(text)) == text


def test_reasoning_items_carry_it_on_request() -> None:
    writer = ItemWriter({}, encrypted=True)
    writer.take([Thought("hm")])
    writer.finish(cut_off=False)
    assert decoded_reasoning(writer.output[0]["encrypted_content"]) == "hm"


@given(st.text())
def test_other_texts_decode_to_nothing_or_a_text(text: str) -> None:
    assert decoded_reasoning(text) is None
    decoded_reasoning("cohort.1." + text)
