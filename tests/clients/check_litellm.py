"""LiteLLM, by its providers for a server like OpenAI's, for vLLM and (`ollama`, `ollama_chat`) for Ollama."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

import litellm
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
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Person(BaseModel):
    name: str
    age: int
    job: str


@pytest.fixture(params=["openai", "hosted_vllm"])
def call(request: pytest.FixtureRequest, url: str, api_key: str, model: str) -> dict[str, Any]:
    """Arguments of every call."""
    return {
        "model": f"{request.param}/{model}",
        "api_base": f"{url}/v1",
        "api_key": api_key,
        "num_retries": 0,
    }


def numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def rebuilt(chunks: list[Any]) -> Any:
    """LiteLLM's own sum of a stream."""
    return litellm.stream_chunk_builder(chunks)


def test_completion_and_stream(call: dict[str, Any]) -> None:
    whole = litellm.completion(**call, messages=COUNT, temperature=0)
    chunks = list(
        litellm.completion(
            **call, messages=COUNT, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert numbers(whole.choices[0].message.content) == [3, 4, 5, 6, 7, 8, 9]
    assert whole.choices[0].finish_reason == "stop"
    streamed = rebuilt(chunks)
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].finish_reason == "stop"
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens
    assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens


def test_parameters(call: dict[str, Any]) -> None:
    answer = litellm.completion(
        **call, messages=COUNT, temperature=0, top_p=1, n=2, stop=["6"], max_tokens=60, seed=3,
        presence_penalty=0, frequency_penalty=0, logit_bias={"5": 0}, user="somebody", logprobs=True, top_logprobs=2,
        extra_body={"top_k": 5, "min_p": 0.0},
    )  # fmt: skip
    assert [numbers(choice.message.content) for choice in answer.choices] == [[3, 4, 5]] * 2
    assert len(answer.choices[1].logprobs.content[0].top_logprobs) == 2


def test_tools(call: dict[str, Any]) -> None:
    whole = litellm.completion(**call, messages=PARIS, tools=[TOOL], tool_choice="auto", temperature=0)
    streamed = rebuilt(
        list(litellm.completion(**call, messages=PARIS, tools=[TOOL], temperature=0, stream=True))
    )
    for answer in (whole, streamed):
        [one] = answer.choices[0].message.tool_calls
        assert one.function.name == "get_weather"
        assert json.loads(one.function.arguments) == {"city": "Paris"}
        assert answer.choices[0].finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": one.id, "content": "It is sunny."}
        talk = [*PARIS, answer.choices[0].message.model_dump(), result]
        assert litellm.completion(**call, messages=talk, tools=[TOOL], temperature=0).choices[0].finish_reason


@pytest.mark.parametrize("beside", [{}, {"response_format": Person}], ids=["alone", "beside a format"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_tool(call: dict[str, Any], choice: Any, beside: dict[str, Any]) -> None:
    asked = {
        **call,
        **beside,
        "messages": COUNT,
        "tools": [TOOL],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 100,
    }
    for answer in (litellm.completion(**asked), rebuilt(list(litellm.completion(**asked, stream=True)))):
        [one] = answer.choices[0].message.tool_calls
        assert one.function.name == "get_weather"
        assert isinstance(json.loads(one.function.arguments)["city"], str)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        Person,
        {
            "type": "json_schema",
            "json_schema": {"name": "p", "schema": Person.model_json_schema(), "strict": True},
        },
    ],
    ids=["json_object", "pydantic", "json_schema"],
)
def test_response_format(call: dict[str, Any], form: Any) -> None:
    answer = litellm.completion(**call, messages=HUGO, response_format=form, temperature=0)
    assert json.loads(answer.choices[0].message.content) == {"name": "Hugo", "age": 51, "job": "baker"}


def test_text_completion(call: dict[str, Any]) -> None:
    asked = {**call, "prompt": "One two three", "max_tokens": 8, "temperature": 0}
    whole = litellm.text_completion(**asked)
    assert whole.choices[0].text
    chunks = list(litellm.text_completion(**asked, stream=True))
    assert "".join(choice.text or "" for chunk in chunks for choice in chunk.choices) == whole.choices[0].text


def test_embedding(call: dict[str, Any]) -> None:
    answer = litellm.embedding(**call, input=["One", "Two"])
    one, two = (item["embedding"] for item in answer.data)
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two
    assert answer.usage.prompt_tokens > 0


def test_async(call: dict[str, Any]) -> None:
    async def ask() -> list[list[int]]:
        def messages(n: int) -> list[dict[str, str]]:
            return [{"role": "user", "content": f"Count from {n} to {n + 3}."}]

        many = [litellm.acompletion(**call, messages=messages(n), temperature=0) for n in range(6)]
        answers = [numbers(one.choices[0].message.content) for one in await asyncio.gather(*many)]
        stream = await litellm.acompletion(**call, messages=messages(0), temperature=0, stream=True)
        return [*answers, numbers(rebuilt([chunk async for chunk in stream]).choices[0].message.content)]

    assert asyncio.run(ask()) == [*([n, n + 1, n + 2, n + 3] for n in range(6)), [0, 1, 2, 3]]


def test_errors(call: dict[str, Any]) -> None:
    """It sorts them by status and by words; a prompt that is too long has a class of its own, which routers fall back on."""
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**call, messages=COUNT, temperature=-1)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**call, "api_key": "another"}, messages=COUNT)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**call, "model": call["model"] + "-2"}, messages=COUNT)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**call, messages=[{"role": "user", "content": "word " * 3000}])


