"""Ten times as many requests as can be served: the queue stays short, the rest is told when to come back, nobody is forgotten.

Capacity is measured with a closed loop first, then ten times that rate is offered by a clock, whatever comes of it. What an
accepted request may wait is bounded by a time: `--max-queue-wait`, by how long answers took when it came. If answers take longer
while it waits (client, refusals and other work share the machine), waiting does in proportion; and one answer's length comes on
top, for answers of different lengths do not end in the order in which they began.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.load import Answer, Target, closed_loop, percentile, rate, resident_mib, results
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

FACTOR = 10
DEADLINE = 0.5
"""Seconds that the impatient wait: less than the queue is long."""
SLOTS = 16
"""Few, so that queues build up within the seconds of a test."""


def body(number: int, impatient: bool = True) -> dict[str, Any]:
    """Half of them streams; one in eight has a deadline. Long enough that ten times as many are not more than HTTP itself bears:
    a refusal costs the server 1.3 ms."""
    asked: dict[str, Any] = {
        "prompt": f"<|im_start|>user\nTell me a story about number {number}.<|im_end|>\n<|im_start|>assistant\n",
        "max_tokens": 60 + number * 7 % 60,
        "ignore_eos": True,
        "seed": number,
        "stream": bool(number % 2),
    }
    if impatient and number % 8 == 3:
        asked["deadline_ms"] = int(DEADLINE * 1000)
    return asked


@dataclass
class Overload:
    """What happened, and what the server said of itself meanwhile."""

    capacity: float
    """Complete answers a second, by the closed loop."""
    length: float
    """Seconds from a request's first token to its end, on average, when all slots are taken."""
    answers: list[tuple[dict[str, Any], Answer]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    """MiB, every half second."""
    live: list[float] = field(default_factory=list)
    """Seconds that /live took, likewise."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Of refused requests that were tried again: the time they were told, and that after which they were let in."""
    offered: float = 0.0
    """Requests a second."""

    def of(self, *statuses: int) -> list[Answer]:
        return [answer for _, answer in self.answers if answer.status in statuses]

    @property
    def ttfts(self) -> list[float]:
        return [answer.ttft for answer in self.of(200) if answer.events]

    def length_during(self, waited: Answer) -> float:
        """Seconds that answers took, on average, which ended while a stream waited for its first token. All slots are taken then,
        so a queue of n requests takes n / slots times this, however fast the machine was at other times."""
        lengths = [
            one.ended - one.events[0]
            for one in self.of(200)
            if one.events and one.done and waited.sent <= one.ended <= waited.events[0]
        ]
        return sum(lengths) / len(lengths) if lengths else self.length


async def measure_capacity(target: Target, seconds: float) -> tuple[float, float]:
    """See `Overload.capacity` and `.length`."""
    bodies = [body(number, impatient=False) for number in range(1000)]
    answers = await closed_loop(target, bodies, SLOTS, seconds)
    assert all(answer.status == 200 and answer.done for answer in answers)
    streams = [answer for answer in answers if answer.events]
    return rate(answers, seconds), sum(one.ended - one.events[0] for one in streams) / len(streams)


async def watch(server: ServerProcess, found: Overload) -> None:
    """Until cancelled."""
    async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
        while True:
            began = time.monotonic()
            assert (await client.get("/live")).status_code == 200
            found.live.append(time.monotonic() - began)
            found.memory.append(resident_mib(server))
            await asyncio.sleep(0.5)


async def offer(target: Target, found: Overload, seconds: float, sent: asyncio.Event) -> None:
    """Send requests by the clock, some at least wherever it stands, set `sent`, and wait for what becomes of them."""
    pace, began = FACTOR * found.capacity, time.monotonic()

    async def one(number: int) -> None:
        asked = body(number)
        found.answers.append((asked, await target.ask(asked)))

    async with asyncio.TaskGroup() as group:
        number = 0
        while (now := time.monotonic() - began) < seconds or number < 4 * SLOTS:
            while number < now * pace:
                group.create_task(one(number))
                number += 1
            await asyncio.sleep(0.01)
        found.offered = number / (time.monotonic() - began)
        sent.set()


async def come_back(target: Target, found: Overload, last: list[Answer], tries: int) -> None:
    """After the overload: clients that were refused last. Half of them come when they were told to, half try all the time.
    `tries`: how often they are told, where the machine has other things to do than what the estimate is of."""

    async def obedient(told: Answer) -> None:
        answer, seconds = told, 0
        for _ in range(tries):
            seconds += int(answer.retry_after or 0)
            await asyncio.sleep(answer.ended + int(answer.retry_after or 0) - time.monotonic())
            answer = await target.ask(body(0, impatient=False))
            if answer.status == 200:
                break
        assert answer.status == 200, f"refused again after the {seconds} s they were told"
        found.waits.append((float(told.retry_after or 0), answer.sent - told.ended))

    async def stubborn(told: Answer) -> None:
        for _ in range(600):
            if (await target.ask({**body(0, impatient=False), "max_tokens": 1})).status == 200:
                break
            await asyncio.sleep(0.1)
        found.waits.append((float(told.retry_after or 0), time.monotonic() - told.ended))

    await asyncio.gather(*(obedient(one) for one in last[::2]), *(stubborn(one) for one in last[1::2]))


async def refusals_are_over(found: Overload) -> None:
    """What was sent last is answered a while after it was sent; until then it takes the places of those that come back."""
    seen = -1
    while len(found.of(429)) > seen:
        seen = len(found.of(429))
        await asyncio.sleep(0.2)


async def overload(server: ServerProcess, seconds: float, tries: int = 1) -> Overload:
    target = Target(server)
    found = Overload(*await measure_capacity(target, max(2.0, seconds / 6)))
    before = counts(server)
    watching = asyncio.create_task(watch(server, found))
    sent = asyncio.Event()
    offering = asyncio.create_task(offer(target, found, seconds, sent))
    await sent.wait()
    await refusals_are_over(found)
    last = [answer for answer in found.of(429)[-10:] if answer.code == "overloaded"]
    await come_back(target, found, last, tries)
    extra = len(last)
    await offering
    watching.cancel()
    check_counts(found, before, counts(server), extra)
    return found


def counts(server: ServerProcess) -> dict[str, float]:
    """What the server counts."""
    names = [f'cohort_requests_total{{outcome="{one}"}}' for one in ("stop", "length", "abort", "error")]
    names += [f'cohort_requests_refused_total{{code="{one}"}}' for one in ("overloaded", "deadline_exceeded")]
    names.append('cohort_tokens_total{kind="output"}')
    return {name.partition("{")[2].rstrip("}"): server.metric(name) for name in names}


def check_counts(found: Overload, before: dict[str, float], after: dict[str, float], extra: int) -> None:
    """Each request has an answer of the right form, and client and server count alike. `extra` came back and were let in."""
    grown = {name: after[name] - before[name] for name in after}
    assert {answer.status for _, answer in found.answers} <= {200, 429}
    served, late = 0, 0
    for asked, answer in found.answers:
        if answer.status == 200 and answer.error is None:
            assert answer.done and answer.completion_tokens == asked["max_tokens"]
            served += 1
            continue
        assert answer.error is not None and answer.error["message"]
        assert answer.error["type"] == "rate_limit_error" and set(answer.error) == {
            "message",
            "type",
            "param",
            "code",
        }
        assert answer.code in ("overloaded", "deadline_exceeded")
        assert answer.code == "overloaded" or "deadline_ms" in asked
        late += answer.code == "deadline_exceeded"
        if answer.status == 429:
            assert answer.retry_after is not None and 1 <= int(answer.retry_after) <= 300
    assert grown['outcome="length"'] == served + extra
    assert grown['outcome="error"'] == grown['outcome="stop"'] == 0
    assert grown['code="deadline_exceeded"'] == late
    # Those told to come back, and again where they came too early; dropped ones have waited in the queue.
    assert grown['code="overloaded"'] >= sum(one.code == "overloaded" for _, one in found.answers)
    assert grown['outcome="abort"'] <= late
    tokens = sum(
        asked["max_tokens"] for asked, one in found.answers if one.status == 200 and one.error is None
    )
    spent = grown['kind="output"'] - tokens
    assert spent == sum(1 if one % 2 else body(0)["max_tokens"] for one in range(extra)), "tokens nobody got"


def check_times(found: Overload, max_queue_wait: float, slack: float) -> float:
    """Returns what an accepted request may wait for its first token, the median of theirs. `slack`: seconds for what else the
    machine does."""
    waits, bounds = [], []
    for one in found.of(200):
        if one.events:
            length = found.length_during(one)
            bounds.append(1.25 * max_queue_wait * max(1.0, length / found.length) + length + slack)
            waits.append(one.ttft / bounds[-1])
    assert waits, Counter((answer.status, answer.code) for _, answer in found.answers)
    assert percentile(waits, 0.99) <= 1.0, (percentile(found.ttfts, 0.99), percentile(bounds, 0.99))
    assert percentile(found.live, 0.9) < 0.5 * slack
    # At once, or when its deadline was over; what the machine itself keeps waiting comes on top.
    told = [one.ended - one.sent for _, one in found.answers if one.error is not None]
    assert percentile(told, 0.99) < DEADLINE + 2 * slack
    assert all(actual <= told + slack for told, actual in found.waits), found.waits
    return percentile(bounds, 0.5)


def report(name: str, found: Overload, bound: float) -> None:
    refused = Counter(answer.code for _, answer in found.answers if answer.error is not None)
    accepted = [answer for answer in found.of(200) if answer.error is None]
    told = [int(answer.retry_after or 0) for answer in found.of(429)]
    row = {
        "capacity_per_s": found.capacity,
        "offered_per_s": found.offered,
        "accepted": len(accepted),
        "refused_overloaded": refused["overloaded"],
        "refused_or_dropped_deadline": refused["deadline_exceeded"],
        "lost": len(found.answers) - len(accepted) - refused.total(),
        "ttft_p50_s": percentile(found.ttfts, 0.5),
        "ttft_p99_s": percentile(found.ttfts, 0.99),
        "ttft_bound_s": bound,
        "retry_after_p50_s": percentile(told, 0.5),
        "let_in_after_p50_s": percentile([actual for _, actual in found.waits], 0.5),
        "live_p50_s": percentile(found.live, 0.5),
        "live_max_s": max(found.live),
        "memory_mib_middle": max(found.memory[len(found.memory) // 3 : 2 * len(found.memory) // 3]),
        "memory_mib_end": max(found.memory[2 * len(found.memory) // 3 :]),
    }
    results("overload", name, row)


@pytest.mark.timeout(120)
async def test_ten_times_overload(tmp_path: Path) -> None:
    wait = 1.0
    args = ["cohort-tiny", "--max-num-seqs", str(SLOTS), "--max-queue-wait", str(wait)]
    with ServerProcess(args, tmp_path) as server:
        found = await overload(server, 2.0, tries=3)
        bound = check_times(found, wait, slack=5.0)
    print(
        f"{len(found.ttfts)} streams accepted, TTFT p99 {percentile(found.ttfts, 0.99):.2f} s of {bound:.2f} s"
    )
    assert found.of(429) and found.ttfts


@pytest.mark.long(full=True)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wait", [60.0, 5.0], ids=["defaults", "5 s"])
async def test_ten_times_overload_for_30_seconds(tmp_path: Path, wait: float) -> None:
    args = ["cohort-tiny", "--max-num-seqs", str(SLOTS)] + (
        ["--max-queue-wait", str(wait)] if wait != 60.0 else []
    )
    with ServerProcess(args, tmp_path) as server:
        found = await overload(server, 30.0)
        report(f"max_queue_wait={wait:g}", found, bound := check_times(found, wait, slack=1.0))
    assert bound and found.of(429)
    third = len(found.memory) // 3
    assert max(found.memory[2 * third :]) - max(found.memory[third : 2 * third]) < 16.0
