"""Requests that are made to cost much: refused cheaply, and never on the event loop's time."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequest
from server.apis.tokens.schema import DetokenizeRequest, TokenizeRequest
from server.http import buffered
from server.prepare import chat_prompt
from server.schemas import base, volume
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from tests.server.fakes import AS_JSON, House, error_of, events, spells

pytestmark = pytest.mark.long

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


@pytest.mark.long(every=4)
@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    ("path", "body", "param"), CASES, ids=[f"{path} {param}" for path, _, param in CASES]
)
async def test_long_lists_of_the_wrong_thing(house: House, path: str, body: bytes, param: str) -> None:
    begun = time.thread_time()
    async with house.client() as client:
        response = await client.post(path, content=body, headers=AS_JSON)
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
    body = b'{"prompt":"a","foo":[1' + b",[]" * 130_000 + b"]}"
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
    try:
        async with house.client() as client:
            assert (await client.post("/v1/completions", content=body, headers=AS_JSON)).status_code == 200
    finally:
        gc.callbacks.pop()
    assert len(collections) < 20, "130,000 lists make some 180 collections"
    assert gc.isenabled()


async def test_the_collector_is_back_after_bodies_at_once(house: House) -> None:
    """Whatever became of them: answered, refused, given up by their client."""
    bodies = [b'{"prompt":"a","foo":[1' + b",[]" * 20_000 + end for end in (b"]}", b"}") * 4]
    async with house.client() as client:
        calls = [
            asyncio.create_task(client.post("/v1/completions", content=body, headers=AS_JSON))
            for body in bodies
        ]
        await asyncio.sleep(0.02)
        calls[-1].cancel()
        calls[-2].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {answer.status_code for answer in answers if not isinstance(answer, BaseException)} == {200, 400}
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


HOARDS = {
    "values": b'{"prompt":"a","foo":[1' + b",5" * 8_000_000 + b"]}",
    "lists and objects": b'{"prompt":"a","foo":[1' + b",[]" * 500_000 + b"]}",
    "keys": b'{"prompt":"a","foo":{"a":1' + b',"a":1' * 500_000 + b"}}",
}


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("what", HOARDS)
async def test_hoards_are_refused_before_they_are_parsed(house: House, what: str) -> None:
    async with house.client() as client:
        response = await client.post("/v1/completions", content=HOARDS[what], headers=AS_JSON)
    assert response.status_code == 400
    assert what in error_of(response)["message"]


def test_what_stands_in_strings_is_not_counted() -> None:
    volume.check_volume(json.dumps({"prompt": ',[{:"\\' * 300_000}).encode())
    volume.check_volume(json.dumps({"prompt": ["\\" * 1001 + '"[' * 131_000]}).encode())


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab\\",:[{}]\n\u00e9'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a\\",:['), inner),
)


@given(JSON, st.integers(1, 12))
def test_counting_in_pieces_equals_counting_one_by_one(value: Any, chunk: int) -> None:
    def counted(value: Any) -> tuple[int, int, int]:
        if not isinstance(value, list | dict):
            return 0, 0, 0
        inner = [counted(one) for one in (value.values() if isinstance(value, dict) else value)]
        commas, containers, keys = (
            (sum(column) for column in zip(*inner, strict=True)) if inner else (0, 0, 0)
        )
        return commas + max(0, len(value) - 1), containers + 1, keys + len(value) * isinstance(value, dict)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(volume, "_CHUNK", chunk)
        *_, found = volume.running_counts(json.dumps(value, ensure_ascii=False).encode())
    assert tuple(found.tolist()) == counted(value)


def calling(*arguments: str) -> list[dict[str, Any]]:
    """A conversation in which the assistant has called, twice in a turn."""
    calls = [{"function": {"name": "f", "arguments": one}} for one in arguments]
    turns = [calls[first : first + 2] for first in range(0, len(calls), 2)]
    return [{"role": "user", "content": "Hi"}] + [{"role": "assistant", "tool_calls": one} for one in turns]


LISTS = '{"a":[1' + ",[]" * 50_000 + "]}"


@pytest.mark.long(every=3)
@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        (['{"a":[1' + ",[]" * 5_000_000 + "]}"], "messages.1.tool_calls.0.function.arguments"),
        (["{}", LISTS, "{", LISTS, LISTS], "messages.3.tool_calls.0.function.arguments"),
        (["", '{"a":{"k":1' + ',"k":1' * 200_000], "messages.1.tool_calls.1.function.arguments"),
    ],
    ids=["one", "many", "keys"],
)
async def test_arguments_of_earlier_calls_are_counted_before_they_are_decoded(
    house: House, path: str, arguments: list[str], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_prompt, "_plain_message", None)
    response = await house.post(path, {"messages": calling(*arguments)})
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert error_of(response)["message"].startswith("The request body holds too much: more than")


def test_what_stands_in_strings_of_arguments_is_not_counted() -> None:
    """Files that were written by a call, say."""
    code = json.dumps({"text": 'def f(a: int, b: dict[str, "x"]) -> None:\n' * 100_000})
    volume.check_texts({"a": code, "b": code, "c": code[:-5], "d": "[" * 60_000})
    with pytest.raises(InvalidRequest, match="objects") as refused:
        volume.check_texts({"a": code, "d": "[" * 100_000, "e": "\ud800" * 70_000, "f": "[" * 100_000})
    assert refused.value.param == "f"


async def test_arguments_are_decoded_on_a_thread(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, plain = set(), chat_prompt._plain_message

    def spy(*args: Any) -> Any:
        threads.add(threading.current_thread())
        return plain(*args)

    monkeypatch.setattr(chat_prompt, "_plain_message", spy)
    assert (await house.chat(messages=calling('{"a": 1}'))).status_code == 200
    assert '(f={"a": 1})' in bytes(house.asked().prompts[0]).decode()
    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_whole_answers_end_where_their_logprobs_grow_too_large(
    house: House, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream has no such end."""
    monkeypatch.setattr(buffered, "MAX_ANSWER_BYTES", 2000)
    house.engine.script = spells("x" * 200)
    asked: dict[str, Any] = {"logprobs": True} if route == "chat" else {"logprobs": 1}
    response = await getattr(house, route)(**asked)
    assert response.status_code == 400
    assert error_of(response)["param"] == "logprobs"
    assert error_of(response)["code"] == "answer_too_large"
    assert house.engine.aborted == [house.asked().context.request_id]
    assert (await getattr(house, route)()).status_code == 200
    assert events(await getattr(house, route)(stream=True, **asked))[-1] == "[DONE]"
