"""Requests that are made to cost much: refused cheaply, and never on the event loop's time."""

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.schemas import base
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from tests.server.fakes import House, error_of

COUNT = 400_000
CASES: list[tuple[str, bytes, str]] = [
    ("/v1/completions", b'{"prompt":[1' + b',""' * COUNT + b"]}", "prompt.1"),
    ("/v1/completions", b'{"prompt":[[""' + b',""' * COUNT + b"]]}", "prompt.0.0"),
    ("/v1/completions", b'{"prompt":["a"' + b",5" * COUNT + b"]}", "prompt.1"),
    ("/v1/completions", b'{"prompt":[1' + b",5" * 2**20 + b"]}", "prompt"),
    ("/v1/completions", b'{"prompt":"a","stop":["a"' + b",5" * COUNT + b"]}", "stop.1"),
    ("/v1/completions", b'{"prompt":"a","stop_token_ids":[""' + b',""' * COUNT + b"]}", "stop_token_ids.0"),
    ("/detokenize", b'{"tokens":[""' + b',""' * COUNT + b"]}", "tokens.0"),
    ("/detokenize", b'{"tokens":[1' + b",5" * 2**20 + b"]}", "tokens"),
    ("/v1/chat/completions", b'{"messages":[1' + b",5" * COUNT + b"]}", "messages.0"),
    (
        "/v1/chat/completions",
        b'{"messages":[{"role":"user","content":[1' + b",5" * COUNT + b"]}]}",
        "messages.0.content.0",
    ),
    ("/v1/chat/completions", b'{"messages":[{"role":"user"}],"tools":[1' + b",5" * COUNT + b"]}", "tools.0"),
]


@pytest.fixture
def frozen() -> Iterator[None]:
    """Keep what earlier tests left behind out of the collector: a collection of it takes longer than what is timed."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    ("path", "body", "param"), CASES, ids=[f"{path} {param}" for path, _, param in CASES]
)
async def test_long_lists_of_the_wrong_thing(house: House, path: str, body: bytes, param: str) -> None:
    begun = time.thread_time()
    async with house.client() as client:
        response = await client.post(path, content=body)
    spent = time.thread_time() - begun
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert spent < 0.5, "the event loop's thread did the work"


def test_every_list_of_the_schemas_stops_at_its_first_error() -> None:
    def lists(schema: Any) -> Any:
        if isinstance(schema, dict):
            if schema.get("type") == "list":
                yield schema
            for value in schema.values():
                yield from lists(value)
        elif isinstance(schema, list | tuple):
            for value in schema:
                yield from lists(value)

    for model in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest):
        found = list(lists(model.__pydantic_core_schema__))
        assert found
        for schema in found:
            assert schema.get("fail_fast"), schema
            assert schema.get("max_length"), schema


def test_names_of_union_members_are_no_fields() -> None:
    assert not {"str", "one text", "one list of ids", "several texts", "lists of ids"} & base.field_names()


async def test_the_collector_stays_out_of_parsing(house: House) -> None:
    body = b'{"prompt":"a","foo":[1' + b",[]" * 300_000 + b"]}"
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
    try:
        async with house.client() as client:
            assert (await client.post("/v1/completions", content=body)).status_code == 200
    finally:
        gc.callbacks.pop()
    assert len(collections) < 50, "300,000 lists make some 400 collections"
    assert gc.isenabled()


@pytest.mark.usefixtures("frozen")
async def test_many_unknown_keys(house: House) -> None:
    begun = time.thread_time()
    response = await house.complete(**{f"unknown_parameter_{number}": 1 for number in range(100_000)})
    assert response.status_code == 400
    assert error_of(response)["code"] == "unknown_parameter"
    assert time.thread_time() - begun < 1.5
    assert (await house.complete(**{f"x{number}": 1 for number in range(64)})).status_code == 200
    assert (await house.complete(**{f"x{number}": 1 for number in range(65)})).status_code == 400


async def test_long_unknown_names_are_not_compared(house: House) -> None:
    assert (await house.complete(**{"temperatur" + "e" * 40: 1})).status_code == 200
    assert (await house.complete(temperatur=1)).status_code == 400


async def test_logprobs_of_many_choices(house: House) -> None:
    response = await house.chat(n=128, logprobs=True, top_logprobs=20)
    assert error_of(response)["param"] == "top_logprobs"
    response = await house.complete(prompt=["a"] * 100, logprobs=20)
    assert error_of(response)["param"] == "logprobs"
    assert (await house.chat(n=64, logprobs=True, top_logprobs=20)).status_code == 200
