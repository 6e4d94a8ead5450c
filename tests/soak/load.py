"""The mix: who asks what, seeded; and who strikes the executor. Counts everything, and keeps what should not have been."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.server_process import ServerProcess
from tests.hostile import listed, listed_grammars, listed_wire
from tests.hostile.campaign import Campaign
from tests.hostile.case import Hostile
from tests.soak import asks, misbehaviour
from tests.soak.gauges import executor_pid

PATIENCE = 120.0
WORKERS = 10
BURST = 80
"""Requests at once, several times what the queue takes."""
_STOP_EVERY = 5
"""One strike of so many is SIGSTOP: the executor is alive and silent until the server notices."""


@dataclass
class Tally:
    """One writer: the tasks of the mix, on one loop."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    kills: int = 0
    stops: int = 0


class Load:
    """Against one server with these keys, and the hostile one's. `learn` first, then `run` as often as one likes."""

    def __init__(self, server: ServerProcess, keys: list[str], width: int, context: int, seed: int) -> None:
        self._server, self._url, self._keys = server, server.url, keys
        self._rng = random.Random(seed)
        self._known: list[Any] = []
        self.tally = Tally()
        self._campaign = Campaign(self._url, width, context)
        self._bad: list[Hostile] = [
            *listed.bodies(width, context), *listed_grammars.constraints(), *listed_wire.on_the_wire()
        ]  # fmt: skip
        self._bombs = list(listed_grammars.bombs())
        self._strikes = 0

    async def learn(self) -> None:
        """What each ordinary request is answered while nobody disturbs, as a stream and whole."""
        async with self._client() as client:
            for ask in asks.ASKS:
                status, said, why = await asks.answer(client, ask, stream=False)
                assert status == 200, (ask, status, why)
                self._known.append(said)
        async with self._client() as client:
            for number in range(len(asks.ASKS)):
                await self._ordinary(client, number, stream=True)
            # What takes the most memory, before it is watched: every bad input, and a burst.
            await self._campaign.send(self._bad, "warm-up")
            await asyncio.gather(*(self._guarded(self._ordinary, client) for _ in range(BURST)))
        self._collect()
        assert not self.tally.faults, self.tally.faults[:3]
        self.tally.counts.clear()

    async def run(self, seconds: float, strike_every: float | None) -> None:
        """The mix for so long, and until its last request has ended."""
        end = time.monotonic() + seconds
        async with self._client() as client:
            work = [asyncio.create_task(self._work(client, end)) for _ in range(WORKERS)]
            work.append(asyncio.create_task(self._bursts(client, end)))
            if strike_every is not None:
                work.append(asyncio.create_task(self._strike(strike_every, end)))
            await asyncio.gather(*work)
        self._collect()

    def _collect(self) -> None:
        self.tally.faults += [f"bad input: {fault}" for fault in self._campaign.report.faults]
        self._campaign.report.faults.clear()

    async def settle(self) -> None:
        """A quiet moment: all that is started on demand runs, nothing else does, and the books have been looked at."""
        body = {
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 4,
            "structured_outputs": {"choice": [f"unseen {self._rng.random()}"]},
        }  # fmt: skip
        async with self._client() as client:
            # Twice: the first may meet an executor whose death nobody has noticed yet.
            for _ in range(2):
                response = await client.post(asks.CHAT, json=body)
                assert response.status_code == 200, response.text
            for _ in range(int(PATIENCE)):
                if await self._is_ready():
                    break
                await asyncio.sleep(1)
        await asyncio.sleep(2.5)  # the books are looked at after a second of idleness
        async with self._client() as client:
            if "detail" in (found := (await client.get("/ready")).json()):
                self.tally.faults.append(f"/ready: {found}")
        await asyncio.sleep(0.2)  # our connection's end has arrived

    def _client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self._rng.choice(self._keys)}"}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self._url, timeout=PATIENCE, limits=limits, headers=headers)

    # -- who asks ------------------------------------------------------------------------------------------------------

    async def _work(self, client: httpx.AsyncClient, end: float) -> None:
        kinds: list[tuple[Callable[[httpx.AsyncClient], Awaitable[None]], int]] = [
            (self._ordinary, 50), (self._newcomer, 15), (self._leave, 15), (self._slow, 6), (self._hostile, 12), (self._idle, 2),
        ]  # fmt: skip
        choices, weights = zip(*kinds, strict=True)
        while time.monotonic() < end:
            [kind] = self._rng.choices(choices, weights)
            await self._guarded(kind, client)

    async def _guarded(
        self, kind: Callable[[httpx.AsyncClient], Awaitable[None]], client: httpx.AsyncClient
    ) -> None:
        """Whatever fails is a fault, and the mix goes on."""
        try:
            async with asyncio.timeout(PATIENCE):
                await kind(client)
        except Exception as error:
            self.tally.faults.append(f"{kind.__name__}: {error!r}")
            await asyncio.sleep(0.5)

    async def _ordinary(
        self, client: httpx.AsyncClient, number: int | None = None, stream: bool | None = None
    ) -> None:
        if number is None:
            number = self._rng.randrange(len(asks.ASKS))
        if stream is None:
            stream = self._rng.random() < 0.6
        status, said, why = await asks.answer(client, asks.ASKS[number], stream)
        self.tally.counts[f"ordinary {status}"] += 1
        if status == 429:
            if not why.isdigit():
                self.tally.faults.append(f"429 with Retry-After {why!r}")
            await asyncio.sleep(self._rng.random() * 0.3)
        elif status != 200:
            self.tally.faults.append(f"{str(asks.ASKS[number])[:150]} was answered {status}: {why}")
        elif not asks.same(said, self._known[number]):
            asked = str(asks.ASKS[number])[:150]
            self.tally.faults.append(
                f"{asked}: {str(said)[:500]} instead of {str(self._known[number])[:500]}"
            )

    async def _newcomer(self, client: httpx.AsyncClient) -> None:
        async with self._client() as own:
            await self._ordinary(own)

    async def _leave(self, client: httpx.AsyncClient) -> None:
        when = await misbehaviour.leaves(self._url, self._rng.choice(self._keys), self._rng)
        self.tally.counts[f"left {when}"] += 1

    async def _slow(self, client: httpx.AsyncClient) -> None:
        kind = await misbehaviour.reads_slowly(self._url, self._rng.choice(self._keys), self._rng)
        self.tally.counts[kind] += 1

    async def _idle(self, client: httpx.AsyncClient) -> None:
        self.tally.counts[await misbehaviour.stays_idle(self._url, self._keys[0], self._rng)] += 1

    async def _hostile(self, client: httpx.AsyncClient) -> None:
        cases = self._rng.sample(self._bad, 8)
        if self._rng.random() < 0.01:
            cases = [self._rng.choice(self._bombs)]
        await self._campaign.send(cases, "soak")
        self.tally.counts["bad input"] += len(cases)

    async def _bursts(self, client: httpx.AsyncClient, end: float) -> None:
        while (left := end - time.monotonic()) > 3:
            await asyncio.sleep(self._rng.uniform(2, min(20, left)))
            await asyncio.gather(*(self._guarded(self._ordinary, client) for _ in range(BURST)))
            self.tally.counts["bursts"] += 1

    # -- who strikes ---------------------------------------------------------------------------------------------------

    async def _strike(self, every: float, end: float) -> None:
        while (left := end - time.monotonic()) > 2:
            await asyncio.sleep(min(left - 1, every * self._rng.uniform(0.5, 1.5)))
            stop = (self._strikes + 1) % _STOP_EVERY == 0
            if stop and not await self._is_ready():
                continue  # while it loads, it may be silent for two minutes
            if (pid := executor_pid(self._server)) is None:
                continue
            self._strikes += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
                self.tally.stops += stop
                self.tally.kills += not stop

    async def _is_ready(self) -> bool:
        async with self._client() as client:
            return (await client.get("/ready")).status_code == 200
