"""Anthropic's official SDK: the current version, and the last of the versions that send `x-api-key` and know `temperature`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

COUNT = [{"role": "user", "content": "Count from 3 to 9."}]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
HUGO = [
    {
        "role": "user",
        "content": "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job.",
    }
]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
GREEDY = {"temperature": 0}
"""In the body: the current SDK has no parameter for it."""


class Person(BaseModel):
    name: str
    age: int
    job: str


@pytest.fixture
def client(url: str, api_key: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key=api_key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def scripted() -> Iterator[anthropic.Anthropic]:
    """A server that plays what a message names."""
    command = [os.environ["CLIENT_MAIN_PYTHON"], "-m", "tests.clients.scripted"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        # Its log goes to the same place.
        url = next(line.strip() for line in server.stdout if line.startswith("http"))
        with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
            yield client
        server.stdin.close()
        assert server.wait(20) == 0


def play(name: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "fake",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": f"play {name}."}],
        **more,
    }


def without_ids(message: Any) -> Any:
    found = message.to_dict(exclude_none=True)
    for block in [found, *found["content"]]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return found


def both(client: anthropic.Anthropic, **asked: Any) -> Any:
    """The whole answer, which its stream adds up to."""
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    told = without_ids(final)
    usage, expected = told.pop("usage"), without_ids(whole)
    known = expected.pop("usage")
    assert told == expected
    assert usage["output_tokens"] == known["output_tokens"]
    # The second request finds the first one's prompt in the cache.
    assert sum(usage[name] for name in usage if name.endswith("input_tokens")) == sum(
        known[name] for name in known if name.endswith("input_tokens")
    )
    return whole


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_text_whole_and_streamed(client: anthropic.Anthropic, model: str) -> None:
    answer = both(client, model=model, max_tokens=100, messages=COUNT, extra_body=GREEDY)
    [block] = answer.content
    assert block.type == "text" and numbers(block.text) == [3, 4, 5, 6, 7, 8, 9]
    assert (answer.stop_reason, answer.role, answer.model) == ("end_turn", "assistant", model)
    assert answer._request_id.startswith("req_")


def test_text_stream(client: anthropic.Anthropic, model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 100, "messages": COUNT, "extra_body": GREEDY}
    with client.messages.stream(**asked) as stream:
        assert numbers("".join(stream.text_stream)) == [3, 4, 5, 6, 7, 8, 9]
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    deltas = kinds.count("content_block_delta")
    assert deltas > 3
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["reasoning", "reasoning and calls", "odd arguments", "nothing", "too much", "half a call"]
)
@pytest.mark.parametrize("thinking", [True, False])
def test_every_kind_of_answer(scripted: anthropic.Anthropic, name: str, thinking: bool) -> None:
    asked = play(name, tools=[WEATHER])
    if thinking:
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    answer = both(scripted, **asked)
    kinds = [block.type for block in answer.content]
    match name:
        case "reasoning":
            assert kinds == ["thinking", "text"] and answer.stop_reason == "end_turn"
            assert answer.content[0].thinking == "Let me see." and answer.content[0].signature
            assert answer.content[1].text == "Done."
        case "reasoning and calls":
            assert kinds == ["thinking", "text", "tool_use", "tool_use"] and answer.stop_reason == "tool_use"
            assert [block.input for block in answer.content[2:]] == [{"city": "Paris"}, {"city": "Rome"}]
            assert len({block.id for block in answer.content[2:]}) == 2
        case "odd arguments":
            assert answer.content[0].input == {"city": "Par\nis", "day": True, "x": None}
        case "nothing":
            assert kinds == ["text"] and answer.content[0].text == ""
        case "too much":
            assert answer.stop_reason == "max_tokens"
        case "half a call":
            assert (kinds, answer.stop_reason) == (["tool_use"], "max_tokens")
            assert answer.content[0].input == {}


def test_the_context_ends_before_the_limit(scripted: anthropic.Anthropic) -> None:
    assert scripted.messages.create(**play("too much", max_tokens=64_000), timeout=60).stop_reason == (
        "model_context_window_exceeded"
    )


def test_a_stop_sequence(client: anthropic.Anthropic, model: str) -> None:
    answer = both(
        client, model=model, max_tokens=100, messages=COUNT, extra_body=GREEDY, stop_sequences=["6"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "6")
    assert numbers(answer.content[0].text) == [3, 4, 5]


def test_the_limit(client: anthropic.Anthropic, model: str) -> None:
    answer = both(client, model=model, max_tokens=3, messages=COUNT, extra_body=GREEDY)
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 3


def test_a_tool_round_trip(client: anthropic.Anthropic, model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 100, "tools": [WEATHER], "extra_body": GREEDY}
    answer = both(client, **asked, messages=PARIS)
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and call.id.startswith("toolu_")
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "18 degrees, rain"}],
    }
    messages: Any = [
        *PARIS,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    after = both(client, **asked, messages=messages)
    assert after.stop_reason == "end_turn" and after.content[0].type == "text"


FORMAT: Any = {
    "format": {"type": "json_schema", "schema": {**Person.model_json_schema(), "additionalProperties": False}}
}


@pytest.mark.parametrize("beside", [{}, {"output_config": FORMAT}], ids=["alone", "beside a format"])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_forced_calls(client: anthropic.Anthropic, model: str, choice: Any, beside: dict[str, Any]) -> None:
    asked = {**GREEDY, **beside}
    answer = both(
        client, model=model, max_tokens=100, messages=COUNT, tools=[WEATHER], tool_choice=choice, extra_body=asked
    )  # fmt: skip
    [call] = answer.content
    assert call.type == "tool_use" and isinstance(call.input["city"], str)
    assert answer.stop_reason == "tool_use"


def test_no_call(client: anthropic.Anthropic, model: str) -> None:
    answer = both(
        client, model=model, max_tokens=20, messages=PARIS, tools=[WEATHER], tool_choice={"type": "none"}, extra_body=GREEDY
    )  # fmt: skip
    assert all(block.type == "text" for block in answer.content)


def test_a_schema(client: anthropic.Anthropic, model: str) -> None:
    asked = {**GREEDY, "output_config": FORMAT}
    answer = client.messages.create(model=model, max_tokens=100, messages=HUGO, extra_body=asked)  # type: ignore[arg-type]
    assert Person.model_validate_json(answer.content[0].text) == Person(name="Hugo", age=51, job="baker")  # type: ignore[union-attr]


def test_parse(client: anthropic.Anthropic, model: str) -> None:
    answer = client.messages.parse(
        model=model, max_tokens=100, messages=HUGO, output_format=Person, extra_body=GREEDY  # type: ignore[arg-type]
    )  # fmt: skip
    assert answer.parsed_output == Person(name="Hugo", age=51, job="baker")


def test_a_prefix_is_continued(client: anthropic.Anthropic, model: str) -> None:
    messages: Any = [*COUNT, {"role": "assistant", "content": "3, 4, 5,"}]
    answer = both(client, model=model, max_tokens=50, messages=messages, extra_body=GREEDY)
    chat = {"model": model, "max_tokens": 50, "messages": messages, "continue_final_message": True, **GREEDY}
    other: Any = client.post("/v1/chat/completions", cast_to=object, body=chat)
    assert answer.content[0].text == other["choices"][0]["message"]["content"] != ""


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"system": "Be brief.", "tools": [WEATHER]},
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
    ],
)
def test_counts_equal_the_usage(client: anthropic.Anthropic, model: str, more: Any) -> None:
    for _ in range(2):
        counted = client.messages.count_tokens(model=model, messages=PARIS, **more).input_tokens  # type: ignore[arg-type]
        usage = client.messages.create(model=model, max_tokens=1, messages=PARIS, **more).usage  # type: ignore[arg-type]
        assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_long_prompt_is_read_from_the_cache(client: anthropic.Anthropic, model: str) -> None:
    cached, text = [], f"{uuid.uuid4()} You help. " * 10
    for number in range(2):
        header = f"x-anthropic-billing-header: cc_version=2.1; cch={number:05};"
        system: Any = [{"type": "text", "text": header}, {"type": "text", "text": text}]
        usage = client.messages.create(model=model, max_tokens=1, messages=COUNT, system=system).usage  # type: ignore[arg-type]
        cached.append(usage.cache_read_input_tokens or 0)
    assert cached[0] == 0 and cached[1] > 200


def test_pings_pass_and_a_failure_is_raised(scripted: anthropic.Anthropic) -> None:
    with scripted.messages.stream(**play("silence")) as stream:
        assert stream.get_final_message().content[0].text == "Here I am."
    with pytest.raises(anthropic.APIStatusError) as failure:
        list(scripted.messages.create(**play("failure"), stream=True))
    assert "the executor died" in str(failure.value)


def test_errors(client: anthropic.Anthropic, url: str, model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 10, "messages": COUNT}
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(**asked, extra_body={"temperature": -1})
    assert isinstance(bad.value.body, dict) and bad.value.body["error"]["type"] == "invalid_request_error"
    assert bad.value.request_id == bad.value.body["request_id"]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**asked, "model": "gpt-5"})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**{**asked, "messages": [{"role": "user", "content": "word " * 5000}]})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(**{**asked, "messages": [{"role": "user", "content": [image]}]})
    with anthropic.Anthropic(base_url=url, api_key="another", max_retries=0) as other:
        with pytest.raises(anthropic.AuthenticationError):
            other.messages.create(**asked)


def test_models_and_aliases(client: anthropic.Anthropic, model: str) -> None:
    assert [one.id for one in client.models.list()] == [model]
    assert client.models.retrieve(model).display_name == model
    answer = client.messages.create(model="claude-sonnet-4-5", max_tokens=5, messages=COUNT)  # type: ignore[arg-type]
    assert answer.model == "claude-sonnet-4-5"


def test_an_auth_token(url: str, api_key: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with anthropic.Anthropic(base_url=url, auth_token=api_key, max_retries=0) as client:
        assert client.messages.count_tokens(model=model, messages=COUNT).input_tokens > 0  # type: ignore[arg-type]


def test_the_beta_client(client: anthropic.Anthropic, model: str) -> None:
    raw = client.beta.messages.with_raw_response.create(
        model=model, max_tokens=20, messages=COUNT, betas=["interleaved-thinking-2025-05-14"],  # type: ignore[arg-type]
        thinking={"type": "enabled", "budget_tokens": 1024}, metadata={"user_id": "u"},
    )  # fmt: skip
    assert raw.headers["x-cohort-ignored"] == "metadata, thinking"
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    assert raw.parse().content[0].type == "text"


def test_a_stream_left_early(client: anthropic.Anthropic, model: str) -> None:
    for _ in range(3):
        with client.messages.stream(model=model, max_tokens=1000, messages=COUNT) as stream:  # type: ignore[arg-type]
            next(iter(stream))
    assert client.messages.create(model=model, max_tokens=5, messages=COUNT).usage.output_tokens > 0  # type: ignore[arg-type]


def test_async(url: str, api_key: str, model: str) -> None:
    async def ask() -> list[list[int]]:
        async with anthropic.AsyncAnthropic(base_url=url, api_key=api_key, max_retries=0) as client:

            async def count(first: int) -> list[int]:
                text = f"Count from {first} to {first + 3}."
                messages: Any = [{"role": "user", "content": text}]
                async with client.messages.stream(
                    model=model, max_tokens=50, messages=messages, extra_body=GREEDY
                ) as stream:
                    return numbers(await stream.get_final_text())

            return await asyncio.gather(*map(count, range(8)))

    assert asyncio.run(ask()) == [[n, n + 1, n + 2, n + 3] for n in range(8)]


def test_arguments_arrive_in_pieces(client: anthropic.Anthropic, model: str) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": 100,
        "tools": [WEATHER],
        "messages": PARIS,
        "extra_body": GREEDY,
    }
    pieces = [
        event.delta.partial_json
        for event in client.messages.create(**asked, stream=True)
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
    ]
    assert len(pieces) > 1 and json.loads("".join(pieces)) == {"city": "Paris"}
