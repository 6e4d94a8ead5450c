"""What a client, a probe and an operator see while the executor comes back, and deaths at the worst moments."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.asked import JSON_SCHEMA, asks, goes_on, kinds, mixed
from tests.chaos.client import (
    Stream,
    another_pid,
    answers,
    check,
    executor_pid,
    gone,
    metric,
    open_client,
    reaches,
    ready_pid,
)
from tests.chaos.conftest import ChaosServer
from tests.chaos.crashing_executor import LATER, LATER_NOT_A_NUMBER, NOT_A_NUMBER, REFUSED, Strike
from tests.chaos.figures import record

pytestmark = pytest.mark.long

NAN_FAILURES = 'cohort_requests_failed_total{code="sequence_failed"}'
SIGNALLED = 'cohort_executor_restarts_total{cause="signal"}'
LOADING = 'cohort_executor_restarts_total{cause="load"}'
RESUMED = "cohort_requests_resumed_total"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServer]:
    """Steps of 128 tokens; unhealthy after 4 s of recovery."""
    args = ("--max-num-seqs", "64", "--max-num-batched-tokens", "128", "--recovery-timeout", "4")
    with ChaosServer(tmp_path_factory.mktemp("small"), *args) as running:
        yield running


async def kill(server: ChaosServer) -> int:
    """SIGKILL; returns once the process is reaped, with its id."""
    pid = await ready_pid(server)
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    return pid


async def status(client: httpx.AsyncClient, path: str) -> tuple[int, str]:
    answer = await client.get(path)
    return answer.status_code, answer.json()["status"]


async def nothing_left(server: ChaosServer) -> None:
    """Nobody runs, nobody waits, no block is held."""
    async with asyncio.timeout(30):
        for name in ("cohort_requests_running", "cohort_requests_waiting", "cohort_kv_blocks_used"):
            while True:
                if not await metric(server, name):
                    break
                await asyncio.sleep(0.05)


async def hold_back(
    server: ChaosServer, seconds: float, probe: Callable[[httpx.AsyncClient], Awaitable[None]]
) -> list[Stream]:
    """Kill the executor under streams, let the next one load for so long, send requests meanwhile; all answers are compared.

    `probe` is called in the middle of it.
    """
    running = mixed(random.Random(4), 12, lengths=(150, 250))
    late = mixed(random.Random(5), 6, lengths=(20, 40))
    expected = await answers(server, running + late)
    blocks, resumed = await metric(server, "cohort_kv_blocks"), await metric(server, RESUMED)
    streams = [Stream(body) for body in running + late]
    async with open_client(server) as client:
        tasks = [asyncio.create_task(stream.run(client)) for stream in streams[: len(running)]]
        await asyncio.gather(*(stream.reaches(3) for stream in streams[: len(running)] if stream.streams))
        (server.folder / "hold").touch()
        await kill(server)
        live = await metric(server, "cohort_requests_running") + await metric(
            server, "cohort_requests_waiting"
        )
        tasks += [asyncio.create_task(stream.run(client)) for stream in streams[len(running) :]]
        more = sum(body.get("best_of") or body.get("n") or 1 for body in late)
        await reaches(server, "cohort_requests_waiting", live + more)
        began = time.monotonic()
        assert await status(client, "/live") == (200, "live")
        assert await status(client, "/ready") == (503, "recovering")
        assert await status(client, "/health") == (200, "recovering")
        await probe(client)
        await asyncio.sleep(seconds - (time.monotonic() - began))
        (server.folder / "hold").unlink()
        await asyncio.gather(*tasks)
        assert await status(client, "/ready") == await status(client, "/health") == (200, "ready")
    check(expected, streams, f"held back for {seconds} s")
    assert await metric(server, "cohort_kv_blocks") == blocks
    assert await metric(server, RESUMED) - resumed == live > 0
    await nothing_left(server)
    return streams


async def nothing(client: httpx.AsyncClient) -> None:
    """No further question."""


@pytest.mark.timeout(120)
async def test_who_comes_while_it_is_away_is_answered(server: ChaosServer) -> None:
    before = await metric(server, SIGNALLED)
    await hold_back(server, 0.3, nothing)
    assert await metric(server, SIGNALLED) == before + 1


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_a_long_recovery_is_told_to_clients_and_probes(small: ChaosServer) -> None:
    """Comments after ten silent seconds keep streams alive; /health gives up after --recovery-timeout, the server
    does not."""

    async def unhealthy(client: httpx.AsyncClient) -> None:
        await asyncio.sleep(4.5)
        assert await status(client, "/health") == (503, "recovering")
        assert await status(client, "/live") == (200, "live")

    streams = await hold_back(small, 12.0, unhealthy)
    told = [stream.comments for stream in streams if stream.streams and stream.longest_pause > 11]
    record(
        "a load of 12 s",
        count=len(streams),
        failed=0,
        lost_or_repeated=0,
        longest_pause_s=max(stream.longest_pause for stream in streams),
        restarts=1,
        load_s=small.load_s,
        fewest_keep_alives=min(told),
    )
    assert min(told) >= 1 and len(told) > 8


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_a_kill_while_it_recovers_from_a_kill(server: ChaosServer) -> None:
    bodies = list(kinds().values())
    expected = await answers(server, bodies)
    before, loading = await metric(server, SIGNALLED), await metric(server, LOADING)
    streams = [Stream(body) for body in bodies]
    async with open_client(server) as client:
        tasks = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(2) for stream in streams if stream.streams))
        (server.folder / "hold").touch()
        pid = await kill(server)
        for _ in range(2):
            pid = await another_pid(server, pid)
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
        (server.folder / "hold").unlink()
        await asyncio.gather(*tasks)
    check(expected, streams, "killed thrice at once")
    assert await metric(server, SIGNALLED) == before + 1 and await metric(server, LOADING) == loading + 2


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_a_kill_in_the_middle_of_a_long_prompt(small: ChaosServer) -> None:
    """1,300 tokens in steps of 128, with neighbours that decode; what was told of the prompt's tokens is not told twice."""
    long = " ".join(f"The number {i} is here." for i in range(75))
    bodies = [
        asks("Tell me a story.", temperature=1.0, seed=1, max_tokens=120),
        asks(long, temperature=1.0, seed=2, n=2),
        goes_on(long, temperature=1.0, seed=3, stream=False, logprobs=1, prompt_logprobs=1, n=2),
        goes_on(long, temperature=0, seed=4, stream=False, logprobs=1, echo=True),
    ]
    expected = await answers(small, bodies)
    assert all(stream.usage is not None and stream.usage[0] > 1000 for stream in expected[1:])
    for seed in (2, 3, 4):
        before = await metric(small, SIGNALLED)
        bodies = [
            {**body, "cache_salt": f"salt {seed}"} for body in bodies
        ]  # nothing is taken from the prefix cache
        streams = [Stream(body) for body in bodies]
        Strike(seed, None).leave(small.folder)
        async with open_client(small) as client:
            await asyncio.gather(*(stream.run(client) for stream in streams))
        check(expected, streams, f"killed in the prompt of request {seed}")
        assert await metric(small, SIGNALLED) == before + 1
        (small.folder / "struck").unlink()


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("first", ["disconnect", "kill"])
async def test_a_kill_beside_clients_that_leave(server: ChaosServer, first: str) -> None:
    bodies = mixed(random.Random(9), 24, lengths=(150, 250))
    expected = await answers(server, bodies)
    streams = [Stream(body) for body in bodies]
    aborted = await metric(server, 'cohort_requests_total{outcome="abort"}')
    pid = await ready_pid(server)
    async with open_client(server) as client:
        tasks = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(3) for stream in streams if stream.streams))
        if first == "kill":
            os.kill(pid, signal.SIGKILL)
        leaving = [task for task in tasks[::2] if not task.done()]
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        if first == "disconnect":
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*tasks[1::2])
    check(expected[1::2], streams[1::2], "beside those who left")
    assert len(leaving) > 3
    await reaches(server, 'cohort_requests_total{outcome="abort"}', aborted + len(leaving))
    await nothing_left(server)


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_a_kill_while_a_grammar_is_being_prepared(server: ChaosServer) -> None:
    for number, delay in enumerate((0.0, 0.01, 0.03, 0.1)):
        schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        for key in range(40):
            schema["properties"][f"key_{number}_{key}"] = {
                "enum": [f"value {number} {key} {i}" for i in range(20)]
            }
        schema["required"] = list(schema["properties"])[:2]
        form = {**JSON_SCHEMA, "json_schema": {"name": "many", "schema": schema}}
        body = asks("JSON, please.", temperature=1.0, seed=number, max_tokens=100, response_format=form)
        body["ignore_eos"] = False
        pid, stream = await ready_pid(server), Stream(body)
        async with open_client(server) as client:
            task = asyncio.create_task(stream.run(client))
            await asyncio.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            await task
        check(await answers(server, [body]), [stream], f"killed {delay} s after a new schema was sent")
        assert f"key_{number}_0" in stream.choices[0].text


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_a_kill_while_draining(tmp_path: Path) -> None:
    """The streams that SIGTERM found are finished, by an executor that was started for them."""
    bodies = mixed(random.Random(3), 10, lengths=(200, 300))
    with ChaosServer(tmp_path) as server:
        expected, pid = await answers(server, bodies), await ready_pid(server)
        streams = [Stream(body) for body in bodies]
        async with open_client(server) as client:
            tasks = [asyncio.create_task(stream.run(client)) for stream in streams]
            await asyncio.gather(*(stream.reaches(3) for stream in streams if stream.streams))
            (server.folder / "hold").touch()
            server.process.send_signal(signal.SIGTERM)
            await reaches(server, 'cohort_stage{stage="draining"}', 1)
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            assert await status(client, "/ready") == (503, "draining")
            assert await status(client, "/health") == (200, "draining")
            refused = await client.post("/v1/chat/completions", json=asks("Too late?"))
            assert refused.status_code == 503
            (server.folder / "hold").unlink()
            await asyncio.gather(*tasks)
        check(expected, streams, "killed while draining")
        assert await asyncio.to_thread(server.process.wait, 20) == 0, server.log()


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_there_are_never_two_executors(server: ChaosServer) -> None:
    """As /proc shows it, zombies included: the next one begins when the last one is reaped, also if that was stopped."""
    seen: list[set[int]] = []
    watching = True

    def executors() -> set[int]:
        found = set()
        for pid in os.listdir("/proc"):  # noqa: PTH208
            try:
                status_of = Path(f"/proc/{pid}/stat").read_text()
                line = Path(f"/proc/{pid}/cmdline").read_text()
            except (OSError, ValueError):
                continue
            if int(status_of.rpartition(")")[2].split()[1]) == server.pid and "grammar" not in line:
                found.add(int(pid))
        return found

    def watch() -> None:
        while watching:
            seen.append(executors())

    await answers(server, [kinds()["JSON schema"]])  # the process that judges grammars is there, and stays
    before = executors()
    assert before == {executor_pid(server)}
    watcher = asyncio.create_task(asyncio.to_thread(watch))
    try:
        for stopped in (False, True, False):
            pid = await ready_pid(server)
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
        await ready_pid(server)
    finally:
        watching = False
        await watcher
    assert max(map(len, seen)) == 1 and len(set.union(*seen)) == 4 and len(seen) > 50


