"""The executor is killed, stopped and crashed: no stream loses, repeats or reorders a token.

`make chaos` runs all of it; figures are printed (`-s`). The short form in the ordinary suite has fewer positions.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors.tiny import weights_dir
from tests.chaos.client import Stream, open_client, ready_pid, restarts, strike
from tests.chaos.crashing_executor import POISON
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.e2e

EXACT = ["--deterministic", "--dtype", "float32", "--max-num-seqs", "256"]
TOKENS = 40
AGES = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 9}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "ages": AGES},
    "required": ["name", "ages"],
    "additionalProperties": False,
}


def asks(text: str, **settings: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        **settings,
    }


KINDS: dict[str, dict[str, Any]] = {
    "greedy": asks("Tell me a story about a fox.", temperature=0),
    "seeded": asks("Tell me a story about a river.", temperature=1.3, seed=11),
    "JSON schema": {
        **asks("Anna is 31 years old and lives in Rome. Give me JSON.", temperature=1.0, seed=5),
        "ignore_eos": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    },
    "n=3": asks("Count from 1 to 15.", temperature=1.2, seed=3, n=3),
    "stop string": asks(
        "Tell me a story about a king.", temperature=1.0, seed=8, stop=["qzx", "the end of all"]
    ),
    "logprobs": asks("What is 47 + 25?", temperature=1.0, seed=2, logprobs=True, top_logprobs=4),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(EXACT, tmp_path_factory.mktemp("chaos")) as running:
        yield running


async def undisturbed(server: ServerProcess, bodies: list[dict[str, Any]]) -> list[Stream]:
    async with open_client(server) as client:
        streams = await asyncio.gather(*(Stream(body).run(client) for body in bodies))
    assert all(stream.error is None for stream in streams)
    return streams


def check(expected: list[Stream], found: list[Stream], when: str) -> None:
    for want, got in zip(expected, found, strict=True):
        assert got.error is None, (when, got.body, got.error)
        assert got.said() == want.said(), (when, got.body)


async def kill_at(server: ServerProcess, position: int, expected: list[Stream]) -> float:
    """SIGKILL once every stream has so many tokens; returns the longest pause."""
    streams, pid = [Stream(body) for body in KINDS.values()], await ready_pid(server)
    async with open_client(server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(position) for stream in streams))
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*running)
    check(expected, streams, f"killed at {position}")
    return max(stream.longest_pause for stream in streams)


async def _positions(server: ServerProcess, positions: range) -> None:
    expected = await undisturbed(server, list(KINDS.values()))
    assert all(stream.tokens >= 20 for stream in expected), "too short to be killed in the middle"
    pauses = [await kill_at(server, position, expected) for position in positions]
    await restarts(server, "signal", len(positions))
    print(f"{len(positions)} kills, {len(KINDS)} kinds: all equal; longest pause {max(pauses):.2f} s")


@pytest.mark.timeout(120)
async def test_a_kill_at_some_positions_changes_nothing(server: ServerProcess) -> None:
    await _positions(server, range(3, 20, 12))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_kill_at_every_position_changes_nothing(server: ServerProcess) -> None:
    await _positions(server, range(TOKENS))


async def _many(server: ServerProcess, count: int, strikes: int, number: signal.Signals) -> None:
    rng = random.Random(count)
    bodies = [
        asks(f"Tell me a story about number {i}.", temperature=1.0, seed=i, max_tokens=rng.randrange(60, 200))
        for i in range(count)
    ]
    expected = await undisturbed(server, bodies)
    streams = [Stream(body) for body in bodies]
    began = time.monotonic()
    async with open_client(server) as client:
        running = asyncio.gather(*(stream.run(client) for stream in streams))
        struck = 0
        while struck < strikes and not running.done():
            await asyncio.sleep(rng.random() * 0.3)
            await strike(server, number)
            struck += 1
        await running
    check(expected, streams, f"{struck} x {number.name}")
    pause = max(stream.longest_pause for stream in streams)
    print(
        f"{count} streams, {struck} x {number.name}: 0 failed, all equal, longest pause {pause:.2f} s, "
        f"{time.monotonic() - began:.1f} s in all"
    )
    assert struck >= min(strikes, 1)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_many_streams_bear_some_kills(server: ServerProcess) -> None:
    await _many(server, 60, 2, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_200_streams_bear_20_kills(server: ServerProcess) -> None:
    await _many(server, 200, 20, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_streams_bear_an_executor_that_is_stopped(server: ServerProcess) -> None:
    await _many(server, 50, 3, signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_who_crashes_the_executor_fails_alone(tmp_path: Path) -> None:
    factory = "tests.chaos.crashing_executor:CrashingFactory"
    args = ["--executor", factory, "--model", str(weights_dir()), *EXACT]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with ServerProcess(args, tmp_path, env=env) as server:
        bodies = [asks(f"Tell me a story about number {i}.", temperature=1.0, seed=i) for i in range(50)]
        expected = await undisturbed(server, bodies)
        streams, culprit = [Stream(body) for body in bodies], Stream(asks("Hello", seed=POISON))
        async with open_client(server) as client:
            running = asyncio.gather(*(stream.run(client) for stream in streams))
            await streams[0].reaches(5)
            answer = await client.post("/v1/chat/completions", json=culprit.body)
            await running
        check(expected, streams, "beside a request that crashes the executor")
        assert answer.status_code == 500, answer.text
        assert answer.json()["error"]["type"] == "executor_error"
        times = server.metric('cohort_executor_restarts_total{cause="exit"}')
        pause = max(stream.longest_pause for stream in streams)
        print(f"50 neighbours equal, {times:g} restarts, longest pause {pause:.2f} s")
        assert times == 3
