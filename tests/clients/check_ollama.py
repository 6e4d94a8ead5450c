"""Ollama's own package for Python."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import ollama
import pytest

from tests.clients.samples import COUNT, COUNTED, HUGO, HUGO_IS, PARIS, WEATHER, Person, numbers

GREEDY = {"temperature": 0}


def asking(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def get_weather(city: str) -> str:
    """Get the weather of a city

    Args:
        city: The city
    """
    return f"It is sunny in {city}."


@pytest.fixture
def client(url: str, api_key: str) -> ollama.Client:
    return ollama.Client(host=url, headers={"Authorization": f"Bearer {api_key}"})


def test_chat_and_stream(client: ollama.Client, model: str) -> None:
    asked: Any = {"model": model, "messages": asking(COUNT), "options": GREEDY}
    whole = client.chat(**asked, keep_alive="5m")
    assert numbers(whole.message.content) == COUNTED
    assert (whole.done, whole.done_reason) == (True, "stop")
    parts = list(client.chat(**asked, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count


def test_generate(client: ollama.Client, model: str) -> None:
    asked: Any = {"model": model, "prompt": COUNT, "options": {**GREEDY, "num_predict": 40, "seed": 3}}
    whole = client.generate(**asked)
    assert numbers(whole.response) == COUNTED
    assert "".join(part.response for part in client.generate(**asked, stream=True)) == whole.response
    assert client.generate(model=model).done, "how clients load a model"


@pytest.mark.parametrize(
    "tool", [get_weather, {"type": "function", "function": WEATHER}], ids=["function", "schema"]
)
def test_tools_and_their_result(client: ollama.Client, model: str, tool: Any) -> None:
    asked: Any = {"model": model, "tools": [tool], "options": GREEDY}
    for answer in (
        client.chat(**asked, messages=asking(PARIS)),
        *(
            part
            for part in client.chat(**asked, messages=asking(PARIS), stream=True)
            if part.message.tool_calls
        ),
    ):
        [call] = answer.message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
        result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")}
        assert client.chat(**asked, messages=[*asking(PARIS), answer.message, result]).done


@pytest.mark.parametrize("form", ["json", Person.model_json_schema()], ids=["json", "schema"])
def test_format(client: ollama.Client, model: str, form: Any) -> None:
    answer = client.chat(model=model, messages=asking(HUGO), format=form, options=GREEDY)
    assert Person.model_validate_json(answer.message.content or "") == HUGO_IS


def test_embeddings(client: ollama.Client, model: str) -> None:
    one, two = client.embed(model=model, input=["One", "Two"]).embeddings
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two
    older = client.embeddings(model=model, prompt="One").embedding
    assert len(older) == len(one)
    assert list(client.embed(model=model, input=[]).embeddings) == []


def test_models(client: ollama.Client, model: str) -> None:
    [listed] = client.list().models
    assert (listed.model or "").removesuffix(":latest") == model
    assert "tools" in (client.show(model).capabilities or [])
    assert [one.model for one in client.ps().models]


def test_errors(client: ollama.Client, url: str, model: str) -> None:
    with pytest.raises(ollama.ResponseError) as unknown:
        client.chat(model="llama3", messages=asking(COUNT))
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as closed:
        ollama.Client(host=url).chat(model=model, messages=asking(COUNT))
    assert closed.value.status_code == 401
    with pytest.raises(ollama.ResponseError) as alone:
        client.pull("llama3")
    assert "does not pull" in alone.value.error


def test_async(url: str, api_key: str, model: str) -> None:
    async def ask() -> list[list[int]]:
        client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {api_key}"})
        many = [
            client.chat(model=model, messages=asking(f"Count from {n} to {n + 3}."), options=GREEDY)
            for n in range(4)
        ]
        return [numbers(one.message.content) for one in await asyncio.gather(*many)]

    assert asyncio.run(ask()) == [[n, n + 1, n + 2, n + 3] for n in range(4)]


def test_what_has_no_effect_is_listed(client: ollama.Client, model: str) -> None:
    """By the client's own transport: what the package itself sends."""
    body = {"model": model, "messages": asking(COUNT), "stream": False, "keep_alive": 0}
    answer = client._client.post("/api/chat", json={**body, "options": {"num_ctx": 512, **GREEDY}})
    assert json.loads(answer.content)["done"]
    assert set(answer.headers["x-cohort-ignored"].split(", ")) == {"keep_alive", "options.num_ctx"}