@pytest.mark.timeout(400)
async def test_not_a_number_fails_its_request_only(server: ChaosServer) -> None:
    bodies = mixed(random.Random(6), 20, lengths=(60, 120))
    expected = await answers(server, bodies)
    errors = await metric(server, 'cohort_requests_total{outcome="error"}')
    failed = await metric(server, NAN_FAILURES)
    epoch = await metric(server, "cohort_executor_epoch")
    bad = [
        Stream(asks("Hello", seed=NOT_A_NUMBER)),
        Stream(asks("Hello you", seed=NOT_A_NUMBER, temperature=0, stream=False)),
        Stream(goes_on("Hello", seed=NOT_A_NUMBER, logprobs=2, n=2)),
        Stream(asks("Hello again", seed=LATER_NOT_A_NUMBER, logprobs=True)),
    ]
    streams = [Stream(body) for body in bodies]
    async with open_client(server) as client:
        await asyncio.gather(*(stream.run(client) for stream in (*streams, *bad)))
    check(expected, streams, "beside NaN")
    for stream in bad:
        error = stream.error
        assert error["type"] == "executor_error" and error["code"] == "sequence_failed", error
        assert stream.tokens == (LATER if stream is bad[-1] else 0), "what came before it stands"
    # A choice that fails ends its call: the other one of two fails, too, or is ended by the first.
    assert await metric(server, 'cohort_requests_total{outcome="error"}') - errors in (4, 5)
    assert await metric(server, NAN_FAILURES) - failed in (4, 5)
    assert await metric(server, "cohort_executor_epoch") == epoch, "nobody was computed again for it"
    await nothing_left(server)


@pytest.mark.long(full=True)
@pytest.mark.timeout(400)
async def test_what_the_executor_refuses_fails_alone(server: ChaosServer) -> None:
    bodies = mixed(random.Random(7), 20, lengths=(60, 120))
    expected = await answers(server, bodies)
    epoch = await metric(server, "cohort_executor_epoch")
    streams, bad = [Stream(body) for body in bodies], Stream(asks("Hello", seed=REFUSED, stream=False))
    async with open_client(server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await streams[0].reaches(3)
        await bad.run(client)
        await asyncio.gather(*running)
    check(expected, streams, "beside a request that is refused")
    assert bad.error["type"] == "executor_error" and bad.error["code"] == "invalid_input"
    assert await metric(server, "cohort_executor_epoch") == epoch + 2, "once with the others, once alone"
