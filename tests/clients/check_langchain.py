"""LangChain's ChatOpenAI and OpenAIEmbeddings, and ChatOllama and OllamaEmbeddings."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

HUGO = "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job."
PARIS = "What is the weather in Paris?"


class Person(BaseModel):
    """Somebody"""

    name: str
    age: int = Field(ge=0, le=150)
    job: str


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city"""
    return f"It is sunny in {city}."


@pytest.fixture
def chat(url: str, api_key: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key=api_key, temperature=0, max_retries=0)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for all: LangChain's connections, which belong to one, outlive a ChatOpenAI."""
    with asyncio.Runner() as runner:
        yield runner


def numbers(text: Any) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def added(chunks: list[Any]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


def test_invoke(chat: ChatOpenAI, model: str) -> None:
    answer = chat.invoke([SystemMessage("You are a helpful assistant."), HumanMessage("Count from 3 to 9.")])
    assert numbers(answer.content) == [3, 4, 5, 6, 7, 8, 9]
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == model
    assert answer.response_metadata["system_fingerprint"]
    usage = answer.usage_metadata
    assert usage is not None
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert "cache_read" in usage["input_token_details"]


def test_stream_says_the_same(chat: ChatOpenAI) -> None:
    whole = chat.invoke("Count from 3 to 9.")
    streamed = added(list(chat.stream("Count from 3 to 9.", stream_usage=True)))
    assert streamed.content == whole.content
    assert streamed.response_metadata["finish_reason"] == "stop"
    assert streamed.response_metadata["model_name"] == whole.response_metadata["model_name"]
    assert streamed.usage_metadata is not None
    assert whole.usage_metadata is not None
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_parameters(chat: ChatOpenAI) -> None:
    """Those that ChatOpenAI has a name for, and one that it passes on."""
    with_all = chat.bind(
        stop=["6"], seed=3, frequency_penalty=0.0, presence_penalty=0.0, top_p=1.0, logprobs=True, top_logprobs=2,
        max_tokens=60, logit_bias={"5": 0}, user="somebody", store=False, service_tier="auto",
        extra_body={"top_k": 5},
    )  # fmt: skip
    answer = with_all.invoke("Count from 3 to 9.")
    assert numbers(answer.content) == [3, 4, 5]
    assert len(answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_batch_and_async(chat: ChatOpenAI, loop: asyncio.Runner) -> None:
    asked = [f"Count from {n} to {n + 3}." for n in range(6)]
    expected = [[n, n + 1, n + 2, n + 3] for n in range(6)]
    assert [numbers(answer.content) for answer in chat.batch(asked)] == expected

    async def ask() -> list[list[int]]:
        answers = await asyncio.gather(*(chat.ainvoke(one) for one in asked))
        streamed = [chunk async for chunk in chat.astream(asked[0])]
        return [*(numbers(answer.content) for answer in answers), numbers(added(streamed).content)]

    assert loop.run(ask()) == [*expected, expected[0]]


def test_a_tool_and_what_it_says(chat: ChatOpenAI) -> None:
    """The whole round: a call, its result, and an answer to that."""
    with_tools = chat.bind_tools([get_weather])
    first = with_tools.invoke(PARIS)
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert first.response_metadata["finish_reason"] == "tool_calls"
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    last = with_tools.invoke([HumanMessage(PARIS), first, result])
    assert isinstance(last, AIMessage)
    assert last.content or last.tool_calls


def test_a_tool_streamed(chat: ChatOpenAI) -> None:
    chunks = list(chat.bind_tools([get_weather]).stream(PARIS))
    [call] = added(chunks).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert call["id"]


@pytest.mark.parametrize("choice", ["any", "required", "get_weather", True])
@pytest.mark.parametrize("strict", [None, True])
def test_a_forced_tool(chat: ChatOpenAI, choice: Any, strict: bool | None) -> None:
    forced = chat.bind_tools([get_weather], tool_choice=choice, strict=strict, parallel_tool_calls=False)
    for question in (PARIS, "Count from 3 to 9."):
        answer = forced.invoke(question, max_tokens=200)
        assert [(call["name"], list(call["args"])) for call in answer.tool_calls] == [
            ("get_weather", ["city"])
        ]
        streamed = added(list(forced.stream(question, max_tokens=200)))
        assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in answer.tool_calls]


@pytest.mark.parametrize("method", ["function_calling", "json_mode", "json_schema"])
def test_structured_output(chat: ChatOpenAI, loop: asyncio.Runner, method: Any) -> None:
    structured = chat.with_structured_output(Person, method=method)
    # Asked for JSON where a tool has to be called, the model may take "job" for the job; nobody who has a tool asks so.
    asked = "Hugo is a baker and 51 years old." if method == "function_calling" else HUGO
    hugo = structured.invoke(asked)
    assert hugo == Person(name="Hugo", age=51, job="baker")
    assert list(structured.stream(asked))[-1] == hugo
    assert loop.run(structured.ainvoke(asked)) == hugo


@pytest.mark.parametrize("method", ["json_mode", "json_schema"])
@pytest.mark.parametrize("choice", ["any", "get_weather"])
@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_a_forced_tool_beside_a_format(
    url: str, api_key: str, model: str, method: str, choice: str, responses: bool
) -> None:
    """Structured output with functions of one's own, one of which must be called: the call, and no format."""
    chat = ChatOpenAI(
        model=model,
        base_url=f"{url}/v1",
        api_key=api_key,
        temperature=0,
        max_retries=0,
        use_responses_api=responses,
    )
    schema = {"title": "Person", **Person.model_json_schema()}
    form: Any = {"type": "json_object"}
    if method == "json_schema":
        form = {"type": "json_schema", "json_schema": {"name": "Person", "schema": schema}}
    forced = chat.bind_tools([get_weather], tool_choice=choice, strict=True).bind(response_format=form)
    answer = forced.invoke("Count from 3 to 9.", max_tokens=100)
    assert [(call["name"], list(call["args"])) for call in answer.tool_calls] == [("get_weather", ["city"])]
    streamed = added(list(forced.stream("Count from 3 to 9.", max_tokens=100)))
    assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in answer.tool_calls]


