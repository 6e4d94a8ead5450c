"""Traces: a collector gets one tree of spans for each call."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import Overloaded
from executors.testing.fakes.failures import Failure
from server.settings.load import SettingsError
from server.startup.new_state import open_traces
from tests.otlp_receiver import Receiver
from tests.server.fakes import House
from tests.server.test_on_engine import PROMPT, ask, serving

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@asynccontextmanager
async def traced(house: House) -> AsyncIterator[Receiver]:
    """A collector that has all spans once the block is left."""
    with Receiver() as receiver:
        traces = open_traces(receiver.url)
        assert traces is not None
        house.state.stories.on_end(traces.tell)
        yield receiver
        await asyncio.to_thread(traces.close)


async def test_a_call_is_one_tree_recovery_included(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        assert house.state.core is not None
        house.state.core.executor.failures.append(Failure("die", step=4))  # type: ignore[attr-defined]
        begun = time.time()
        async with traced(house) as receiver:
            async with house.client() as client:
                body = {"prompt": PROMPT[:20], "max_tokens": 8, "ignore_eos": True, "temperature": 0, "n": 2}
                answer = await client.post("/v1/completions", json=body, headers={"traceparent": PARENT})
                assert answer.status_code == 200
                await ask(house, "chat")
    first, second = receiver.trees()
    assert first.names() == ["text_completion fake", "queue", "prefill", ["decode", "recovery"]]
    assert second.names() == ["chat fake", "queue", "prefill", "decode"]
    root = first.span
    assert (root.trace, root.parent) == (PARENT.split("-")[1], PARENT.split("-")[2])
    assert second.span.parent == "" and second.span.trace != root.trace
    assert {span.trace for span in receiver.spans} == {root.trace, second.span.trace}
    queue, prefill, decode = (child.span for child in first.children)
    assert begun <= root.begin <= queue.begin and queue.end == prefill.begin and prefill.end == decode.begin
    recovery = first.children[2].children[0].span
    assert decode.begin <= recovery.begin < recovery.end <= decode.end <= root.end <= time.time()
    assert recovery.attributes == {"cohort.cause": "executor_died:fake", "cohort.choices": 2}
    usage = answer.json()["usage"]
    for name, value in {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 16,
        "http.response.status_code": 200,
        "cohort.resumed": 2,
    }.items():
        assert root.attributes[name] == value, name
    assert receiver.resources[0]["service.name"] == "cohort"
    assert not any(PROMPT[:20] in str(value) for span in receiver.spans for value in span.attributes.values())


async def test_refusals_and_what_the_client_does_not_sample(house: House) -> None:
    async with traced(house) as receiver:
        async with house.client() as client:
            body = {"prompt": "Hi"}
            await client.post("/v1/completions", json=body, headers={"traceparent": f"{PARENT[:-2]}00"})
            house.engine.refusal = Overloaded("full", 3)
            await client.post("/v1/completions", json=body, headers={"traceparent": "nonsense"})
    [tree] = receiver.trees()
    assert tree.names() == "text_completion fake"
    assert tree.span.attributes["error.type"] == "overloaded" and not tree.span.failed
    [story] = (await house.get("/v1/requests?outcome=refused")).json()["data"]
    assert story["trace_id"] == tree.span.trace


@pytest.mark.long
async def test_a_collector_that_is_gone_costs_no_answer(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as receiver:
        url = receiver.url.replace("//", "//user:a-secret@") + "?token=b-secret"
    traces = open_traces(url)
    assert traces is not None
    house.state.stories.on_end(traces.tell)
    assert (await house.chat()).status_code == 200
    begun = time.monotonic()
    await asyncio.to_thread(traces.close)
    assert time.monotonic() - begun < 8
    assert "/v1/traces?(removed)" in caplog.text and "-secret" not in caplog.text


async def test_calls_that_are_no_chats_have_names_of_their_own(house: House) -> None:
    calls = (("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt"))
    async with traced(house) as receiver:
        async with house.client() as client:
            for path, text in calls:
                answer = await client.post(path, json={"model": "fake", text: "Hi"})
                assert answer.status_code == 200, answer.text
            await client.post("/v1/rerank", json={"model": "fake", "query": "q", "documents": ["d"]})
            await client.post("/score", json={"model": "fake", "text_1": "a", "text_2": "b"})
    names = [tree.span.name for tree in receiver.trees()]
    assert names == [*["embeddings fake"] * len(calls), "rerank fake", "score fake"]


def test_wrong_settings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_traces(None) is None
    with pytest.raises(SettingsError, match="a URL such as"):
        open_traces("localhost:4318")
    monkeypatch.delitem(sys.modules, "server.telemetry.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"cohort-server\[otel\]"):
        open_traces("http://localhost:4318/v1/traces")
