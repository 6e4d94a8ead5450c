"""Stored responses: retrieved, continued, listed, deleted, and generated without their client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from engine.errors import ExecutorFailed, Overloaded
from engine.text.generation import TextDelta, TextRequest
from server.apis.responses import routes as responses
from server.state.responses.store import MemoryResponseStore
from tests.server.api_schema import check_answer
from tests.server.apis.responses.test_routes import ask, events_of, prompt_of, types_of
from tests.server.fakes import House, Step, error_of, says, steps
from tests.server.http.raw_http import serving


async def get(house: House, path: str, **params: Any) -> Any:
    response = await house.get(f"/v1/responses/{path}", params=params)
    check_answer(response)
    return response


async def act(house: House, method: str, path: str) -> Any:
    async with house.client() as client:
        response = await client.request(method, f"/v1/responses/{path}")
    check_answer(response)
    return response


async def until(house: House, response_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while (found := (await get(house, response_id)).json())["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return dict(found)


def paused(*before: str) -> tuple[asyncio.Event, Any]:
    """A script that says some words, waits, and ends."""
    go = asyncio.Event()

    def script(request: TextRequest) -> Iterable[Step]:
        for number, word in enumerate(before):
            yield TextDelta(0, word, (number,))
        yield go
        yield TextDelta(0, "!", (9,), finish_reason="stop")

    return go, script


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_kept(house: House, stream: bool) -> None:
    response = await ask(house, stream=stream)
    answer = events_of(response)[-1]["response"] if stream else response.json()
    assert (await get(house, answer["id"])).json() == answer


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_kept_if_the_client_says_so(house: House, stream: bool) -> None:
    response = await ask(house, stream=stream, store=False)
    answer = events_of(response)[-1]["response"] if stream else response.json()
    assert answer["store"] is False
    assert error_of(await get(house, answer["id"]))["code"] == "response_not_found"
    refused = await ask(house, previous_response_id=answer["id"])
    assert refused.status_code == 404 and error_of(refused)["code"] == "previous_response_not_found"
    assert error_of(refused)["param"] == "previous_response_id"


async def test_a_conversation_goes_on(house: House) -> None:
    first = (await ask(house, instructions="Once.")).json()
    second = (await ask(house, input="More", previous_response_id=first["id"])).json()
    assert prompt_of(house).endswith("[user:Hi][assistant:Hello!][user:More][assistant:")
    assert "Once." not in prompt_of(house), "instructions are of one response"
    await ask(house, input=None, previous_response_id=second["id"])
    assert prompt_of(house).endswith("[user:More][assistant:Hello!][assistant:")


async def test_items_are_found_by_reference(house: House) -> None:
    [item] = (await ask(house)).json()["output"]
    items = [
        {"role": "user", "content": "q"},
        {"type": "item_reference", "id": item["id"]},
        {"role": "user", "content": "r"},
    ]
    assert (await ask(house, input=items)).status_code == 200
    assert prompt_of(house).endswith("[user:q][assistant:Hello!][user:r][assistant:")
    refused = await ask(house, input=[{"type": "item_reference", "id": "msg_x"}])
    assert refused.status_code == 404 and error_of(refused)["param"] == "input.0.id"


async def test_a_conversation_does_not_grow_for_ever(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "_MOST_STORED_BYTES", 3000)
    first = (await ask(house, input="x" * 300)).json()
    references = [{"type": "item_reference", "id": first["output"][0]["id"]}] * 2
    assert (await ask(house, input=references)).status_code == 200
    for body in (
        {"input": references * 20},
        {"input": [{"role": "user", "content": ""}] * 4095, "previous_response_id": first["id"]},
    ):
        refused = await ask(house, **body)
        assert refused.status_code == 400 and error_of(refused)["code"] == "context_length_exceeded"
        assert "16 MiB" in error_of(refused)["message"]


async def test_input_items_come_in_pages(house: House) -> None:
    items = [{"role": "user", "content": f"q{number}"} for number in range(5)]
    answer = (await ask(house, input=items)).json()

    def texts(page: Any) -> list[str]:
        return [item["content"][0]["text"] for item in page.json()["data"]]

    path = f"{answer['id']}/input_items"
    assert texts(await get(house, path)) == ["q4", "q3", "q2", "q1", "q0"]
    page = await get(house, path, order="asc", limit=2)
    assert texts(page) == ["q0", "q1"] and page.json()["has_more"] is True
    page = await get(house, path, order="asc", limit=3, after=page.json()["last_id"])
    assert texts(page) == ["q2", "q3", "q4"] and page.json()["has_more"] is False
    for bad in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"after": "msg_x"}):
        refused = await get(house, path, **bad)
        assert refused.status_code == 400 and error_of(refused)["param"] == next(iter(bad))


async def test_a_deleted_response_is_gone(house: House) -> None:
    answer = (await ask(house)).json()
    deleted = await act(house, "DELETE", answer["id"])
    assert deleted.json() == {"id": answer["id"], "object": "response", "deleted": True}
    for response in (
        await get(house, answer["id"]),
        await get(house, f"{answer['id']}/input_items"),
        await act(house, "DELETE", answer["id"]),
        await act(house, "POST", f"{answer['id']}/cancel"),
        await ask(house, previous_response_id=answer["id"]),
        await ask(house, input=[{"type": "item_reference", "id": answer["output"][0]["id"]}]),
    ):
        assert response.status_code == 404
    store = house.state.responses
    assert isinstance(store, MemoryResponseStore) and len(store) == store.counted_bytes == 0


async def test_a_key_sees_only_its_own() -> None:
    house = House(options={"api_keys": ["one", "two"]})

    async def as_(key: str, method: str, path: str = "", **body: Any) -> Any:
        async with house.client(headers={"Authorization": f"Bearer {key}"}) as client:
            url = f"/v1/responses{path}"
            return await client.request(method, url, json={"model": "fake", **body} if body else None)

    answer = (await as_("one", "POST", input="secret")).json()
    path = f"/{answer['id']}"
    for method, where in (
        ("GET", path),
        ("GET", f"{path}/input_items"),
        ("POST", f"{path}/cancel"),
        ("DELETE", path),
    ):
        assert (await as_("two", method, where)).status_code == 404
    assert (await as_("two", "POST", input="q", previous_response_id=answer["id"])).status_code == 404
    reference = [{"type": "item_reference", "id": answer["output"][0]["id"]}]
    assert (await as_("two", "POST", input=reference)).status_code == 404
    assert (await as_("one", "GET", path)).status_code == 200


async def test_a_background_response_goes_on_without_its_client(house: House) -> None:
    go, house.engine.script = paused("Hel", "lo")
    queued = (await ask(house, background=True)).json()
    assert queued["status"] == "queued" and queued["background"] is True
    await until(house, queued["id"], "in_progress")
    refused = await ask(house, previous_response_id=queued["id"])
    assert error_of(refused)["param"] == "previous_response_id"
    go.set()
    answer = await until(house, queued["id"], "completed")
    assert answer["output"][0]["content"][0]["text"] == "Hello!"
    house.engine.script = says("Yes")
    await ask(house, input="r", previous_response_id=queued["id"])
    assert "[assistant:Hello!][user:r]" in prompt_of(house)


async def test_a_stream_is_resumed_after_its_client_is_gone(running: Any, house: House) -> None:
    go, house.engine.script = paused("Hel", "lo")
    async with httpx.AsyncClient(base_url=running.url) as live:
        body = {"model": "fake", "input": "Hi", "background": True, "stream": True}
        seen: list[dict[str, Any]] = []
        async with live.stream("POST", "/v1/responses", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                if seen and seen[-1]["type"] == "response.output_text.delta":
                    break
    response_id = seen[0]["response"]["id"]
    assert [event["type"].removeprefix("response.") for event in seen[:3]] == [
        "created",
        "queued",
        "in_progress",
    ]
    assert not house.engine.aborted
    go.set()
    await until(house, response_id, "completed")
    rest = await get(house, response_id, stream="true", starting_after=seen[-1]["sequence_number"])
    events = [*seen, *events_of(rest)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (
        "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        == "Hello!"
    )
    assert events[-1]["response"] == (await get(house, response_id)).json()
    whole = await get(house, response_id, stream="true")
    assert events_of(whole) == events
    nothing = await house.get(
        f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": 10**6}
    )
    assert nothing.status_code == 200 and nothing.text == ""


async def test_two_readers_follow_one_response(house: House) -> None:
    go, house.engine.script = paused("Hel")
    queued = (await ask(house, background=True)).json()
    readers = [asyncio.create_task(get(house, queued["id"], stream="true")) for _ in range(2)]
    await house.engine.paused.wait()
    await asyncio.sleep(0.01)
    go.set()
    one, two = await asyncio.gather(*readers)
    assert one.text == two.text and types_of(one)[-1] == "completed"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_cancel_and_delete_end_a_background_response(house: House, method: str) -> None:
    _, house.engine.script = paused("Hel")
    queued = (await ask(house, background=True)).json()
    await house.engine.paused.wait()
    reader = asyncio.create_task(get(house, queued["id"], stream="true"))
    await asyncio.sleep(0.01)
    response = await act(house, method, queued["id"] + ("/cancel" if method == "POST" else ""))
    assert len(house.engine.aborted) == 1 and not house.engine.open
    assert types_of(await reader)[-1] == "cancelled"
    if method == "POST":
        assert response.json()["status"] == "cancelled"
        assert response.json()["output"][0]["status"] == "incomplete"
        assert (await act(house, "POST", f"{queued['id']}/cancel")).json() == response.json()
        assert (await get(house, queued["id"])).json() == response.json()
    else:
        assert (await get(house, queued["id"])).status_code == 404


async def test_only_background_responses_are_cancelled_and_streamed_again(house: House) -> None:
    answer = (await ask(house)).json()
    assert (await act(house, "POST", f"{answer['id']}/cancel")).status_code == 400
    assert error_of(await get(house, answer["id"], stream="true"))["param"] == "stream"
    for bad in ({"stream": "maybe"},):
        assert (await get(house, answer["id"], **bad)).status_code == 400


async def test_a_background_response_that_the_engine_refuses_is_refused(house: House) -> None:
    house.engine.refusal = Overloaded("full")
    response = await ask(house, background=True)
    assert response.status_code == 429
    store = house.state.responses
    assert isinstance(store, MemoryResponseStore) and len(store) == 0


async def test_a_background_response_that_fails_says_so(house: House) -> None:
    house.engine.script = steps(TextDelta(0, "a", (1,)), ExecutorFailed("gone"))
    queued = (await ask(house, background=True)).json()
    answer = await until(house, queued["id"], "failed")
    assert answer["error"] == {"code": "server_error", "message": "gone"}


async def test_closing_the_store_ends_what_runs(house: House) -> None:
    _, house.engine.script = paused("Hel")
    queued = (await ask(house, background=True)).json()
    await house.engine.paused.wait()
    reader = asyncio.create_task(get(house, queued["id"], stream="true"))
    await asyncio.sleep(0.01)
    await house.state.responses.close()
    assert types_of(await reader)[-1] == "cancelled"
    assert len(house.engine.aborted) == 1


async def test_a_full_store_takes_no_more_background_responses(house: House) -> None:
    house.state.responses = MemoryResponseStore(2, 10**6, 60.0)
    go, house.engine.script = paused("Hel")
    for _ in range(2):
        assert (await ask(house, background=True)).status_code == 200
    refused = await ask(house, background=True)
    assert refused.status_code == 429 and error_of(refused)["code"] == "responses_store_full"
    assert len(house.engine.open) == 2, "the refused one is not left behind"
    go.set()
    await asyncio.sleep(0.05)
    assert (await ask(house, background=True)).status_code == 200
    await asyncio.sleep(0.05)


async def test_a_background_response_that_outgrows_the_store_ends(house: House) -> None:
    house.state.responses = MemoryResponseStore(2, 100_000, 60.0)
    house.engine.script = steps(*(TextDelta(0, "x" * 2000, (1,)) for _ in range(1000)))
    queued = (await ask(house, background=True)).json()
    async with asyncio.timeout(5):
        while house.engine.open:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert len(house.engine.aborted) == 1
    assert (await get(house, queued["id"])).status_code == 404


@pytest.mark.long
async def test_a_shutdown_ends_background_responses_and_tells_their_readers(house: House) -> None:
    _, house.engine.script = paused("Hel")
    async with serving(house) as running, httpx.AsyncClient(base_url=running.url) as client:
        body = {"model": "fake", "input": "Hi", "background": True}
        queued = (await client.post("/v1/responses", json=body)).json()
        await house.engine.paused.wait()
        reader = asyncio.create_task(client.get(f"/v1/responses/{queued['id']}?stream=true", timeout=10))
        await asyncio.sleep(0.1)
        running.core.work.set()
        running.signals.arrived()
        running.signals.arrived()  # at once: the reader is owed an answer, which a drain would wait for
        told = await reader
    assert types_of(told)[-1] == "cancelled"
    assert len(house.engine.aborted) == 1 and not house.engine.open
