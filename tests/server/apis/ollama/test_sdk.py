"""Ollama's official SDK against the application: what a scripted model says comes out of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import ollama
import pytest
from pydantic import BaseModel

from engine.errors import ExecutorFailed
from engine.text.generation import TextDelta
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from tests.server.fakes import House, spells, steps

HI = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": %s}}</tool_call>'


class Sum(BaseModel):
    a: int
    b: int


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first.
        b: The second.

    Returns:
        int: The sum.
    """
    return a + b


def client_of(house: House) -> ollama.AsyncClient:
    return ollama.AsyncClient("http://server", transport=httpx.ASGITransport(house.app))


@pytest.fixture
async def client(house: House) -> AsyncIterator[ollama.AsyncClient]:
    async with client_of(house) as one:
        yield one


Ask = Callable[..., Any]


async def both(ask: Ask, **asked: Any) -> tuple[Any, list[Any]]:
    """The whole answer, and the parts of its stream."""
    return await ask(stream=False, **asked), [part async for part in await ask(stream=True, **asked)]


async def test_a_chat(client: ollama.AsyncClient) -> None:
    whole, parts = await both(
        client.chat, model="fake", messages=HI, options={"temperature": 0, "num_ctx": 64}
    )
    assert whole.message.content == "".join(part.message.content for part in parts) == "Hello!"
    assert [part.done for part in parts] == [False] * 3 + [True]
    assert whole.done_reason == parts[-1].done_reason == "stop"
    assert (whole.prompt_eval_count, whole.eval_count) == (parts[-1].prompt_eval_count, parts[-1].eval_count)
    assert whole.total_duration >= whole.load_duration + whole.prompt_eval_duration + whole.eval_duration - 10
    assert whole.model == "fake" and whole.created_at.endswith("Z")


async def test_line_separators_do_not_break_lines(client: ollama.AsyncClient, house: House) -> None:
    """The client cuts a stream at all ends of lines that Unicode has, as Go writes none of them."""
    said = "a\x85b\u2028", "\u2029c", "é\U0001f600"
    house.engine.script = steps(
        *(TextDelta(0, text, (1,)) for text in said), TextDelta(0, "", finish_reason="stop")
    )
    whole, parts = await both(client.chat, model="fake", messages=HI)
    assert whole.message.content == "".join(part.message.content for part in parts) == "".join(said)


async def test_a_prompt(client: ollama.AsyncClient, house: House) -> None:
    whole, parts = await both(client.generate, model="fake", prompt="Hi", system="Be brief.", keep_alive=-1)
    assert whole.response == "".join(part.response for part in parts) == "Hello!"
    raw = await client.generate(model="fake", prompt="Once", raw=True, options=ollama.Options(num_predict=4))
    assert raw.response == "Hello!" and house.engine.requests[-1].max_tokens == 4


async def test_a_round_trip_of_a_tool(client: ollama.AsyncClient, house: House) -> None:
    house.engine.script = spells(CALL % 3 + CALL % 4, size=5)
    whole, parts = await both(client.chat, model="fake", messages=HI, tools=[add])
    told = [call for part in parts for call in part.message.tool_calls or ()]
    assert whole.message.tool_calls == told
    results = [add(**call.function.arguments) for call in told]
    assert results == [5, 6]
    answers = [{"role": "tool", "content": str(one), "tool_name": "add"} for one in results]
    house.engine.script = spells("5 and 6.")
    messages = [*HI, whole.message, *answers]
    last = await client.chat(model="fake", messages=messages, tools=[add])
    assert last.message.content == "5 and 6." and last.message.tool_calls is None
    assert bytes(one for one in house.engine.requests[-1].prompts[0] if one < 256).endswith(
        b'(add={"a": 2, "b": 3})(add={"a": 2, "b": 4})][tool:5][tool:6][assistant:'
    )


async def test_reasoning_and_a_format() -> None:
    house = House(notation=ModelNotation(reasoning=REASONING["qwen3"]))
    house.engine.script = spells('<think>Hm.</think>{"a": 1, "b": 2}', size=3)
    async with client_of(house) as client:
        asked = {"model": "fake", "messages": HI, "think": True, "format": Sum.model_json_schema()}
        whole, parts = await both(client.chat, **asked)
    assert Sum.model_validate_json(whole.message.content) == Sum(a=1, b=2)
    assert whole.message.thinking == "".join(part.message.thinking or "" for part in parts) == "Hm."
    assert house.engine.requests[-1].grammar is not None
    house.state.threads.close()


async def test_vectors_and_models(client: ollama.AsyncClient) -> None:
    found = await client.embed(model="fake", input=["a", "b"])
    assert len(found.embeddings) == 2 and found.prompt_eval_count == 4
    assert len((await client.embeddings(model="fake", prompt="a")).embedding) == 4
    assert [one.model for one in (await client.list()).models] == ["fake", "org/fake-1"]
    [first, _] = (await client.ps()).models
    assert first.context_length == 512 and first.expires_at.year == 9999
    shown = await client.show("fake")
    assert shown.capabilities == ["completion", "tools"] and shown.modelinfo["fake.block_count"] == 1


async def test_errors(client: ollama.AsyncClient, house: House) -> None:
    with pytest.raises(ollama.ResponseError, match=r"'options\.top_p'") as error:
        await client.chat(model="fake", messages=HI, options={"top_p": 2})
    assert error.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="does not exist") as error:
        [part async for part in await client.chat(model="nobody", messages=HI, stream=True)]
    assert error.value.status_code == 404
    for refused in (
        client.pull("x"), client.push("x"), client.create("x", from_="y"), client.copy("x", "y"), client.delete("x"),
    ):  # fmt: skip
        with pytest.raises(ollama.ResponseError, match="does not pull, create, copy, push or delete models"):
            await refused
    house.engine.script = steps(TextDelta(0, "a", (7,)), ExecutorFailed("gone"))
    heard = []
    with pytest.raises(ollama.ResponseError, match="gone"):
        async for part in await client.chat(model="fake", messages=HI, stream=True):
            heard.append(part.message.content)
    assert heard == ["a"]
