"""Ollama's official SDK over real sockets, with the small trained model; and a stream whose executor is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from pydantic import BaseModel

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

MODEL = "cohort-tiny"
COUNT = [{"role": "user", "content": "Count from 3 to 29."}]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
HUGO = "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job."
GREEDY = {"temperature": 0}


class Person(BaseModel):
    name: str
    age: int
    job: str


def get_weather(city: str) -> str:
    """
    Get the weather of a city

    Args:
        city: Its name.
    """
    return f"Sunny in {city}."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess([MODEL, "--api-key", "a-key"], tmp_path_factory.mktemp("ollama")) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(server.url, headers={"Authorization": "Bearer a-key"}, timeout=60) as client:
        yield client


def test_a_stream_adds_up_to_the_whole(client: ollama.Client) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": COUNT, "options": {**GREEDY, "num_predict": 40}}
    whole = client.chat(**asked)
    parts = list(client.chat(stream=True, **asked))
    assert len(parts) > 10, "it comes piece by piece"
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.message.content.startswith("3")
    assert (
        (parts[-1].done_reason, parts[-1].eval_count)
        == (whole.done_reason, whole.eval_count)
        == ("length", 40)
    )
    assert parts[-1].eval_duration > 0 and parts[-1].prompt_eval_duration > 0
    prompt = client.generate(model=MODEL, prompt=COUNT[0]["content"], options={**GREEDY, "num_predict": 40})
    assert prompt.response == whole.message.content, "the same prompt"


def test_a_round_trip_of_a_tool(client: ollama.Client) -> None:
    first = client.chat(model=MODEL, messages=PARIS, tools=[get_weather], options=GREEDY)
    [call] = first.message.tool_calls
    assert call.function.name == "get_weather" and "Paris" in json.dumps(dict(call.function.arguments))
    result = {"role": "tool", "content": get_weather("Paris"), "tool_name": "get_weather"}
    last = client.chat(
        model=MODEL, messages=[*PARIS, first.message, result], tools=[get_weather], options=GREEDY
    )
    assert last.message.content and not last.message.tool_calls


def test_a_schema_is_kept(client: ollama.Client) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": HUGO,
        "format": Person.model_json_schema(),
        "options": GREEDY,
    }
    parts = list(client.generate(stream=True, **asked))
    assert Person.model_validate_json("".join(part.response for part in parts)).age == 51


def test_vectors_and_names(client: ollama.Client) -> None:
    [one, two] = client.embed(model=MODEL, input=["Hello", "Hello there"]).embeddings
    assert sum(x * x for x in one) == pytest.approx(1, abs=1e-4) and one != two
    assert [model.model for model in client.list().models] == [MODEL]
    assert "tools" in client.show(f"{MODEL}:latest").capabilities
    [loaded] = client.ps().models
    assert loaded.size > 100_000 and loaded.context_length > 0


@pytest.mark.long(extended=True)
def test_a_killed_executor_costs_a_stream_nothing(server: ServerProcess, client: ollama.Client) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": COUNT, "options": {**GREEDY, "num_predict": 60}}
    expected = client.chat(**asked).message.content
    headers = {"Authorization": "Bearer a-key"}
    [executor] = httpx.get(f"{server.url}/v1/executors", headers=headers).json()["data"]
    heard = []
    for part in client.chat(stream=True, **asked):
        heard.append(part.message.content)
        if len(heard) == 5:
            os.kill(executor["pid"], signal.SIGKILL)
    assert "".join(heard) == expected
    [after] = httpx.get(f"{server.url}/v1/executors", headers=headers).json()["data"]
    assert after["pid"] != executor["pid"]
