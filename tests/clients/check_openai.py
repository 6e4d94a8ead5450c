"""Earlier major versions of the official SDK. The current one has tests in tests/e2e, in the ordinary suite."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

HUGO = [
    {
        "role": "user",
        "content": "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job.",
    }
]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
COUNT = [{"role": "user", "content": "Count from 3 to 9."}]

ANSWER = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str
    age: int
    job: str


class get_weather(BaseModel):
    """Get the weather of a city"""

    city: str


@pytest.fixture
def client(url: str, api_key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0) as client:
        yield client


def numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def test_models(client: openai.OpenAI, model: str) -> None:
    assert [one.id for one in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def test_chat_whole_and_streamed(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": COUNT, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert numbers(whole.choices[0].message.content) == [3, 4, 5, 6, 7, 8, 9]
    streamed = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in streamed) == whole.choices[0].message.content
    assert streamed[-1].finish_reason == whole.choices[0].finish_reason == "stop"
    said = [one for choice in streamed if choice.logprobs for one in choice.logprobs.content or []]
    assert whole.choices[0].logprobs is not None
    assert said == whole.choices[0].logprobs.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == len(said)


def test_stream_helper_with_a_tool(client: openai.OpenAI, model: str) -> None:
    tools: Any = [openai.pydantic_function_tool(get_weather)]
    with client.chat.completions.stream(model=model, messages=PARIS, tools=tools, temperature=0) as stream:
        final = stream.get_final_completion()
    [call] = final.choices[0].message.tool_calls or []
    assert final.choices[0].finish_reason == "tool_calls"
    assert call.function.parsed_arguments == get_weather(city="Paris")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a format"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_tool(client: openai.OpenAI, model: str, choice: Any, beside: bool) -> None:
    tools: Any = [openai.pydantic_function_tool(get_weather)]
    schema = {"name": "person", "schema": Person.model_json_schema()}
    form: Any = {"type": "json_schema", "json_schema": schema} if beside else {"type": "text"}
    answer = client.chat.completions.create(
        model=model,
        messages=COUNT,
        tools=tools,
        tool_choice=choice,
        response_format=form,
        temperature=0,
        max_tokens=100,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"
    assert isinstance(get_weather.model_validate_json(call.function.arguments).city, str)


def test_parse(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=HUGO, response_format=Person, temperature=0)
    assert answer.choices[0].message.parsed == Person(name="Hugo", age=51, job="baker")


def test_json_object(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=HUGO, response_format={"type": "json_object"}, temperature=0
    )
    assert json.loads(answer.choices[0].message.content or "")["name"] == "Hugo"


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"guided_json": ANSWER, "guided_decoding_backend": "outlines"}, r'\{\s*"answer":\s*"(yes|no)"\s*\}'),
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"guided_grammar": 'root ::= "x" | "y"'}, "x|y"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_vllms_older_constraints(client: openai.OpenAI, model: str, body: Any, pattern: str) -> None:
    """As vLLM's documentation had them, by the SDK's `extra_body`."""
    chat = client.chat.completions.create(
        model=model, messages=COUNT, temperature=0, max_tokens=100, extra_body=body
    )  # fmt: skip
    assert re.fullmatch(pattern, chat.choices[0].message.content or "", re.DOTALL)
    text = client.completions.create(
        model=model, prompt="One", temperature=0, max_tokens=100, extra_body=body
    )
    assert re.fullmatch(pattern, text.choices[0].text, re.DOTALL)


@pytest.mark.parametrize("form", ["base64", "float", None])
def test_embeddings(client: openai.OpenAI, model: str, form: Literal["base64", "float"] | None) -> None:
    asked = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model=model, input=["One", "Two"], **asked)  # type: ignore[arg-type]
    assert [one.index for one in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    if form != "base64":
        assert math.isclose(sum(x * x for x in answer.data[0].embedding), 1, abs_tol=1e-3)
        assert answer.data[0].embedding != answer.data[1].embedding
    if form is None:  # the SDK asks for base64 itself, and decodes it
        plain = client.embeddings.create(model=model, input="One", encoding_format="float").data[0].embedding
        assert max(abs(a - b) for a, b in zip(plain, answer.data[0].embedding, strict=True)) < 1e-5


def test_completions_with_prompt_logprobs(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="One two three", max_tokens=1, logprobs=1, echo=True, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == answer.choices[0].text
    first, *others = logprobs.token_logprobs or []
    assert first is None
    assert all(one <= 0 for one in others)


def test_errors(client: openai.OpenAI, url: str, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=model, messages=COUNT, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0).models.list()


def test_async(url: str, api_key: str, model: str) -> None:
    async def ask() -> list[list[int]]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0) as client:
            asked = [
                client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": f"Count from {n} to {n + 3}."}],
                    temperature=0,
                )
                for n in range(8)
            ]
            return [numbers(one.choices[0].message.content) for one in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [[n, n + 1, n + 2, n + 3] for n in range(8)]
