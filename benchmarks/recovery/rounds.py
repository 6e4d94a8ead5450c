"""One case: the calls undisturbed, then once more with the executor killed under all of them, and what differs."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.recovery import arena
from benchmarks.recovery.feed import Feed
from tests.chaos.client import (
    Stream,
    another_pid,
    answers,
    differences,
    gone,
    metric,
    open_client,
    ready_pid,
)
from tests.e2e.server_process import ServerProcess

BEGUN = 4
"""Tokens of each stream before the kill."""
LIMIT_S = 0.5
"""Seconds that a pause may be longer than a load."""
RESUMED = "cohort_requests_resumed_total"
DROPPED = "cohort_kv_blocks_dropped_total"
"""Sealed blocks that a new executor found to be other than they were sealed."""
_IDLE_KILLS = 3


@dataclass(frozen=True)
class Kill:
    """What a kill did to the streams. `pauses`: the longest of each stream, seconds from its last event before the kill on.
    `again`: tokens that were computed before and once more after it. `flipped`: bytes. `dropped`: blocks; None if the server does not count them."""

    wrong_tokens: int
    failed: int
    resumed: int
    pauses: tuple[float, ...]
    again: int
    flipped: int = 0
    dropped: int | None = None

    def faults(self, streams: int, load_s: float) -> list[str]:
        """What is not as it has to be, a line each. Flipped bytes may cost time, and must be noticed."""
        found = []
        if self.failed or self.wrong_tokens:
            found.append(f"{self.failed} streams failed, {self.wrong_tokens} tokens lost, repeated or changed")
        if self.resumed != streams:
            found.append(f"the kill met {self.resumed} of {streams} streams: nothing was proven")
        if not self.flipped and max(self.pauses) > load_s + LIMIT_S:
            found.append(f"a pause of {max(self.pauses):.2f} s, at most {load_s:.2f} + {LIMIT_S} s allowed")
        if self.flipped and not self.dropped:
            found.append(f"{self.flipped} bytes were flipped, and {DROPPED} counts {self.dropped}")
        return found


async def load_seconds(server: ServerProcess) -> float:
    """Median seconds from the kill of an idle executor until the server is ready again."""
    taken = []
    for _ in range(_IDLE_KILLS):
        pid = await ready_pid(server)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await another_pid(server, pid)
        await ready_pid(server)
        taken.append(time.monotonic() - began)
    return statistics.median(taken)


async def undisturbed(server: ServerProcess, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
    """The answers without a kill."""
    expected = await answers(server, bodies)
    assert all(stream.tokens == stream.body["max_tokens"] for stream in expected)
    return expected


async def killed(
    server: ServerProcess, expected: Sequence[Stream], flips: int = 0, seed: int = 0
) -> Kill:
    """Ask the same once more, kill the executor when each stream has some tokens, flip so many bytes of KV before the next
    one has read it, and compare.

    Raises NoArena if bytes are to be flipped and the server holds no KV.
    """
    streams = [Stream(stream.body) for stream in expected]
    resumed, dropped = await metric(server, RESUMED), await _dropped(server)
    pid = await ready_pid(server)
    async with open_client(server) as client, Feed(client) as feed:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        try:
            await asyncio.gather(*(stream.reaches(BEGUN) for stream in streams))
            moment = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            if flips:
                arena.flip(server.pid, flips, seed)
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
    failed, wrong, _ = differences(expected, streams)
    after = await _dropped(server)
    return Kill(
        wrong, failed, int(await metric(server, RESUMED) - resumed), tuple(pause(stream, moment) for stream in streams),
        feed.recomputed, flips, None if after is None else int(after - (dropped or 0)),
    )  # fmt: skip


def pause(stream: Stream, moment: float) -> float:
    """Longest time between two events of a stream that has some, the later one after `moment`; monotonic seconds."""
    pairs = zip(stream.heard_at, stream.heard_at[1:], strict=False)
    return max((after - before for before, after in pairs if after > moment), default=float("inf"))


async def _dropped(server: ServerProcess) -> float | None:
    try:
        return await metric(server, DROPPED)
    except AssertionError:
        return None
