"""The Messages API over a real model: an agent's session in the prefix cache, and a stream whose executor is killed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

TURNS = 8
WORDS = "read write build test error line value function module import return index".split()
TOOLS = [
    {
        "name": name,
        "description": f"{name} a file",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    for name in ("read", "write")
]
COUNT = {
    "model": "cohort-tiny", "max_tokens": 60, "temperature": 0, "stream": True,
    "messages": [{"role": "user", "content": "Count from 3 to 29."}],
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(["cohort-tiny", "--model-alias", "claude-*=cohort-tiny"], tmp_path) as running:
        yield running


def _session() -> Iterator[tuple[list[dict[str, str]], list[dict[str, Any]]]]:
    """The system prompt and the messages of each turn, as Claude Code sends them: with a header that changes."""
    words = random.Random(1)

    def text(count: int) -> str:
        return " ".join(words.choice(WORDS) for _ in range(count))

    about, messages = text(150), list[dict[str, Any]]()
    for turn in range(TURNS):
        header = f"x-anthropic-billing-header: cc_version=2.1.197; cch={turn:05x};"
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "read", "input": {"path": text(2)}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": text(15)}
        messages += [
            {"role": "user", "content": text(15)},
            {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, call]},
            {"role": "user", "content": [result]},
        ]
        yield [{"type": "text", "text": header}, {"type": "text", "text": about}], messages
        messages.append({"role": "assistant", "content": text(5)})


def test_a_session_finds_its_prompts_again(server: ServerProcess) -> None:
    before = 0
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for turn, (system, messages) in enumerate(_session()):
            asked = {"model": "claude-x", "messages": messages, "system": system, "tools": TOOLS}
            answer = client.post("/v1/messages", json={**asked, "max_tokens": 1})
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            cached = usage["cache_read_input_tokens"]
            if turn:
                assert cached >= 0.95 * before, f"turn {turn}: {cached} of {before}"
            before = cached + usage["input_tokens"]
            counted = client.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"]
            assert counted == before
    assert before > 1000, "the session is long enough to tell"


@pytest.mark.long(extended=True)
def test_a_chat_finds_the_prompt_of_a_message(server: ServerProcess) -> None:
    """Both endpoints make the same tokens."""
    header = "x-anthropic-billing-header: cc_version=2.1.197; cch=%05x;"
    about, user = "You help with files. " * 20, {"role": "user", "content": "Read a.txt."}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        message = {
            "model": "cohort-tiny",
            "max_tokens": 1,
            "system": f"{header % 1}\n{about}",
            "messages": [user],
            "tools": TOOLS,
        }
        usage = client.post("/v1/messages", json=message).json()["usage"]
        functions = [
            {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
            for tool in TOOLS
        ]
        chat = {
            "messages": [{"role": "system", "content": f"{header % 2}\n{about}"}, user],
            "max_tokens": 1, "tools": [{"type": "function", "function": one} for one in functions],
        }  # fmt: skip
        found = client.post("/v1/chat/completions", json=chat).json()["usage"]
    assert found["prompt_tokens"] == usage["input_tokens"] > 100
    assert found["prompt_tokens"] - found["prompt_tokens_details"]["cached_tokens"] <= 16


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.long(extended=True)
def test_a_killed_executor_costs_a_message_nothing(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/v1/messages", json=COUNT) as response:
            expected = list(_events(response.iter_lines()))
        [executor] = client.get("/v1/executors").json()["data"]
        with client.stream("POST", "/v1/messages", json=COUNT) as response:
            heard = []
            for event in _events(response.iter_lines()):
                heard.append(event)
                if len(heard) == 5:
                    os.kill(executor["pid"], signal.SIGKILL)
        [after] = client.get("/v1/executors").json()["data"]
    assert after["pid"] != executor["pid"]
    kinds = [event["type"] for event in expected]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"

    def told(events: list[dict[str, Any]]) -> tuple[str, Any]:
        texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        [end] = [event for event in events if event["type"] == "message_delta"]
        return "".join(texts), (end["delta"], end["usage"]["output_tokens"])

    assert told(heard) == told(expected)
    assert heard[-1]["type"] == "message_stop"
