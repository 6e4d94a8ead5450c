"""Answers that are not streamed: what their choices repeat of the prompt is bounded, kept once, and sent a piece at a time."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from engine.text.generation import TextDelta
from server.answer.prompt_tokens import PromptSide
from server.apis.completions.encode import CompletionProgress
from server.http import buffered
from server.http.buffered import AnswerBudget, ChunkedJSON
from server.schemas.completions import CompletionRequest
from tests.loop_turns import LoopTurns
from tests.server.fakes import House, error_of, events, says

ODD = 'He said: "a\\b"\n\u2028é 日本 👍🏽\x00<s>'


def long_house(tokens: int) -> House:
    """A server whose model has room for so many."""
    house = House()
    assert house.state.model is not None
    house.state.model = replace(house.state.model, max_model_len=tokens)
    return house


async def sent(house: House, body: dict[str, Any]) -> tuple[int, dict[bytes, bytes], int]:
    """Status, headers and the number of bytes of an answer that nobody keeps."""
    given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    status, headers, size = 0, {}, 0

    async def receive() -> Any:
        if given:
            return given.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status, headers, size
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
        else:
            size += len(message["body"])

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
        "query_string": b"", "headers": [], "scheme": "http", "server": ("server", 80), "client": ("client", 1),
    }  # fmt: skip
    await house.app(scope, receive, send)
    return status, headers, size


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"echo": True}, "echo"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"echo": True, "return_token_ids": True}, "return_token_ids"),
    ],
)
async def test_what_choices_repeat_is_bounded(
    house: House, asked: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered, "MAX_ANSWER_BYTES", 8000)
    body: dict[str, Any] = {"prompt": ["x" * 100, "y" * 100], "max_tokens": 1, **asked}
    repeated = 100 * ("echo" in asked) + len("[256" + ",120" * 100 + "]") * ("return_token_ids" in asked)
    fits = 8000 // (2 * repeated)
    assert (await house.complete(**body, n=fits)).status_code == 200
    response = await house.complete(**body, n=fits + 1)
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == (param, "answer_too_large")
    assert len(house.engine.requests) == 1, "it was computed first"
    ranked = await house.complete(**body, best_of=60)
    assert ranked.status_code == 200, "only what is shown counts"
    assert events(await house.complete(**body, n=60, stream=True))[-1] == "[DONE]"


def test_each_part_is_refused_by_what_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered, "MAX_ANSWER_BYTES", 10)
    room = AnswerBudget()
    room.take(6, "echo")
    room.take(4, "return_token_ids")
    with pytest.raises(Exception, match="10 bytes") as refused:
        room.take(1, "logprobs")
    assert (refused.value.param, refused.value.code) == ("logprobs", "answer_too_large")  # type: ignore[attr-defined]


# -- once --------------------------------------------------------------------------------------------------------------


def test_choices_share_what_is_encoded_of_their_prompt() -> None:
    body = CompletionRequest.model_validate({"prompt": "x", "echo": True, "return_token_ids": True, "n": 2})
    side = PromptSide(body, tuple(range(1000)), ODD * 50)
    choices = [CompletionProgress(index, body, side) for index in range(2)]
    for choice in choices:
        choice.take(TextDelta(choice.index, f'"{choice.index}', (7,), finish_reason="stop"))
    pieces = [choice.answer(choice.index) for choice in choices]
    large = [{id(piece) for piece in one if len(piece) > 1000} for one in pieces]
    assert len(large[0]) == 2
    assert large[0] == large[1]
    for index, one in enumerate(pieces):
        answer = json.loads(b"".join(one))
        assert answer["text"] == ODD * 50 + f'"{index}'
        assert (answer["prompt_token_ids"], answer["token_ids"]) == (list(range(1000)), [7])


async def test_odd_texts_are_repeated_as_they_were(house: House) -> None:
    for stream in (False, True):
        response = await house.complete(prompt=ODD, echo=True, n=2, stream=stream)
        if stream:
            texts = ["", ""]
            for event in map(json.loads, events(response)[:-1]):
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
        else:
            texts = [choice["text"] for choice in response.json()["choices"]]
        assert texts == [ODD + "Hello!"] * 2


async def test_an_answer_takes_no_more_memory_than_one_of_its_choices() -> None:
    house = long_house(300_000)
    house.engine.script = says("a")
    body = {"prompt": "x" * 200_000, "n": 32, "echo": True, "return_token_ids": True, "max_tokens": 0}
    await sent(house, body | {"n": 1})
    tracemalloc.start()
    try:
        status, headers, size = await sent(house, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 200
    assert int(headers[b"content-length"]) == size > 32 * 900_000
    assert peak < size / 2


# -- a piece at a time -------------------------------------------------------------------------------------------------


async def test_others_run_while_an_answer_is_sent() -> None:
    house = long_house(300_000)
    house.engine.script = says("a")

    async def turns_of(n: int) -> int:
        body = {"prompt": "x" * 100_000, "n": n, "echo": True, "max_tokens": 0, "add_special_tokens": False}
        async with LoopTurns() as turns:
            assert (await sent(house, body))[0] == 200
        return turns.count

    await turns_of(1)
    alone = await turns_of(1)
    many = await turns_of(64)
    assert many > 64, (alone, many)


async def test_small_pieces_go_out_together() -> None:
    pieces = [b"ab"] * 50_000 + [b"x" * 500_000, b"c"]
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await ChunkedJSON(pieces)({"type": "http"}, None, send)  # type: ignore[arg-type]
    start, *bodies = messages
    assert dict(start["headers"])[b"content-length"] == b"600001"
    assert dict(start["headers"])[b"content-type"] == b"application/json"
    assert b"".join(one["body"] for one in bodies) == b"".join(pieces)
    assert [one["more_body"] for one in bodies] == [True] * (len(bodies) - 1) + [False]
    assert len(bodies) < 8
    assert any(one["body"] is pieces[-2] for one in bodies), "what is large is not copied"
