"""`--api-server-count 2`: what holds for one process holds for several, and a worker's death is its own clients' only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

TEMPLATE = """{%- for m in messages if m.role == 'query' or m.role == 'document' %}{{ m.role }} {{ m.content }} {% endfor %}
{%- for m in messages if m.role == 'user' %}{{ m.content }}
{% endfor %}"""
"""Writes pairs, too."""
STREAMS, LENGTH = 100, 400
PROMPTS = [f"stream {number}: " for number in range(4)]


@pytest.fixture(scope="module")
def echo_server(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """As the session's fixture of this name, with two workers."""
    args = [str(tokenizer_dir), *ECHO, "--executor-option", "step_delay_ms=5", "--served-model-name", "echo"]
    args += ["--max-num-seqs", "128", "--api-server-count", "2"]
    with ServerProcess(args, tmp_path_factory.mktemp("workers")) as server:
        yield server


def pids(server: ServerProcess, title: str) -> list[int]:
    return [pid for pid in server.children() if title in Path(f"/proc/{pid}/cmdline").read_bytes().decode()]


def body(prompt: str | list[str], length: int = LENGTH) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": length, "ignore_eos": True, "temperature": 0}


async def stream(client: httpx.AsyncClient, number: int, begun: asyncio.Semaphore) -> str | None:
    """The text of one stream; None if its connection broke."""
    asked, text, first = {**body(PROMPTS[number % 4]), "stream": True}, "", True
    try:
        async with client.stream("POST", "/v1/completions", json=asked) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return text
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    if first:
                        first = False
                        begun.release()
    except httpx.TransportError:
        return None
    raise AssertionError(f"stream {number} ended without [DONE]")


async def test_a_killed_worker_loses_only_its_own_streams(echo_server: ServerProcess) -> None:
    """A worker and then the executor are killed under 100 streams."""
    restarts = echo_server.metric("cohort_api_worker_restarts_total")
    begun = asyncio.Semaphore(0)
    async with httpx.AsyncClient(
        base_url=echo_server.url, timeout=90, limits=httpx.Limits(max_connections=None)
    ) as client:
        streams = [asyncio.create_task(stream(client, number, begun)) for number in range(STREAMS)]
        for _ in range(STREAMS):
            await begun.acquire()
        os.kill(pids(echo_server, "api worker")[0], signal.SIGKILL)
        os.kill(pids(echo_server, "executor")[0], signal.SIGKILL)
        texts = await asyncio.gather(*streams)
    lost = texts.count(None)
    assert 5 <= lost <= STREAMS - 5, f"{lost} of {STREAMS} streams met one worker"
    answer = echo_server.post("/v1/completions", body(PROMPTS)).json()
    whole = {choice["index"]: choice["text"] for choice in answer["choices"]}
    assert len(set(whole.values())) == 4
    assert [text for number, text in enumerate(texts) if text not in (None, whole[number % 4])] == []
    assert echo_server.metric("cohort_api_worker_restarts_total") == restarts + 1
    deadline = time.monotonic() + 30
    while len(pids(echo_server, "api worker")) < 2 or echo_server.metric("cohort_requests_running"):
        assert time.monotonic() < deadline, echo_server.log()
        await asyncio.sleep(0.1)


def test_counts_of_all_workers_are_one(echo_server: ServerProcess) -> None:
    """Requests on connections of their own, which both workers take, show in any scrape that follows."""
    sample = 'cohort_http_requests_total{route="/v1/models",status="200"}'
    before = echo_server.metric(sample)
    for _ in range(20):
        assert echo_server.get("/v1/models").status_code == 200
    assert echo_server.metric(sample) == before + 20


def test_drain_and_limits(tokenizer_dir: Path, tmp_path: Path) -> None:
    """One queue for all workers; a stream that runs at SIGTERM ends as it should, and so does the server."""
    args = [str(tokenizer_dir), *ECHO, "--executor-option", "step_delay_ms=5", "--api-server-count", "2"]
    args += ["--max-num-seqs", "1", "--max-queued-seqs", "2"]
    with ServerProcess([*args, "--served-model-name", "echo"], tmp_path) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**body("a"), "stream": True}, timeout=60
        ) as response:
            lines = response.iter_lines()
            next(lines)
            for _ in range(2):  # they wait, in the server's process
                waiting = {"input": "b", "max_output_tokens": 1, "background": True}
                assert server.post("/v1/responses", waiting).status_code == 200
            refused = server.post("/v1/completions", body("c", 1))
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert server.metric('cohort_requests_refused_total{code="overloaded"}') == 1
            server.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(20) == 0, server.log()


def test_workers_answer_every_form_of_request(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Each API, and what a worker needs of the model's files for it."""
    message = [{"role": "user", "content": "hello"}]
    args = [str(tokenizer_dir), *ECHO, "--served-model-name", "echo", "--api-server-count", "1"]
    args += ["--classifier-from-token", "a,b", "--chat-template", TEMPLATE]
    with ServerProcess(args, tmp_path) as server:
        for path, asked in (
            ("/v1/chat/completions", {"messages": message, "max_tokens": 2}),
            ("/v1/messages", {"model": "echo", "messages": message, "max_tokens": 2}),
            ("/v1/responses", {"input": "hello", "max_output_tokens": 2}),
            ("/v1/responses/input_tokens", {"input": "hello"}),
            ("/v1/embeddings", {"input": ["a", "b"]}),
            ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
            ("/tokenize", {"prompt": "hello"}),
            ("/api/chat", {"model": "echo", "messages": message, "stream": False}),
            ("/api/show", {"model": "echo"}),
        ):
            answer = server.post(path, asked)
            assert answer.status_code == 200, (path, answer.text)
        for path in ("/", "/docs", "/api/tags", "/api/ps", "/v1/models", "/openapi.json", "/v1/executors"):
            assert server.get(path).status_code == 200, path
        for path in ("/v1/settings", "/v1/requests", "/v1/load_lora_adapter"):  # there is no admin key
            assert server.get(path).status_code == 404, path


def test_the_feed_has_the_ends_of_calls(echo_server: ServerProcess) -> None:
    """It is the engine's process that tells steps; a stop string is found in a worker's."""
    calls = ({"max_tokens": 1}, {"max_tokens": 64, "stop": ["7"]}, {"max_tokens": 9})
    with (
        httpx.Client(base_url=echo_server.url, timeout=30) as client,
        client.stream("GET", "/v1/steps") as feed,
    ):
        frames = (json.loads(line[6:]) for line in feed.iter_lines() if line.startswith("data: "))
        next(frames)
        answers = [
            client.post("/v1/completions", json=body("0123456789" * 4) | call).json() for call in calls
        ]
        ends: dict[str, dict[str, object]] = {}
        while len(ends) < len(calls):
            ends |= {end["request_id"]: end for end in next(frames)["ended"]}
    for answer in answers:
        end = ends[answer["id"]]
        assert end["output_tokens"] == answer["usage"]["completion_tokens"] and end["blocks"] == 0
        assert end["finish_reason"] == answer["choices"][0]["finish_reason"] and end["ttft"]
    assert [answer["choices"][0]["finish_reason"] for answer in answers] == ["length", "stop", "length"]
