"""What is counted from a body's arrival, and what of a large one is done beside the event loop."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from server.apis.chat import routes as chat
from server.http import large_body
from server.prepare import chat as preparing
from server.prepare import structured_output
from server.prepare.chat import PreparedChat, prepare_chat
from server.schemas.chat import ChatRequest
from tests.server.fakes import House, error_of

SMALL, LARGE = {"a": {"type": "string"}}, {f"k{i}": {"type": "string", "maxLength": 9} for i in range(600)}


def _tool(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": properties}},
    }


async def test_a_call_arrives_when_its_body_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its prompt takes to make."""
    house = House()

    async def slowly(*given: Any) -> PreparedChat:
        await asyncio.sleep(0.2)
        return await prepare_chat(*given)

    monkeypatch.setattr(chat, "prepare_chat", slowly)
    begun = time.monotonic()
    await house.chat()
    took = time.monotonic() - begun
    arrived = house.engine.requests[0].context.arrival_time
    assert took >= 0.2 and begun <= arrived < begun + took - 0.2
    await house.complete()
    await house.post("/v1/embeddings", {"input": "a"})
    later = house.engine.requests[-1].context.arrival_time, house.engine.embedded[-1].context.arrival_time
    assert all(when > begun + took for when in later)


@pytest.mark.parametrize("properties", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", ["tools", "response_format", "completions"])
async def test_large_schemas_are_gone_through_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any], way: str
) -> None:
    where: dict[str, set[str]] = {}

    def watch(module: Any, name: str) -> None:
        work: Callable[..., Any] = getattr(module, name)

        def watched(*given: Any, **named: Any) -> Any:
            where.setdefault(name, set()).add(threading.current_thread().name.rsplit("_", 1)[0])
            return work(*given, **named)

        monkeypatch.setattr(module, name, watched)

    watch(preparing, "chat_grammar")
    watch(preparing, "constraint_of")
    watch(structured_output, "constraint_of")
    watch(ChatRequest, "offered_tools")
    house = House()
    schema = {"type": "object", "properties": properties}
    if way == "tools":
        response = await house.chat(tools=[_tool(properties)], tool_choice="required")
    elif way == "response_format":
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = await house.chat(response_format=form)
    else:
        response = await house.complete(structured_outputs={"json": schema})
    assert response.status_code == 200, response.text
    assert where["constraint_of"] == {"MainThread" if properties is SMALL else "cohort-text"}
    assert set.union(*where.values()) == where["constraint_of"]
    assert len(where) == {"tools": 3, "response_format": 3, "completions": 1}[way]


async def test_work_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(*_: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(preparing, "constraint_of", for_ever)
    monkeypatch.setattr(large_body, "_DEADLINE", 0.1)
    house = House()
    response = await asyncio.wait_for(house.chat(metadata={"a": "x" * 400}, user="y" * 20_000), 20)
    assert response.status_code == 400, response.text
    assert "too long" in error_of(response)["message"]
