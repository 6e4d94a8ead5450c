"""The stories of calls over HTTP: on a real engine, whose executor is a fake."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from engine.errors import Overloaded
from server.telemetry.stories.ring import Stories
from tests.server.api_schema import check, check_answer
from tests.server.fakes import House, error_of, says, steps
from tests.server.test_on_engine import OTHER, PROMPT, ask, serving


async def stories(house: House, query: str = "") -> list[dict[str, Any]]:
    response = await house.get(f"/v1/requests{query}")
    assert response.status_code == 200, response.text
    check_answer(response)
    listed: list[dict[str, Any]] = response.json()["data"]
    return listed


async def story_of(house: House, id_: str) -> dict[str, Any]:
    response = await house.get(f"/v1/requests/{id_}")
    assert response.status_code == 200, response.text
    check_answer(response)
    story: dict[str, Any] = response.json()
    return story


async def test_a_call_is_found_by_both_ids_with_its_numbers(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        await ask(house)
        answer = await ask(house, prompt=PROMPT[:40] + OTHER)
        story = await story_of(house, answer["id"])
        assert story == await story_of(house, story["request_id"])
        [listed, first] = await stories(house)
        assert listed == {name: value for name, value in story.items() if not name.startswith("events")}
    usage = answer["usage"]
    assert story["prompt_tokens"] == usage["prompt_tokens"] and story["output_tokens"] == 8
    assert story["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert (story["outcome"], story["status"], story["finish_reasons"]) == ("length", 200, ["length"])
    assert (story["route"], story["model"], story["state"]) == ("/v1/completions", "fake", "ended")
    prefix = story["prefix"]
    assert prefix["missed"] == "differs" and prefix["matched_tokens"] <= prefix["first_difference"]
    assert first["prefix"]["missed"] == "new"
    parts = [story[f"{part}_seconds"] for part in ("prepare", "queue", "prefill", "decode")]
    assert all(part >= 0 for part in parts) and abs(sum(parts) - story["e2e_seconds"]) < 1e-4
    assert story["ttft_seconds"] <= story["e2e_seconds"]
    assert [event["event"] for event in story["events"]] == [
        "received", "queued", "admitted", "first_token", "finished", "answered",
    ]  # fmt: skip


async def test_a_call_is_found_by_the_id_that_its_client_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        for name, count in (("shop-1", 3), ("shop-2", 4), ("shop-1", 5)):
            async with house.client() as client:
                body = {"model": "fake", "prompt": PROMPT, "max_tokens": count}
                await client.post("/v1/completions", json=body, headers={"x-request-id": name})
        assert (await story_of(house, "shop-2"))["output_tokens"] == 4
        assert (await story_of(house, "shop-1"))["output_tokens"] == 5, "the latest of that name"
        found = await stories(house, "?client_request_id=shop-1&sort=output_tokens")
        assert [story["output_tokens"] for story in found] == [5, 3]
        assert await stories(house, "?client_request_id=shop") == []


async def test_stories_are_sorted_and_chosen(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        for count in (3, 9, 6):
            await ask(house, max_tokens=count)
        await house.complete(prompt="a" * 10_000)
        by_length = await stories(house, "?sort=output_tokens")
        assert [story["output_tokens"] for story in by_length] == [9, 6, 3, 0]
        assert [
            s["output_tokens"] for s in await stories(house, "?sort=output_tokens&order=asc&limit=2")
        ] == [0, 3]
        slowest = [story["ttft_seconds"] for story in await stories(house, "?sort=ttft")]
        assert slowest[:3] == sorted(slowest[:3], reverse=True) and slowest[3] is None, (
            "no token, so it comes last"
        )
        [refused] = await stories(house, "?outcome=refused,error")
        assert (refused["status"], refused["code"]) == (400, "context_length_exceeded")
        assert len(await stories(house, "?outcome=length&outcome=refused")) == 4
        assert await stories(house, "?model=other") == []
        more = (await house.get("/v1/requests?limit=3")).json()
        assert more["has_more"] is True and len(more["data"]) == 3


async def test_a_call_under_way_is_told_so_far() -> None:
    pause = asyncio.Event()
    house = House()
    house.engine.script = lambda request: [pause, *says("a")(request)]
    running = asyncio.create_task(house.chat(stream=True))
    await house.engine.paused.wait()
    [story] = await stories(house, "?outcome=active")
    assert (story["outcome"], story["status"], story["stream"]) == (None, None, True)
    assert story["id"].startswith("chatcmpl-")
    pause.set()
    await running
    assert await stories(house, "?outcome=active") == []


async def test_bad_queries_and_unknown_calls_are_refused(house: House) -> None:
    for query in ("sort=speed", "order=up", "outcome=good", "limit=0", "limit=x", "state=running"):
        response = await house.get(f"/v1/requests?{query}")
        assert response.status_code == 400 and error_of(response)["param"] == query.partition("=")[0]
    response = await house.get("/v1/requests/chatcmpl-none")
    assert response.status_code == 404 and error_of(response)["code"] == "request_not_found"


async def test_stories_need_the_admin_key() -> None:
    house = House(options={"api_keys": ["secret"]})
    async with house.client(headers={"Authorization": "Bearer secret"}) as client:
        for path in ("/v1/requests", "/v1/requests/", "/v1/requests/req_1"):
            assert (await client.get(path)).status_code == 401, path
        await client.post("/v1/completions", json={"prompt": "Hi"})
    async with house.client(headers={"Authorization": "Bearer admin"}) as client:
        [story] = (await client.get("/v1/requests?key=key-1")).json()["data"]
    assert story["key"] == "key-1"


async def test_the_ring_keeps_the_last_ones() -> None:
    house = House()
    house.state.stories._most = 2
    for _ in range(4):
        await house.chat()
    assert len(await stories(house)) == 2
    nothing = Stories(0)
    story = nothing.begin(0.0, "req_1", "/", "", None)
    assert nothing.get("req_1") is not None
    story.answer(1.0, 200, None)
    assert nothing.get("req_1") is None


async def test_a_call_is_over_when_engine_and_answer_are() -> None:
    over: list[str] = []
    stories = Stories()
    stories.on_end(lambda story: over.append(story.request_id))
    for number, order in enumerate((("queue", "answer", "finish"), ("queue", "finish", "answer"))):
        story = stories.begin(0.0, f"req_{number}", "/", "", None)
        for act in order:
            assert len(over) == number
            if act == "queue":
                story.queue(0.0, 0, Part(), 3)
            elif act == "finish":
                story.finish(1.0, 0, "stop", 2)
            else:
                story.answer(1.0, 200, None)
    assert over == ["req_0", "req_1"]


class Part:
    output_token_ids: list[int] = []
    paused = False


async def test_the_access_log_tells_the_story(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        await ask(house)
        with structlog.testing.capture_logs() as logs:
            async with house.client() as client:
                body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
                headers = {"x-request-id": "mine\x1b[31m"}
                await client.post("/v1/completions", json=body, headers=headers)
    [line] = [entry for entry in logs if entry["event"] == "POST /v1/completions"]
    assert line["client_request_id"] == "mine\\x1b[31m"
    assert line["output_tokens"] == 4 and line["finish"] == "length" and line["cached_tokens"] > 0
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["ms"]
    assert "preempted" not in line and "resumed" not in line


async def test_prompts_are_logged_only_if_asked_for(house: House) -> None:
    shown = []
    for asked in (False, True):
        assert house.state.model is not None
        house.state.model = replace(house.state.model, log_prompts=asked)
        with structlog.testing.capture_logs() as logs:
            await house.complete(prompt="se\ncret")
            await house.chat(messages=[{"role": "user", "content": "secret"}])
        assert ("secret" in str(logs)) is asked
        shown += [entry["prompt"] for entry in logs if "prompt" in entry]
        assert "secret" not in (await house.get("/v1/requests")).text
    assert shown == ["<s>se\\ncret", "<s>[user:secret][assistant:"]


async def test_refusals_and_failed_streams_are_told(house: House) -> None:
    house.engine.refusal = Overloaded("full", 3)
    await house.chat()
    house.engine.refusal = None
    house.engine.script = steps(RuntimeError("boom"))
    await house.complete(stream=True)
    await house.post("/v1/embeddings", {"input": 7.5})
    invalid, failed, full = await stories(house)
    assert (full["outcome"], full["status"], full["code"]) == ("refused", 429, "overloaded")
    assert (failed["outcome"], failed["status"]) == ("error", 500)
    assert (invalid["outcome"], invalid["status"], invalid["id"]) == ("refused", 400, None)
    check("RequestStory", (await house.get(f"/v1/requests/{invalid['request_id']}")).json())
