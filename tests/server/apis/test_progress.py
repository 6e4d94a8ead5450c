"""Comments of a chat's stream that tell what it waits for."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request

from engine.core.step_watch import SequenceView
from engine.request import Stage
from server.apis.base.progress import INTERVAL, ProgressForm, progress, stream_form
from server.http.event_stream import KEEP_ALIVE
from tests.server.fakes import House


def view(request_id: str, status: str) -> SequenceView:
    return SequenceView(1, request_id, 0, status, 0.0, 70, 0, 32, 0, 100, 0, 0)


def test_states_of_the_server_come_first(house: House) -> None:
    house.core.views = [view("other", "waiting"), view("a", "waiting")]
    assert progress(house.state, "a") == {"state": "waiting", "place": 2}
    house.core.stage, house.core.detail = Stage.RECOVERING, "the process died"
    told = progress(house.state, "a")
    assert told.pop("seconds") >= 0.0
    assert told == {"state": "recovering", "detail": "the process died"}


def test_an_api_worker_says_that_it_does_not_know(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.core, "stats", lambda: None)
    assert progress(house.state, "a") == {"state": "unknown", "id": "a"}


def test_only_who_asks_is_told(house: House) -> None:
    for headers, interval in ([], KEEP_ALIVE), ([(b"x-cohort-progress", b"1")], INTERVAL):
        request = Request({"type": "http", "headers": headers})
        found, form = stream_form(request, house.state, "a")
        assert found == interval
        assert isinstance(form, ProgressForm) == bool(headers)
        assert form.keep_alive().startswith(b": ")


async def test_a_waiting_stream_tells_its_place(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments stand before the first event, and the events are as without the header."""
    monkeypatch.setattr("server.apis.base.progress.INTERVAL", 0.01)
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    go, script = asyncio.Event(), house.engine.script

    def sequences(most: int) -> list[SequenceView]:
        go.set()
        return [view("other", "waiting"), view(house.engine.requests[-1].context.request_id, "waiting")]

    async with house.client() as client:
        plain = (await client.post("/v1/chat/completions", json=body)).text
        house.engine.script = lambda request: [go, *script(request)]
        monkeypatch.setattr(house.core, "sequences", sequences)
        answer = await client.post("/v1/chat/completions", json=body, headers={"X-Cohort-Progress": "1"})
    first, *rest = answer.text.split("\n\n")
    assert first.startswith(": progress ")
    assert json.loads(first.removeprefix(": progress ")) == {"state": "waiting", "place": 2}
    events = [block for block in rest if not block.startswith(":")]
    assert len(events) == len(plain.split("\n\n")) and events[-2] == "data: [DONE]"