def test_structured_output_beside_tools(chat: ChatOpenAI) -> None:
    """LangChain's own way: the schema as a format, the tools beside it for the model to choose."""
    structured = chat.with_structured_output(
        Person, method="json_schema", tools=[get_weather], include_raw=True, strict=True
    )
    assert structured.invoke(HUGO)["parsed"] == Person(name="Hugo", age=51, job="baker")
    assert structured.invoke(PARIS)["raw"].tool_calls[0]["args"] == {"city": "Paris"}


def test_structured_output_by_schema(chat: ChatOpenAI) -> None:
    """A schema in a dict, strict and not, with the raw message beside it."""
    for strict in (True, False):
        structured = chat.with_structured_output(
            Person.model_json_schema(), method="json_schema", strict=strict, include_raw=True
        )
        answer = structured.invoke(HUGO)
        assert answer["parsing_error"] is None
        assert answer["parsed"] == {"name": "Hugo", "age": 51, "job": "baker"}


def test_completions(url: str, api_key: str, model: str) -> None:
    complete = OpenAI(
        model=model, base_url=f"{url}/v1", api_key=api_key, temperature=0, max_tokens=8, max_retries=0
    )
    text = complete.invoke("One two three")
    assert text
    assert "".join(complete.stream("One two three")) == text


def test_embeddings(url: str, api_key: str, model: str) -> None:
    embed = OpenAIEmbeddings(
        model=model, base_url=f"{url}/v1", api_key=api_key, max_retries=0,
        # It would count with OpenAI's tokenizer otherwise, and send that one's ids.
        check_embedding_ctx_length=False,
    )  # fmt: skip
    one, two = embed.embed_documents(["One", "Two"])
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two
    assert max(abs(a - b) for a, b in zip(embed.embed_query("One"), one, strict=True)) < 1e-4


@pytest.fixture
def by_ollama(url: str, api_key: str, model: str) -> ChatOllama:
    headers = {"headers": {"Authorization": f"Bearer {api_key}"}}
    return ChatOllama(model=model, base_url=url, temperature=0, client_kwargs=headers)


def test_ollama(by_ollama: ChatOllama) -> None:
    whole = by_ollama.invoke("Count from 3 to 9.")
    assert numbers(whole.content) == [3, 4, 5, 6, 7, 8, 9]
    assert added(list(by_ollama.stream("Count from 3 to 9."))).content == whole.content
    with_tools = by_ollama.bind_tools([get_weather])
    for answer in (with_tools.invoke(PARIS), added(list(with_tools.stream(PARIS)))):
        [call] = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = get_weather.invoke(call)
    assert isinstance(with_tools.invoke([HumanMessage(PARIS), answer, result]), AIMessage)


@pytest.mark.parametrize("method", ["json_mode", "json_schema"])
def test_ollama_structured_output(by_ollama: ChatOllama, method: Any) -> None:
    structured = by_ollama.with_structured_output(Person, method=method)
    assert structured.invoke(HUGO) == Person(name="Hugo", age=51, job="baker")


def test_ollama_embeddings(url: str, api_key: str, model: str) -> None:
    headers = {"headers": {"Authorization": f"Bearer {api_key}"}}
    one, two = OllamaEmbeddings(model=model, base_url=url, client_kwargs=headers).embed_documents(
        ["One", "Two"]
    )
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two
