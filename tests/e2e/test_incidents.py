"""Three incidents as an operator meets them: late first tokens, 429s, an executor that is killed again and again. Stories name
the cause, with its seconds and numbers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

ADMIN = {"Authorization": "Bearer boss"}
ECHO = ["--executor", "echo", "--admin-key", "boss", "--log-format", "json"]


def stories(server: ServerProcess, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/v1/requests?{query}", headers=ADMIN).json()["data"]
    return found


def log_lines(server: ServerProcess, path: str = "POST /v1/completions") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == path]


def prompt(number: int, tokens: int) -> list[int]:
    return [number + 2] * tokens


async def ask(client: httpx.AsyncClient, ids: list[int], max_tokens: int, key: str = "") -> httpx.Response:
    body = {"prompt": ids, "max_tokens": max_tokens, "ignore_eos": True}
    return await client.post(
        "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"} if key else {}
    )


def at_once(server: ServerProcess, calls: list[tuple[list[int], int, str]]) -> list[httpx.Response]:
    async def main() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(ask(client, *call) for call in calls))

    return asyncio.run(main())


def split_is_whole(story: dict[str, Any]) -> bool:
    return bool(sum(story["waited_for"].values()) == pytest.approx(story["queue_seconds"], abs=2e-3))


NOTICED = 0.1
"""Seconds of a wait from which on the log says what it was for."""


def longest_waits(crowd: list[dict[str, Any]], slots: int) -> list[dict[str, Any]]:
    """The stories of a crowd that found all slots taken again and again, each checked to have waited so long.

    With S slots and calls that run for T seconds at least, call 2 S + 1 is admitted 2 T after the first one. How long calls
    run, and how far apart they come, is measured: a busy machine sends slowly.
    """
    turn = min(story["prefill_seconds"] + story["decode_seconds"] for story in crowd)
    received = [story["received"] for story in crowd]
    apart = max(received) - min(received) + max(story["prepare_seconds"] for story in crowd)
    waits = sorted(crowd, key=lambda story: story["queue_seconds"])[2 * slots :]
    assert waits and all(story["queue_seconds"] > 2 * turn - apart - 0.01 for story in waits), (turn, apart)
    return waits


def test_late_first_tokens_have_their_cause(tmp_path: Path) -> None:
    """Full slots, then the reserve of the fair share, then a long prompt beside: the same symptom, three causes."""
    file = tmp_path / "keys"
    file.write_text("batch sesame\nshop open\n")
    options = ("step_delay_ms=20", "prompt_token_ms=2", "num_blocks=4000")
    args = ["--executor", "paged_fake", *ECHO[2:], "--api-key-file", str(file)]
    args += ["--max-num-seqs", "8", "--max-num-batched-tokens", "256"]
    for option in options:
        args += ["--executor-option", option]
    with ServerProcess(args, tmp_path) as server:
        at_once(server, [(prompt(number, 4), 30, "sesame") for number in range(24)])
        full = stories(server, "sort=received&limit=24&order=desc")
        assert at_once(server, [(prompt(1, 4), 2, "open")])[0].status_code == 200
        at_once(server, [(prompt(number, 4), 30, "sesame") for number in range(24)])
        shared = stories(server, "sort=received&limit=24&order=desc")
        long = [(prompt(number, 1500), 1, "open") for number in (100, 101)]
        first = threading.Thread(target=at_once, args=(server, long))
        first.start()
        while [story["prompt_tokens"] for story in stories(server, "sort=received&limit=2")] != [1500, 1500]:
            time.sleep(0.01)
        at_once(server, [(prompt(102, 4), 2, "open")])
        first.join()
        beside = stories(server, "sort=received&limit=3")
        line = [line for line in log_lines(server) if line.get("waited_for") == "fair_share"]
        fair_seconds = server.metric('cohort_request_queue_seconds_total{cause="fair_share"}')
    assert all(split_is_whole(story) for story in (*full, *shared, *beside))
    for story in longest_waits(full, slots=8):
        if story["queue_seconds"] > NOTICED:
            assert story["waited_for"]["slots"] > 0.6 * story["queue_seconds"], (
                story
            )  # the rest: steps that ran
    assert not any("fair_share" in story["waited_for"] for story in full), "one key alone has all the slots"
    for story in longest_waits(shared, slots=8):
        if story["queue_seconds"] > NOTICED:
            assert story["waited_for"]["fair_share"] > 0.6 * story["queue_seconds"], story
    told = sum(story["waited_for"].get("fair_share", 0.0) for story in shared)
    assert line and line[-1]["queue_ms"] >= 1e3 * NOTICED and fair_seconds >= 0.99 * told > NOTICED
    [short] = [story for story in beside if story["prompt_tokens"] < 100]
    left = (
        max(story["received"] + story["ttft_seconds"] for story in beside if story is not short)
        - short["received"]
    )
    assert short["ttft_seconds"] > 0.9 * left > 0.0, "it waits for what is left of the long prompts"
    assert short["waited_for"]["tokens"] > 0.5 * short["queue_seconds"], short
    computing = [story for story in beside if story["prompt_tokens"] > 1000]
    assert max(story["prefill_seconds"] for story in computing) > 2.0
    assert {story["prefix"]["missed"] for story in computing} <= {"new", "differs"}, "a cold prefix"
    assert all(story["cached_tokens"] < 100 for story in computing)


def test_429s_have_their_cause_and_its_numbers(tmp_path: Path) -> None:
    """The estimated wait on arrival; the queue's limit; the share of one key in a full queue; a wait that was too long."""
    paced = [*ECHO, "--executor-option", "step_delay_ms=20", "--executor-option", "prompt_token_ms=0.1"]
    with ServerProcess([*paced, "--max-num-seqs", "4", "--max-queue-wait", "3"], tmp_path) as server:
        answers = at_once(server, [(prompt(number, 8), 50, "") for number in range(60)])
        called = stories(server, "sort=received&limit=100")
        refused = stories(server, "outcome=refused&limit=100")
        lines = [line for line in log_lines(server) if line["status"] == 429]
    told = [answer for answer in answers if answer.status_code == 429]
    assert len(told) == len(refused) == len(lines)
    # Four at a time run for a second each: those at the beginning, and those whose turn comes within three seconds of their call,
    # which a busy machine sends late.
    received = [story["received"] for story in called]
    assert len(answers) - len(told) <= 4 * (2 + 3 + max(received) - min(received))
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in told)
    at_arrival = [story["refused"] for story in refused if story["refused"]["because"] == "estimated_wait"]
    assert len(at_arrival) >= 0.9 * len(refused), "hardly any was let in to be dropped later"
    for why in at_arrival:
        assert why["limit"] == 3 and 2.7 < why["estimated_wait"] < 60 and why["queued_seqs"] >= 4, why
        # A second look at the queue may correct the estimate of one that was let in: soon, or it was let in to be dropped.
        assert (why["waited"] or 0.0) < 0.5 * why["limit"], why
    assert {line["refused"] for line in lines} <= {"estimated_wait", "waited"}

    file = tmp_path / "keys"
    file.write_text("batch sesame\nshop open\n")
    unpaced = [
        *ECHO,
        "--executor-option",
        "step_delay_ms=100",
        "--max-num-seqs",
        "1",
        "--api-key-file",
        str(file),
    ]
    (other := tmp_path / "two").mkdir()
    with ServerProcess([*unpaced, "--max-queued-seqs", "10", "--max-queue-wait", "3"], other) as server:
        calls = [(prompt(number, 8), 60, "sesame") for number in range(30)]
        answers = at_once(server, [*calls, (prompt(99, 8), 2, "open")])
        refused = stories(server, "outcome=refused&limit=100&key=batch")
        shop = stories(server, "key=shop")
    full = [one["refused"] for one in refused if one["refused"]["because"] == "queued_seqs"]
    assert full and all(why["limit"] == 10 and why["queued_of_key"] >= 9 for why in full), full
    waited = [one for one in refused if one["refused"]["because"] == "waited"]
    assert waited and all(story["refused"]["waited"] == pytest.approx(3.0, abs=0.5) for story in waited)
    for story in waited:
        assert story["refused"]["limit"] == 3 and split_is_whole(story), story
        assert max(story["waited_for"], key=story["waited_for"].get) == "slots"
    assert shop[0]["refused"] is None or shop[0]["refused"]["because"] == "waited", "its share is not used up"


