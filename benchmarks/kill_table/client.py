"""A client without retries that keeps what came over the wire, and when. Plain HTTP: an SDK would hide part of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise

import httpx

from benchmarks.kill_table.answers import Answer, error_text, take_event, take_whole
from benchmarks.kill_table.calls import Call


@dataclass
class Record:
    """One call as its client sees it. Moments are seconds of the monotonic clock.

    `moments`: the beginning, and each event that made the answer longer. `status`: None before the headers. `failure`: the
    exception that ended the connection. `over`: nothing comes any more. `silent`: the client gave up waiting.
    """

    call: Call
    answer: Answer = field(default_factory=Answer)
    moments: list[float] = field(default_factory=list)
    status: int | None = None
    failure: str | None = None
    over: bool = False
    silent: bool = False
    comments: int = 0
    ended: float = 0.0

    @property
    def events(self) -> int:
        """That made the answer longer."""
        return max(len(self.moments) - 1, 0)

    @property
    def seconds(self) -> float:
        """From the request to the end."""
        return self.ended - self.moments[0]

    @property
    def longest_pause(self) -> float:
        """Seconds between two signs of life of the answer, the request and the end among them."""
        times = [*self.moments, self.ended]
        return max(after - before for before, after in pairwise(times))


def open_client(url: str) -> httpx.AsyncClient:
    """Without limits of its own: who waits how long is decided by `wait_for_all`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(
        base_url=url, timeout=httpx.Timeout(None, connect=10), limits=limits, trust_env=False
    )


async def perform(client: httpx.AsyncClient, record: Record) -> None:
    """Send the call and read until its end, whatever that is. Cancelled, it closes the connection."""
    call = record.call
    record.moments.append(time.monotonic())
    try:
        async with client.stream("POST", call.path, json=call.body) as response:
            record.status = response.status_code
            if response.status_code != 200 or not call.streamed:
                _read_body(record, (await response.aread()).decode("utf-8", "replace"))
            else:
                await _read_events(record, response)
    except httpx.HTTPError as failure:
        record.failure = f"{type(failure).__name__}: {failure}".rstrip(": ")
    except ValueError as failure:
        record.failure = f"unreadable: {failure}"
    finally:
        record.ended = time.monotonic()
        record.over = True


def _read_body(record: Record, body: str) -> None:
    if record.status == 200:
        take_whole(record.answer, record.call.dialect, body)
        return
    try:
        take_whole(record.answer, "chat", body)
    except ValueError:
        record.answer.error = body.strip() or "an empty body"
    record.answer.error = record.answer.error or error_text({"error": {"message": body}})


async def _read_events(record: Record, response: httpx.Response) -> None:
    name, data = "", list[str]()
    async for line in response.aiter_lines():
        if line.startswith(":"):
            record.comments += 1
        elif line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            before = record.answer.size()
            take_event(record.answer, record.call.dialect, name, "\n".join(data))
            if record.answer.size() > before:
                record.moments.append(time.monotonic())
            name, data = "", []


async def wait_for_all(records: list[Record], tasks: list[asyncio.Task[None]], patience: float) -> None:
    """Wait until each call is over, or its answer has stood still for `patience` seconds from now on; then hang up."""
    began = time.monotonic()
    while not all(record.over for record in records):
        now = time.monotonic()
        for record, task in zip(records, tasks, strict=True):
            last = max([began, *record.moments[-1:]])
            if not record.over and not record.silent and now - last > patience:
                record.silent = True
                task.cancel()
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks, return_exceptions=True)
