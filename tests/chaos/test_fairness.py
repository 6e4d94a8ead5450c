"""One tenant with hundreds of requests queued, another that asks one thing at a time: the second hardly notices the first.

Fair by default where there are several API keys. Idle and loaded are measured in turn, so that what else the machine does falls
on both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load import Answer, Target, percentile, results
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

KEYS = "many", "one"
STORY = "A fox went to the river and met a king who had lost his crown in the water. "


def large(number: int) -> dict[str, Any]:
    """Of the tenant with many: prompts of 50 to 1,300 tokens, answers of 30 to 150."""
    prompt = f"Number {number}. " + STORY * (1 + number * 7 % 24)
    return {"prompt": prompt, "max_tokens": 30 + number * 11 % 120, "ignore_eos": True, "seed": number}


def small(number: int) -> dict[str, Any]:
    """Of the other: a short question each time another one, of which nothing is in the cache."""
    prompt = f"{number} is a number.\nTell me a story about it, and about a fox and a river."
    return {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "seed": number, "stream": True}


@dataclass
class Seen:
    """Of the tenant with one request at a time. Seconds."""

    ttft: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    """Between two tokens of its streams: how long steps take."""

    def take(self, answer: Answer) -> None:
        assert answer.status == 200 and answer.done, answer
        self.ttft.append(answer.ttft)
        self.step.append((answer.events[-1] - answer.events[0]) / (len(answer.events) - 1))


@asynccontextmanager
async def crowd(server: ServerProcess, count: int) -> AsyncIterator[list[Answer]]:
    """So many requests of the first tenant, all the time; gives those that were answered."""
    target, answered = Target(server, KEYS[0]), []

    async def user(number: int) -> None:
        while True:
            answer = await target.ask(large(number))
            assert answer.status == 200, answer.error
            answered.append(answer)
            number += count

    users = [asyncio.create_task(user(number)) for number in range(count)]
    try:
        await settled(server, "cohort_requests_waiting", lambda waiting: waiting >= count * 0.8)
        yield answered
    finally:
        for one in users:
            one.cancel()
        ended = await asyncio.gather(*users, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended


async def ask_in_turn(server: ServerProcess, first: int, count: int) -> Seen:
    """One request after the other, of the second tenant."""
    target, seen = Target(server, KEYS[1]), Seen()
    for number in range(first, first + count):
        seen.take(await target.ask(small(number)))
        await asyncio.sleep(0.02)
    return seen


async def settled(server: ServerProcess, metric: str, good: Callable[[float], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if good(await asyncio.to_thread(server.metric, metric)):
                return
            await asyncio.sleep(0.05)


async def fairness(server: ServerProcess, many: int, rounds: int, each: int) -> dict[str, float]:
    """Idle, loaded, idle, loaded, ...; medians over all requests of a kind."""
    idle, loaded, served, asked = Seen(), Seen(), 0, 1000
    await ask_in_turn(server, 0, 5)
    seconds = 0.0
    for _ in range(rounds):
        for seen, count in ((idle, 0), (loaded, many)):
            await settled(server, "cohort_requests_running", lambda running: not running)
            async with crowd(server, count) as answered:
                began = time.monotonic()
                found = await ask_in_turn(server, asked, each)
                seconds += (time.monotonic() - began) if count else 0.0
            served, asked = served + len(answered), asked + each
            seen.ttft += found.ttft
            seen.step += found.step
    step = statistics.median(loaded.step)
    return {
        "requests": len(loaded.ttft),
        "queued_by_the_other": many,
        "idle_ttft_p50_s": statistics.median(idle.ttft),
        "loaded_ttft_p50_s": statistics.median(loaded.ttft),
        "idle_ttft_p90_s": percentile(idle.ttft, 0.9),
        "loaded_ttft_p90_s": percentile(loaded.ttft, 0.9),
        "idle_step_s": statistics.median(idle.step),
        "loaded_step_s": step,
        "bound_s": 2 * statistics.median(idle.ttft) + step,
        "others_served_per_s": served / seconds,
    }


def serve(folder: Path, *args: str) -> ServerProcess:
    keys = [part for key in KEYS for part in ("--api-key", key)]
    return ServerProcess(["cohort-tiny", *keys, "--max-queue-wait", "3600", *args], folder)


@pytest.mark.timeout(120)
async def test_one_at_a_time_beside_many(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        found = await fairness(server, 100, 1, 5)
    print(found)
    # First come, first served it would have to wait until most of the hundred are served.
    assert found["loaded_ttft_p50_s"] * found["others_served_per_s"] < 100 / 8


@pytest.mark.long(full=True)
@pytest.mark.timeout(900)
async def test_one_at_a_time_beside_500(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        found = await fairness(server, 500, 3, 10)
    results("fairness", "500 queued", found)
    assert found["loaded_ttft_p50_s"] <= found["bound_s"]
    assert found["others_served_per_s"] > 0
