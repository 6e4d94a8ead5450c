"""Mistral's own SDK, which sends Mistral's names: `random_seed`, `tool_choice: "any"`, `safe_prompt`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from mistralai.client import Mistral
from mistralai.client.errors import MistralError, ResponseValidationError

from tests.clients.samples import COUNT, COUNTED, HUGO, HUGO_IS, PARIS, WEATHER, Person, numbers

TOOLS: Any = [{"type": "function", "function": WEATHER}]
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": Person.model_json_schema(), "strict": True},
}


def asking(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(url: str, api_key: str) -> Iterator[Mistral]:
    with Mistral(server_url=url, api_key=api_key) as client:
        yield client


def test_chat_and_stream(client: Mistral, model: str) -> None:
    asked: Any = {
        "model": model,
        "messages": asking(COUNT),
        "temperature": 0,
        "safe_prompt": False,
        "random_seed": 3,
    }
    whole = client.chat.complete(**asked)
    assert numbers(whole.choices[0].message.content) == COUNTED
    assert whole.choices[0].finish_reason == "stop"
    chunks = [event.data for event in client.chat.stream(**asked)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    assert whole.usage.completion_tokens > 0
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"


def test_random_seed(client: Mistral, model: str) -> None:
    """One seed, one text; others differ, or the seed would have no effect."""

    def text(seed: int) -> Any:
        answer = client.chat.complete(
            model=model, messages=asking("Tell me a story."), temperature=1.5, random_seed=seed, max_tokens=24
        )
        return answer.choices[0].message.content

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_tools_and_their_result(client: Mistral, model: str) -> None:
    asked: Any = {"model": model, "tools": TOOLS, "temperature": 0}
    answer = client.chat.complete(
        **asked, messages=asking(PARIS), tool_choice="auto", parallel_tool_calls=True
    )
    message = answer.choices[0].message
    [call] = message.tool_calls or []
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "It is sunny."}
    talk = [*asking(PARIS), message, result]
    assert client.chat.complete(**asked, messages=talk).choices[0].finish_reason in ("stop", "tool_calls")


@pytest.mark.parametrize(
    "choice",
    ["any", "required", {"type": "function", "function": {"name": "get_weather"}}],
    ids=["any", "required", "named"],
)
@pytest.mark.parametrize("beside", [{}, {"response_format": SCHEMA}], ids=["alone", "beside a format"])
def test_a_forced_call(client: Mistral, model: str, choice: Any, beside: dict[str, Any]) -> None:
    asked: Any = {
        "model": model,
        "messages": asking(COUNT),
        "tools": TOOLS,
        "tool_choice": choice,
        "max_tokens": 100,
    }
    whole = client.chat.complete(**asked, **beside, temperature=0)
    [call] = whole.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)


def test_structured_output(client: Mistral, model: str) -> None:
    answer = client.chat.parse(Person, model=model, messages=asking(HUGO), temperature=0)
    assert answer.choices[0].message.parsed == HUGO_IS
    plain = client.chat.complete(
        model=model, messages=asking(HUGO), temperature=0, response_format={"type": "json_object"}
    )
    assert Person.model_validate_json(str(plain.choices[0].message.content)) == HUGO_IS


def test_embeddings(client: Mistral, model: str) -> None:
    answer = client.embeddings.create(model=model, inputs=["One", "Two"])
    one, two = (item.embedding or [] for item in answer.data)
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two


def test_models(client: Mistral, model: str) -> None:
    [one] = client.models.list().data or []
    assert one.id == client.models.retrieve(model_id=model).id == model
    assert one.capabilities.function_calling


@pytest.mark.parametrize(
    "changed",
    [{"safe_prompt": True}, {"prompt_mode": "reasoning"}, {"temperature": -1.0}],
    ids=lambda one: next(iter(one)),
)
def test_refusals(client: Mistral, model: str, changed: dict[str, Any]) -> None:
    [name] = changed
    with pytest.raises(MistralError) as refusal:
        client.chat.complete(model=model, messages=asking(COUNT), **changed)
    assert refusal.value.status_code == 400
    assert name in str(refusal.value)


def test_differences(client: Mistral, model: str) -> None:
    """A streamed call comes in OpenAI's form, its name once and its arguments in pieces, where this SDK expects it whole.
    Mistral's path to fill in the middle is not here, and the answer says which is."""
    with pytest.raises(ResponseValidationError):
        list(client.chat.stream(model=model, messages=asking(PARIS), tools=TOOLS, temperature=0))
    with pytest.raises(MistralError) as refusal:
        client.fim.complete(model=model, prompt="def f(", suffix="return a + b")
    assert refusal.value.status_code == 404
    assert "/v1/completions" in str(refusal.value)


def test_async(url: str, api_key: str, model: str) -> None:
    async def ask() -> list[Any]:
        async with Mistral(server_url=url, api_key=api_key) as client:
            many = [
                client.chat.complete_async(
                    model=model, messages=asking(f"Count from {n} to {n + 3}."), temperature=0
                )
                for n in range(4)
            ]
            return [numbers(one.choices[0].message.content) for one in await asyncio.gather(*many)]

    assert asyncio.run(ask()) == [[n, n + 1, n + 2, n + 3] for n in range(4)]