def test_an_executor_that_is_killed_again_and_again_is_in_every_story(tmp_path: Path) -> None:
    """Each story tells how often, what ended the executor, and the seconds that went to restarts and to computing again."""
    args = [*ECHO, "--executor-option", "step_delay_ms=25", "--max-num-seqs", "2"]
    kills, stop = [], threading.Event()

    def kill(server: ServerProcess) -> None:
        """When both running calls have 30 more tokens of their 120, however fast that is here."""
        while not stop.wait(0.05) and len(kills) < 3:
            tokens = sorted(story["output_tokens"] for story in stories(server, "sort=received"))
            far = len(tokens) > 1 and tokens[-2] >= 30 * (len(kills) + 1)
            if far and (children := server.children()):
                kills.append(time.monotonic())
                os.kill(children[0], signal.SIGKILL)

    with ServerProcess(args, tmp_path) as server:
        killer = threading.Thread(target=kill, args=(server,))
        killer.start()
        try:
            answers = at_once(server, [(prompt(number, 40), 120, "") for number in range(3)])
        finally:
            stop.set()
            killer.join()
        found = stories(server, "sort=received&order=asc")
        restarts = server.metric('cohort_executor_restarts_total{cause="signal"}')
    assert [answer.status_code for answer in answers] == [200] * 3 and len(kills) == 3
    assert restarts == 3
    running = sorted(found, key=lambda story: story["queue_seconds"])[:2]
    for story in running:
        lost = story["interruptions"]
        assert lost["count"] == story["resumed"] == 3, story
        assert lost["causes"] == {"executor_died:signal": lost["count"]}
        assert lost["restart_seconds"] > 0.9 * lost["outage_seconds"] > 0 and lost["recompute_seconds"] > 0
        both = lost["restart_seconds"] + lost["recompute_seconds"]
        assert both == pytest.approx(story["paused_for"]["recovery"], abs=1e-3)
        assert both < story["decode_seconds"] + story["prefill_seconds"]
    [waiting] = [story for story in found if story not in running]
    assert split_is_whole(waiting)
    # It waited while both ran, so it waited through the same outages, however long a restart takes here.
    outages = running[0]["interruptions"]["outage_seconds"]
    assert waiting["waited_for"]["recovery"] == pytest.approx(outages, rel=0.1)
    assert waiting["waited_for"]["slots"] > 1.0
