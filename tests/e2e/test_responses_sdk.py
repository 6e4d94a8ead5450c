"""The official `openai` SDK's `client.responses`: over the real engine with the echo executor, and over a scripted model that
reasons, calls tools and fails on demand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CLIENT = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
stream = client.responses.create(
    model="echo", input="abcd", temperature=0, max_output_tokens=300, background=True, stream=True
)
for event in stream:
    print(event.sequence_number, event.response.id if hasattr(event, "response") else "", event.type, flush=True)
"""


@pytest.fixture
def client(echo_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{echo_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def scripted() -> Iterator[openai.OpenAI]:
    """A client of a server whose model plays what the prompt names."""
    command = [sys.executable, "-m", "tests.clients.scripted"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None and server.stdin is not None
        url = next(line for line in server.stdout if line.startswith("http")).strip()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield client
        server.stdin.close()


def kinds(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


def plain(response: Any) -> list[dict[str, Any]]:
    """The output without what is made anew each time, and without what the SDK parses."""
    output = json.loads(response.model_dump_json(include={"output"}))["output"]
    for item in output:
        for name in ("id", "call_id", "parsed_arguments"):
            item.pop(name, None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return list(output)


def wait(client: openai.OpenAI, response_id: str, *statuses: str) -> Any:
    until = time.monotonic() + 20
    while (found := client.responses.retrieve(response_id)).status not in statuses:
        assert time.monotonic() < until, found.status
        time.sleep(0.02)
    return found


def test_whole_and_stream_are_the_same(client: openai.OpenAI) -> None:
    body: Any = {
        "model": "echo",
        "input": "abc",
        "max_output_tokens": 12,
        "instructions": "x",
        "metadata": {"a": "b"},
        "temperature": 0,
    }
    whole = client.responses.create(**body)
    assert whole.output_text and whole.metadata == {"a": "b"} and whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(**body) as stream:
        events = list(stream)
    final: Any = events[-1]
    final = final.response
    assert plain(final) == plain(whole) and final.output_text == whole.output_text
    assert (final.status, final.incomplete_details) == (whole.status, whole.incomplete_details)
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_limit_makes_it_incomplete(client: openai.OpenAI) -> None:
    found = client.responses.create(model="echo", input="abc", temperature=0, max_output_tokens=1)
    assert found.status == "incomplete" and found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage is not None and found.usage.output_tokens == 1
    events = list(
        client.responses.create(model="echo", input="abc", temperature=0, max_output_tokens=1, stream=True)
    )
    assert kinds(events)[-1] == "incomplete"


def test_stored_continued_listed_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(model="echo", input="one", max_output_tokens=4)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(
        model="echo", input="two", max_output_tokens=4, previous_response_id=first.id
    )
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + 3
    listed = [item.to_dict() for item in client.responses.input_items.list(second.id, limit=1, order="asc")]
    assert [item["role"] for item in listed] == ["user", "assistant", "user"], "the SDK turns the pages"
    client.responses.delete(first.id)
    for call in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: client.responses.create(model="echo", input="x", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert client.responses.retrieve(second.id) == second, "what was made of it stays"


def test_a_background_response_survives_its_client(echo_server: ServerProcess, client: openai.OpenAI) -> None:
    command = [sys.executable, "-c", CLIENT, f"{echo_server.url}/v1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen, response_id = -1, ""
        for line in process.stdout:
            number, found, kind = line.rstrip("\n").split(" ")
            seen, response_id = int(number), found or response_id
            if kind == "response.output_text.delta":
                break
        process.send_signal(signal.SIGKILL)
    assert client.responses.retrieve(response_id).status == "in_progress"
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=seen))
    assert [event.sequence_number for event in rest] == list(range(seen + 1, seen + 1 + len(rest)))
    whole = list(client.responses.retrieve(response_id, stream=True))
    assert kinds(whole)[:3] == ["created", "queued", "in_progress"]
    assert [event.to_dict() for event in whole[seen + 1 :]] == [event.to_dict() for event in rest]
    final = client.responses.retrieve(response_id)
    text = "".join(event.delta for event in whole if event.type == "response.output_text.delta")
    assert final.output_text == text and final.usage is not None and final.usage.output_tokens == 300
    assert rest[-1].type == "response.incomplete" and rest[-1].response == final


def test_cancel(client: openai.OpenAI) -> None:
    queued = client.responses.create(
        model="echo", input="abcd", temperature=0, max_output_tokens=2000, background=True
    )
    assert queued.status == "queued"
    wait(client, queued.id, "in_progress")
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.retrieve(queued.id).status == "cancelled"
    assert kinds(list(client.responses.retrieve(queued.id, stream=True)))[-1] == "cancelled"


def test_reasoning_and_parallel_calls(scripted: openai.OpenAI) -> None:
    body: Any = {"model": "fake", "input": "play reasoning and calls.", "tools": [WEATHER]}
    with scripted.responses.stream(**body) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    seen = set(kinds(events))
    assert seen >= {
        "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done", "output_text.delta", "output_text.done", "function_call_arguments.delta",
        "function_call_arguments.done", "completed",
    }  # fmt: skip
    calls = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert plain(scripted.responses.create(**body)) == plain(final)
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls
    ]
    by_id = scripted.responses.create(
        model="fake", input=results, tools=[WEATHER], previous_response_id=final.id
    )
    assert by_id.status == "completed"
    history: Any = [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in final.output), *results]
    resent = scripted.responses.create(model="fake", input=history, tools=[WEATHER], store=False)
    assert resent.output_text == "Hello."


@pytest.mark.long
def test_a_failure(scripted: openai.OpenAI) -> None:
    events = list(scripted.responses.create(model="fake", input="play failure.", stream=True))
    last = events[-1]
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.code == "server_error"
    assert scripted.responses.retrieve(last.response.id).status == "failed"
    with pytest.raises(openai.InternalServerError):
        scripted.responses.create(model="fake", input="play failure.")


@pytest.mark.long(extended=True)
def test_a_silence_is_filled(scripted: openai.OpenAI) -> None:
    """Clients wait 10.3 s for a byte, and the model is silent for longer."""
    begun = time.monotonic()
    events = list(scripted.responses.create(model="fake", input="play silence.", stream=True, timeout=10.3))
    assert time.monotonic() - begun > 10
    assert kinds(events)[:2] == ["created", "in_progress"] and kinds(events)[-1] == "completed"


def test_structured_output(tiny_server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    client = openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0)
    found = client.responses.create(
        model="cohort-tiny",
        input="abc",
        text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}},
    )
    assert json.loads(found.output_text) == {"a": 1}


def test_mistakes_are_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="nobody", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="echo", input="x" * 100_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="echo", input="x", extra_body={"max_tokens": 3})
    assert caught.value.param == "max_tokens"


@pytest.mark.long(extended=True)
def test_the_store_is_bounded(tokenizer_dir: Path, tmp_path: Path) -> None:
    args = [
        str(tokenizer_dir),
        "--executor",
        "echo",
        "--served-model-name",
        "echo",
        "--responses-store-entries",
        "3",
    ]
    with (
        ServerProcess(args, tmp_path) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        ids = [client.responses.create(model="echo", input="x", max_output_tokens=1).id for _ in range(5)]
        for gone in ids[:2]:
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(gone)
        assert [client.responses.retrieve(kept).id for kept in ids[2:]] == ids[2:]
        running = client.responses.create(model="echo", input="x", max_output_tokens=100_000, background=True)
        wait(client, running.id, "in_progress", "completed", "incomplete", "failed")
