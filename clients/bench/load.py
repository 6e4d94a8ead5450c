"""One run of a workload: so many requests, so many at a time, each answer with the times of its tokens."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from clients.bench.stream import CompletionReader, Served
from clients.http import PATIENCE, Broken, Client, Connection, Refused, reason

LOOK_EVERY = 5.0
"""Seconds between two looks at who is silent."""

Outcome = Served | str
"""An answer, or why there is none."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came. `cpu` is this process's own time between `began` and `ended`: what measuring took from the server, where
    they share a machine."""

    outcomes: list[Outcome]
    began: float
    ended: float
    cpu: float

    @property
    def served(self) -> list[Served]:
        return [one for one in self.outcomes if isinstance(one, Served)]

    @property
    def failures(self) -> list[str]:
        return [one for one in self.outcomes if isinstance(one, str)]


async def run(
    client: Client, requests: Sequence[bytes], concurrency: int, on_answer: Callable[[], None]
) -> Run:
    """Send them all; `on_answer` hears each end. Connections are opened before the clock starts, and kept.

    Failures are outcomes. Raises OSError where the first connections cannot be made.
    """
    workers = [_Worker(client) for _ in range(min(concurrency, len(requests)))]
    try:
        await asyncio.gather(*(worker.connect() for worker in workers))
        waiting = iter(requests)
        watch = asyncio.create_task(_watch(workers))
        # Collecting garbage would stop all streams at once, and there is none: no cycles are made here.
        gc.collect()
        gc.disable()
        began, cpu = time.perf_counter(), time.process_time()
        try:
            outcomes = await asyncio.gather(*(worker.work(waiting, on_answer) for worker in workers))
        finally:
            gc.enable()
            watch.cancel()
        cpu = time.process_time() - cpu
        return Run([one for some in outcomes for one in some], began, time.perf_counter(), cpu)
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """One of the streams that are out at a time. Owns its connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.connection: Connection | None = None

    async def connect(self) -> Connection:
        """The connection, opened where there is none or the server has closed it. Raises OSError."""
        if self.connection is None or not self.connection.usable:
            self.connection = await self._client.connect()
        return self.connection

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    async def work(self, waiting: Iterator[bytes], on_answer: Callable[[], None]) -> list[Outcome]:
        """Take requests from what all workers share until there are none."""
        outcomes = []
        for message in waiting:
            outcomes.append(await self._serve(message))
            on_answer()
        return outcomes

    async def _serve(self, message: bytes) -> Outcome:
        try:
            try:
                return await self._once(message)
            except Broken as error:
                # A server may close a connection that waits just as the next request is on its way.
                if not error.unheard:
                    raise
                self.close()
                self.connection = None
                return await self._once(message)
        except (Refused, Broken, OSError) as error:
            self.close()
            self.connection = None
            return reason(error)

    async def _once(self, message: bytes) -> Outcome:
        connection = await self.connect()
        reader = CompletionReader()
        sent_at = time.perf_counter()
        await connection.exchange(message, reader.feed)
        return reader.result(sent_at)


async def _watch(workers: Sequence[_Worker]) -> None:
    """End what is silent for too long: one look at all now and then instead of a timer each."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        silent_since = time.perf_counter() - PATIENCE
        for worker in workers:
            connection = worker.connection
            if connection is not None and connection.busy and connection.last_byte_at < silent_since:
                connection.give_up(f"nothing came for {PATIENCE:g} s")
