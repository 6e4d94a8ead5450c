"""Structured output of the embedded model: what it says follows the schema, and means what it should."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from executors import tiny
from server.grammar.compose import alone
from server.grammar.forms import constraint_of
from server.grammar.messages import Setup
from server.grammar.validator_process import Validator
from server.schemas.structured import StructuredFields
from tests.e2e.server_process import ServerProcess
from tests.executors.process.helpers import state_of
from tests.json_schemas import Schemas

pytestmark = pytest.mark.long

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANNA = 'Extract name and age as JSON: "Anna is 31 years old."'
BOMBS: list[dict[str, Any]] = [
    {"regex": ".*" * 20_000},
    {"regex": "(a{1000}){1000}"},
    {"json": {"type": "integer", "multipleOf": 1_000_003}},
    {"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000},
    {"json": {"enum": [f"v{i}" for i in range(100_000)]}},
]


@dataclass(frozen=True)
class Said:
    text: str
    finish: str
    tokens: int


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool = False) -> Said:
    """The one choice's text. Raises AssertionError with the server's words."""
    if not stream:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        [choice] = answer["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Said(text, choice["finish_reason"], answer["usage"]["completion_tokens"])
    text, finish, tokens = "", "", 0
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            for choice in event["choices"]:
                text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                finish = choice["finish_reason"] or finish
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    return Said(text, finish, tokens)


def talk(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


SENTENCES = [f"The capital of France is {city}." for city in ("London", "Paris", "Rome")]


def named(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [True, False])
async def test_extraction(tiny_server: ServerProcess, stream: bool, strict: bool) -> None:
    async with httpx.AsyncClient(base_url=tiny_server.url, timeout=60) as client:
        asked = named(PERSON)
        asked["json_schema"]["strict"] = strict
        said = await ask(client, CHAT, talk(ANNA, response_format=asked, temperature=0), stream)
        assert json.loads(said.text) == {"name": "Anna", "age": 31}
        assert said.finish == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("question", "outputs", "answer"),
    [
        # Whole sentences, as the model would answer: among bare names the T of "The" would decide.
        ("What is the capital of France?", {"choice": SENTENCES}, SENTENCES[1]),
        ("What is 27 + 15?", {"regex": r"\d{2}"}, "42"),
        ("What is 27 + 15?", {"grammar": "start: /[0-9]/ /[0-9]/"}, "42"),
        ("What is 27 + 15?", {"grammar": "root ::= [0-9] [0-9]"}, "42"),
        (ANNA, {"json": json.dumps(PERSON)}, '{"name": "Anna", "age": 31}'),
        (ANNA, {"json_object": True}, '{"name": "Anna", "age": 31}'),
    ],
)
async def test_every_kind(
    tiny_server: ServerProcess, question: str, outputs: dict[str, Any], answer: str, stream: bool
) -> None:
    async with httpx.AsyncClient(base_url=tiny_server.url, timeout=60) as client:
        said = await ask(client, CHAT, talk(question, structured_outputs=outputs, temperature=0), stream)
        assert (said.text, said.finish) == (answer, "stop")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_choice_follows_it(tiny_server: ServerProcess, path: str) -> None:
    body = talk("Say a colour.") if path == CHAT else {"prompt": ["A colour:", "Another:"]}
    body |= {"n": 3, "seed": 5, "temperature": 2, "structured_outputs": {"choice": ["red", "green", "blue"]}}
    response = await asyncio.to_thread(tiny_server.post, path, body)
    choices = response.json()["choices"]
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices]
    assert len(texts) == (3 if path == CHAT else 6)
    assert set(texts) <= {"red", "green", "blue"} and len(set(texts)) > 1, texts
    assert {choice["finish_reason"] for choice in choices} == {"stop"}


@pytest.mark.long(extended=True)
async def test_bombs_disturb_nobody(tiny_server: ServerProcess) -> None:
    """A seeded stream says the same while they burn, and a grammar behind them gets its turn."""
    body = talk("Tell me a story.", seed=11, temperature=1, max_tokens=150, ignore_eos=True)
    async with httpx.AsyncClient(base_url=tiny_server.url, timeout=60) as client:
        alone = await ask(client, CHAT, body, stream=True)
        burning = [client.post(CHAT, json=talk("Hi", structured_outputs=bomb)) for bomb in BOMBS]
        behind = ask(client, CHAT, talk("2 + 2?", structured_outputs={"regex": "[0-9]"}))
        results = await asyncio.gather(
            *burning, behind, *(ask(client, CHAT, body, stream=True) for _ in range(3))
        )
        for response in results[: len(BOMBS)]:
            assert isinstance(response, httpx.Response)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"].startswith("structured_outputs.")
        assert results[len(BOMBS)].finish == "stop"
        assert results[len(BOMBS) + 1 :] == [alone] * 3
        assert (await client.get("/health")).status_code == 200


def grammar_process(server: ServerProcess) -> int | None:
    for pid in server.children():
        if b"cohort: grammar" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def test_the_process_is_there_when_needed(tmp_path: Path) -> None:
    """Not before, again after somebody killed it, and never after the server."""
    with ServerProcess(["cohort-tiny"], tmp_path) as server:
        assert server.post(CHAT, talk("Hi", max_tokens=3)).status_code == 200
        assert grammar_process(server) is None
        pids = []
        for choice in ("a", "b"):
            response = server.post(CHAT, talk("Hi", structured_outputs={"choice": [choice]}))
            assert response.status_code == 200, response.text + server.log()
            assert response.json()["choices"][0]["message"]["content"] == choice
            pid = grammar_process(server)
            assert pid is not None and pid not in pids
            pids.append(pid)
            if choice == "a":
                os.kill(pid, signal.SIGKILL)
        assert server.stop() == 0
    assert state_of(pids[-1]) is None


@pytest.mark.long(extended=True)
async def test_the_server_does_not_wait_for_bombs(tmp_path: Path) -> None:
    """They would take 5 seconds each; when it is told to stop, whoever waits is told so."""
    with ServerProcess(["cohort-tiny"], tmp_path) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            bombs = [{"regex": ".*" * 20_000 + "a" * i} for i in range(4)]
            asked = [
                asyncio.create_task(client.post(CHAT, json=talk("Hi", structured_outputs=b))) for b in bombs
            ]
            while grammar_process(server) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            began = time.monotonic()
            assert await asyncio.to_thread(server.stop) == 0
            assert time.monotonic() - began < 4.0
            answers = await asyncio.gather(*asked)
            assert {answer.status_code for answer in answers} == {503}


def test_an_executor_without_grammars_starts_none(echo_server: ServerProcess) -> None:
    response = echo_server.post(CHAT, talk("Hi", response_format={"type": "json_object"}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert grammar_process(echo_server) is None


class Followed:
    """Whether texts follow a schema, by a grammar compiled here."""

    def __init__(self) -> None:
        self._judge = Validator(Setup(str(tiny.weights_dir()), 1024))

    def begins(self, schema: dict[str, Any], text: str) -> bool:
        """True if the text can be gone on with to one that follows the schema."""
        constraint = constraint_of(StructuredFields.model_validate({"structured_outputs": {"json": schema}}))
        assert constraint is not None
        matcher = self._judge._matcher(self._judge._tokenizer, alone(constraint), log_level=0)
        # A character may have been cut: its bytes come out as U+FFFD.
        tokens = self._judge._tokenizer.tokenize_str(text.rstrip("\ufffd"))
        return bool(matcher.try_consume_tokens(tokens) == len(tokens))


async def hold_to_schemas(server: ServerProcess, seed: int, count: int) -> Counter[str]:
    """Ask for `count` random schemas, each both ways with the same seed; returns how many ended how."""
    schemas, followed, ends = Schemas(seed), Followed(), Counter[str]()
    at_once = asyncio.Semaphore(12)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER

    async def one(client: httpx.AsyncClient, number: int, schema: dict[str, Any]) -> None:
        body = talk("Answer in JSON.", response_format=named(schema), max_tokens=200)
        body |= {"seed": number, "temperature": (0.2, 0.7, 1.0)[number % 3]}
        async with at_once:
            try:
                whole = await ask(client, CHAT, body)
            except AssertionError as error:
                assert "no text can satisfy" in str(error), (error, schema)
                ends["refused"] += 1
                return
            streamed = await ask(client, CHAT, body, stream=True)
        assert streamed == whole, schema
        if whole.finish == "stop":
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(whole.text))
        else:
            assert whole.finish == "length" and whole.tokens == 200
            assert followed.begins(schema, whole.text), (whole.text, schema)
        ends[whole.finish] += 1

    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await asyncio.gather(*(one(client, i, schemas.make()) for i in range(count)))
    return ends


@pytest.mark.long(extended=True)
async def test_random_schemas(tiny_server: ServerProcess) -> None:
    ends = await hold_to_schemas(tiny_server, seed=1, count=60)
    assert ends["stop"] >= 40, ends


@pytest.mark.long(full=True)
@pytest.mark.timeout(900)
async def test_five_hundred_random_schemas(tiny_server: ServerProcess, record_property: Any) -> None:
    """`pytest --full tests/e2e/test_structured.py`."""
    ends = await hold_to_schemas(tiny_server, seed=2, count=500)
    record_property("ends", dict(ends))
    print(dict(ends))
    assert ends["stop"] >= 350, ends
