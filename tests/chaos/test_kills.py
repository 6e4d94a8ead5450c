"""The executor is killed, stopped and crashed: no stream loses, repeats or reorders a token.

`make test-all ARGS='--full tests/chaos'` runs all of it at full size, prints figures and keeps them (`figures.py`). The ordinary
suite has the same with fewer positions.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chaos.asked import TOKENS, asks, kinds, mixed, stopped
from tests.chaos.client import (
    Stream,
    another_pid,
    answers,
    check,
    differences,
    gone,
    metric,
    open_client,
    reaches,
    ready_pid,
    strike,
)
from tests.chaos.conftest import ChaosServer
from tests.chaos.crashing_executor import POISON, Strike
from tests.chaos.figures import record

pytestmark = pytest.mark.long

RESTARTS = 'cohort_executor_restarts_total{{cause="{}"}}'
CAUSES = {"SIGKILL": "signal", "SIGSTOP": "hang", "exit": "exit", "closed": "closed"}


@dataclass
class Tally:
    """What came of a number of runs."""

    failed: int = 0
    wrong: int = 0
    pause: float = 0.0
    next_token: float = 0.0
    """The longest time from a death to the next token of some stream."""
    where: list[Any] = field(default_factory=list)
    struck: dict[int, set[int]] = field(default_factory=dict)
    """Output positions that were being computed when the executor died, by the seed of the request."""

    def add(self, expected: Sequence[Stream], found: Sequence[Stream], what: object) -> None:
        failed, wrong, where = differences(expected, found)
        self.failed, self.wrong = self.failed + failed, self.wrong + wrong
        self.where += [(what, *one) for one in where]
        self.pause = max(self.pause, *(stream.longest_pause for stream in found))


async def all_kinds(server: ChaosServer) -> tuple[list[dict[str, Any]], list[Stream]]:
    """Every kind, and what it answers undisturbed. The last ends at a stop string of several tokens."""
    bodies = list(kinds().values())
    [seeded] = await answers(server, [bodies[1]])
    bodies.append({**stopped(bodies[1], seeded.choices[0].text), "cache_salt": "stopped"})
    expected = await answers(server, bodies)
    ended = expected[-1].choices[0]
    assert ended.finish == "stop" and 12 < len(ended.ids) < TOKENS
    assert ended.ids == seeded.choices[0].ids[: len(ended.ids)]
    return bodies, expected


async def strike_at(
    server: ChaosServer, what: Strike, bodies: list[dict[str, Any]], tally: Tally
) -> list[Stream]:
    """Let the executor die at that position of requests that begin together: they are sent while it is being restarted."""
    (server.folder / "hold").touch()
    pid = await ready_pid(server)
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    streams = [Stream(body) for body in bodies]
    sequences = sum(body.get("best_of") or body.get("n") or 1 for body in bodies)
    async with open_client(server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await reaches(server, "cohort_requests_waiting", sequences)
        next_pid = await another_pid(server, pid)
        what.leave(server.folder)
        (server.folder / "hold").unlink()
        await gone(next_pid)
        died = time.monotonic()
        await asyncio.gather(*running)
    # What was on its way comes within moments, what the next one computes does not.
    after = [at - died for stream in streams if (at := stream.first_after(died + 0.2)) is not None]
    tally.next_token = max(tally.next_token, *after)
    struck = server.folder / "struck"
    for seed, positions in json.loads(struck.read_text()).items():
        tally.struck.setdefault(int(seed), set()).update(positions)
    struck.unlink()
    return streams


async def strikes(
    server: ChaosServer,
    wanted: Iterator[Strike],
    tally: Tally,
    bodies: list[dict[str, Any]],
    expected: list[Stream],
) -> int:
    """Each of them under all kinds; every answer is compared. Returns how many there were."""
    causes: Counter[str] = Counter()
    before = {cause: await metric(server, RESTARTS.format(cause)) for cause in CAUSES.values()}
    for one in wanted:
        tally.add(expected, await strike_at(server, one, bodies, tally), one)
        causes.update([CAUSES[one.how], "signal"])
    for cause, count in before.items():
        assert await metric(server, RESTARTS.format(cause)) == count + causes[cause], cause
    return causes.total() // 2


async def idle_restart(server: ChaosServer) -> float:
    """Seconds from a kill with nothing to do until the server is ready again."""
    pid, began = await ready_pid(server), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await another_pid(server, pid)
    await ready_pid(server)
    return time.monotonic() - began


def proven(tally: Tally) -> None:
    assert not tally.where, f"{tally.failed} failed, {tally.wrong} tokens lost or repeated: {tally.where[:2]}"


@pytest.mark.timeout(120)
async def test_a_kill_at_some_positions_changes_nothing(server: ChaosServer) -> None:
    bodies, expected = await all_kinds(server)
    tally, wanted = Tally(), [Strike(1000, 3), Strike(1002, 15, behind=True)]
    await strikes(server, iter(wanted), tally, bodies, expected)
    proven(tally)


@pytest.mark.long(full=True)
@pytest.mark.timeout(900)
async def test_a_kill_at_every_position_changes_nothing(server: ChaosServer) -> None:
    """All kinds run side by side, a few tokens apart, and the executor writes down where each of them was when it died: this
    goes on until that was everywhere. Every other time the step is computed and its result lost, so that the executor's
    state was ahead of the journal."""
    bodies, expected = await all_kinds(server)
    tally = Tally()
    wanted = {
        (position, stream.body["seed"])
        for stream in expected
        for position in range(max(len(one.ids) for one in stream.choices.values()))
    }

    def missing() -> Iterator[Strike]:
        for number in range(2 * TOKENS):
            left = {
                (position, seed) for position, seed in wanted if position not in tally.struck.get(seed, ())
            }
            if not left:
                return
            position, seed = min(left)
            yield Strike(seed, position, behind=number % 2 == 1)

    count = await strikes(server, missing(), tally, bodies, expected)
    missed = {(position, seed) for position, seed in wanted if position not in tally.struck.get(seed, ())}
    record(
        "a kill at every position",
        count=count * len(expected),
        failed=tally.failed,
        lost_or_repeated=tally.wrong,
        longest_pause_s=tally.pause,
        restarts=2 * count,
        load_s=server.load_s,
        kinds=len(expected),
        positions=len(wanted),
        positions_missed=len(missed),
        death_to_next_token_s=tally.next_token,
    )
    proven(tally)
    assert not missed
    assert tally.next_token < max(server.load_s, await idle_restart(server)) + 2


@pytest.mark.long(full=True)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["exit", "closed", "SIGSTOP"])
async def test_other_ways_to_die_change_nothing(server: ChaosServer, how: str) -> None:
    """An exit code, a closed socket of a process that lives on, and a process that stands still (found out after 5 s)."""
    bodies, expected = await all_kinds(server)
    tally, wanted = Tally(), [Strike(1000, position, how) for position in (0, 7, 20, 33)]
    count = await strikes(server, iter(wanted), tally, bodies, expected)
    record(
        f"died by {how}",
        count=count * len(expected),
        failed=tally.failed,
        lost_or_repeated=tally.wrong,
        longest_pause_s=tally.pause,
        restarts=2 * count,
        load_s=server.load_s,
    )
    proven(tally)


async def undisturbed(server: ChaosServer) -> list[Stream]:
    """200 requests of all kinds and lengths, some of which last longer than all strikes; they are answered once."""
    if not server.undisturbed:
        server.undisturbed = await answers(
            server, mixed(random.Random(200), 200, lengths=(30, 200), long=900)
        )
    return server.undisturbed


async def many(
    server: ChaosServer, name: str, expected: list[Stream], times: int, number: signal.Signals
) -> None:
    """All of these again; the executor is struck at random moments."""
    rng, count = random.Random(times), len(expected)
    streams = [Stream(stream.body) for stream in expected]
    cause = RESTARTS.format("signal" if number is signal.SIGKILL else "hang")
    before, struck, fewest = await metric(server, cause), 0, count
    began = time.monotonic()
    async with open_client(server) as client:
        running = asyncio.gather(*(stream.run(client) for stream in streams))
        while struck < times and not running.done():
            await asyncio.sleep(rng.random() * 0.3)
            await strike(server, number)
            struck += 1
            fewest = min(fewest, sum(not stream.done for stream in streams))
            await reaches(server, cause, before + struck)  # one that is stopped passes for ready for a while
        await running
    tally = Tally()
    tally.add(expected, streams, f"{struck} x {number.name}")
    restarted = await metric(server, cause) - before
    record(
        name,
        count=count,
        failed=tally.failed,
        lost_or_repeated=tally.wrong,
        longest_pause_s=tally.pause,
        restarts=int(restarted),
        load_s=server.load_s,
        streams_left_at_the_last=fewest,
        tokens=sum(len(one.ids) for stream in streams for one in stream.choices.values()),
        seconds=time.monotonic() - began,
    )
    proven(tally)
    assert struck == restarted == times and fewest > 0


@pytest.mark.long(full=True)
@pytest.mark.timeout(900)
async def test_200_streams_bear_20_kills(server: ChaosServer) -> None:
    await many(server, "200 streams, 20 kills", await undisturbed(server), 20, signal.SIGKILL)


@pytest.mark.long(full=True)
@pytest.mark.timeout(900)
async def test_200_streams_bear_an_executor_that_is_stopped(server: ChaosServer) -> None:
    """Five times: each takes the five seconds without a heartbeat after which silence is a hang."""
    await many(server, "200 streams, stopped 5 times", await undisturbed(server), 5, signal.SIGSTOP)


@pytest.mark.long(full=True)
@pytest.mark.timeout(600)
async def test_who_crashes_the_executor_fails_alone(server: ChaosServer) -> None:
    bodies = mixed(random.Random(50), 50, lengths=(40, 160))
    expected = await answers(server, bodies)
    before = await metric(server, RESTARTS.format("exit"))
    streams, culprit = [Stream(body) for body in bodies], Stream(asks("Hello", seed=POISON, stream=False))
    async with open_client(server) as client:
        running = asyncio.gather(*(stream.run(client) for stream in streams))
        await streams[0].reaches(5)
        await culprit.run(client)
        await running
    tally = Tally()
    tally.add(expected, streams, "beside a request that crashes the executor")
    times = await metric(server, RESTARTS.format("exit")) - before
    record(
        "beside poison",
        count=len(bodies),
        failed=tally.failed,
        lost_or_repeated=tally.wrong,
        longest_pause_s=tally.pause,
        restarts=int(times),
        load_s=server.load_s,
    )
    proven(tally)
    assert culprit.error["type"] == "executor_error" and times == 3
    check(expected, await answers(server, bodies), "afterwards")