@pytest.fixture(params=["ollama", "ollama_chat"])
def by_ollama(request: pytest.FixtureRequest, url: str, api_key: str, model: str) -> dict[str, Any]:
    """Arguments of every call by Ollama's paths, to which LiteLLM sends no JSON content type."""
    return {"model": f"{request.param}/{model}", "api_base": url, "api_key": api_key, "num_retries": 0}


def test_ollama_completion_and_stream(by_ollama: dict[str, Any]) -> None:
    whole = litellm.completion(**by_ollama, messages=COUNT, temperature=0, max_tokens=60)
    assert numbers(whole.choices[0].message.content) == [3, 4, 5, 6, 7, 8, 9]
    streamed = rebuilt(list(litellm.completion(**by_ollama, messages=COUNT, temperature=0, stream=True)))
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0


def test_ollama_format(by_ollama: dict[str, Any]) -> None:
    for form in ({"type": "json_object"}, Person):
        answer = litellm.completion(**by_ollama, messages=HUGO, response_format=form, temperature=0)
        assert json.loads(answer.choices[0].message.content) == {"name": "Hugo", "age": 51, "job": "baker"}


def test_ollama_tools(url: str, api_key: str, model: str) -> None:
    """By `ollama_chat` alone: `ollama` writes tools into its prompt."""
    asked: dict[str, Any] = {
        "model": f"ollama_chat/{model}", "api_base": url, "api_key": api_key, "messages": PARIS, "tools": [TOOL],
        "temperature": 0,
    }  # fmt: skip
    for answer in (litellm.completion(**asked), rebuilt(list(litellm.completion(**asked, stream=True)))):
        [one] = answer.choices[0].message.tool_calls
        assert (one.function.name, json.loads(one.function.arguments)) == ("get_weather", {"city": "Paris"})


@pytest.fixture
def open_url(url: str, api_key: str) -> Iterator[str]:
    """The server without a key: a proxy that adds it."""

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            asked = Request(url + self.path, body, {**headers, "Authorization": f"Bearer {api_key}"})
            with urlopen(asked) as answer:
                content = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()


def test_ollama_embedding(open_url: str, url: str, api_key: str, model: str) -> None:
    """LiteLLM sends no key with it, whatever it is given: the one difference."""
    asked: dict[str, Any] = {"model": f"ollama/{model}", "api_key": api_key, "input": ["One", "Two"]}
    with pytest.raises(litellm.AuthenticationError):
        litellm.embedding(**asked, api_base=url)
    answer = litellm.embedding(**asked, api_base=open_url)
    one, two = (item["embedding"] for item in answer.data)
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two
