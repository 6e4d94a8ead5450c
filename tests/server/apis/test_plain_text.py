"""Text alone, encoded without deltas: the same bytes as from deltas, for as long as a stream says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.generation import TextDelta
from server.answer.choice import Choice, Reading
from server.answer.notation import ModelNotation
from server.answer.prompt_tokens import PromptSide
from server.answer.reasoning import REASONING, Place
from server.apis.anthropic.encode import MessageAnswer, MessageStream
from server.apis.chat.encode import ChatAnswer, ChatStream
from server.apis.completions.encode import CompletionProgress
from server.apis.ollama.encode import OllamaAnswer, OllamaStream
from server.apis.responses.encode import ResponseStream
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.tool_choice import ToolChoice
from tests.server.apis.anthropic.test_encode import deltas, generation, reading
from tests.server.apis.responses.test_encode import answer as response_answer
from tests.tiers import examples

WORDS = st.sampled_from(["<think>", "</think>", "\n", " ", "Well", 'é"😀\x00', "\\", "so"])


def untooled(place: Place) -> Reading:
    """Reasoning and no tools: behind the reasoning all is text."""
    return Reading(
        ModelNotation(None, REASONING["qwen3"]), ToolChoice("none"), place, lambda byte: bytes([byte])
    )


def chat_body(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "a"}], "stream": True, **fields}
    )


def chat(choice: Choice, **fields: Any) -> ChatStream:
    answer = ChatAnswer(
        "chatcmpl-1", "m", "fp", chat_body(**fields), (1, 2), ("reasoning_content",), created=1
    )
    return ChatStream(answer, [choice])


STREAMS: dict[str, Callable[[Choice], Any]] = {
    "chat": chat,
    "messages": lambda choice: MessageStream(MessageAnswer("msg_1", "m", 40), choice),
    "responses": lambda choice: ResponseStream(response_answer(), choice),
    "ollama chat": lambda choice: OllamaStream(OllamaAnswer("m", 0.0, False, lambda: 0.0), choice),
    "ollama text": lambda choice: OllamaStream(OllamaAnswer("m", 0.0, True, lambda: 0.0), choice),
}


def streamed(stream: Any, said: Sequence[TextDelta], shortcut: bool) -> tuple[bytes, int]:
    """The events, and how many deltas were encoded as text alone."""
    call = generation()
    stream.begin(call)
    out, encode, count = b"", None, 0
    for delta in said:
        call.usage.completion_tokens += len(delta.token_ids)
        if encode is None or delta.finish_reason is not None:
            out += stream.delta(delta)
            encode = stream.plain(0) if shortcut else None
        else:
            count += 1
            out += encode(delta.text) if delta.text else b""
    return out + stream.end(), count


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=examples(200))
@given(
    text=st.lists(WORDS, max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=20),
    place=st.sampled_from(Place),
    tools=st.booleans(),
)
def test_text_alone_is_encoded_as_deltas_are(
    name: str, text: str, cuts: list[int], place: Place, tools: bool
) -> None:
    said = deltas(text, cuts, "stop", None)
    made = reading(place) if tools else untooled(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: 1_700_000_000.25)
        patch.setattr("server.apis.responses.encode.secrets.token_hex", lambda size: "0" * size)
        expected, _ = streamed(STREAMS[name](Choice(0, made)), said, shortcut=False)
        found, count = streamed(STREAMS[name](Choice(0, made)), said, shortcut=True)
    assert found == expected
    assert not (tools and count), "every text may become a call"


@pytest.mark.parametrize("name", STREAMS)
def test_an_answer_without_notation_is_text_alone_from_its_second_delta(name: str) -> None:
    said = [TextDelta(0, letter, (1,)) for letter in "answer"]
    plain = Reading(
        ModelNotation(None, None), ToolChoice("none"), next(iter(Place)), lambda byte: bytes([byte])
    )
    stream = STREAMS[name](Choice(0, plain))
    stream.begin(generation())
    assert stream.plain(0) is None, "what comes with the first delta is more than text"
    assert streamed(STREAMS[name](Choice(0, plain)), said, shortcut=True)[1] == len(said) - 1


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"return_token_ids": True},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
def test_a_chat_that_tells_more_than_text_has_no_text_alone(fields: dict[str, Any]) -> None:
    plain = Reading(
        ModelNotation(None, None), ToolChoice("none"), next(iter(Place)), lambda byte: bytes([byte])
    )
    stream = chat(Choice(0, plain), **fields)
    stream.begin(generation())
    stream.delta(TextDelta(0, "a", (1,), () if "logprobs" in fields else None))
    assert stream.plain(0) is None


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        ({}, True),
        ({"echo": True}, True),
        ({"logprobs": 1}, False),
        ({"return_token_ids": True}, False),
        ({"max_tokens": 0}, False),
    ],
)
def test_a_completions_text_alone(fields: dict[str, Any], alone: bool) -> None:
    body = CompletionRequest.model_validate({"prompt": [1], "stream": True, **fields})
    side = PromptSide(body, [1])
    side.echo = "p" if body.echo else ""
    progress = CompletionProgress(0, body, side)
    first = TextDelta(0, "a", (1,))
    if fields.get("echo"):
        assert progress.around_text is None, "the prompt is not sent"
    if not fields.get("logprobs"):
        progress.piece(first)
    around = progress.around_text
    assert (around is not None) == alone
    if around is not None:
        assert around[0] + b'"b"' + around[1] == progress.piece(TextDelta(0, "b", (1,)))
