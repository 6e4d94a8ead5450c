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
ADOPTED = 'cohort_kv_blocks_adopted_total{{outcome="{}"}}'
"""Sealed blocks that a new executor kept, or found to be other than they were sealed."""
_IDLE_KILLS = 3


@dataclass(frozen=True)
class Kill:
    """What a kill did to the streams. `pauses`: the longest of each stream, seconds from its last event before the kill on.
    `again`: tokens that were computed before and once more after it. `flipped`: bytes. `kept`, `damaged`: sealed blocks, as
    the next executor found them."""

    wrong_tokens: int
    errors: tuple[str, ...]
    resumed: int
    pauses: tuple[float, ...]
    again: int
    flipped: int
    kept: int
    damaged: int

    def faults(self, streams: int, load_s: float) -> list[str]:
        """What is not as it has to be, a line each. Flipped bytes may cost time, and must be noticed."""
        found = []
        found += [f"a stream ended with {error}" for error in self.errors]
        if self.wrong_tokens:
            found.append(f"{self.wrong_tokens} tokens lost, repeated or changed")
        if self.resumed != streams:
            found.append(f"the kill met {self.resumed} of {streams} streams: nothing was proven")
        if not self.flipped and max(self.pauses) > load_s + LIMIT_S:
            found.append(f"a pause of {max(self.pauses):.2f} s, at most {load_s:.2f} + {LIMIT_S} s allowed")
        if not self.kept:
            found.append("the next executor kept no block")
        if bool(self.flipped) != bool(self.damaged):
            found.append(f"{self.flipped} bytes were flipped, and {self.damaged} blocks found to be damaged")
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
    """The answers without a kill. Raises RuntimeError if one of them is not whole."""
    async with open_client(server) as client:
        expected = await asyncio.gather(*(Stream(body).run(client) for body in bodies))
    for stream in expected:
        if stream.error is not None or stream.tokens != stream.body["max_tokens"]:
            raise RuntimeError(f"undisturbed, a stream ended with {stream.tokens} tokens and {stream.error}")
    return expected


async def killed(server: ServerProcess, expected: Sequence[Stream], flips: int = 0, seed: int = 0) -> Kill:
    """Ask the same once more, kill the executor when each stream has some tokens, flip so many bytes of KV before the next
    one has read it, and compare.

    Raises NoArena if bytes are to be flipped and the server holds no KV.
    """
    streams = [Stream(stream.body) for stream in expected]
    resumed, before = await metric(server, RESUMED), await _adopted(server)
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
    _, wrong, _ = differences(expected, streams)
    errors = tuple(str(stream.error) for stream in streams if stream.error is not None)
    kept, damaged = (now - then for now, then in zip(await _adopted(server), before, strict=True))
    return Kill(
        wrong, errors, int(await metric(server, RESUMED) - resumed), tuple(pause(stream, moment) for stream in streams),
        feed.recomputed, flips, kept, damaged,
    )  # fmt: skip


def pause(stream: Stream, moment: float) -> float:
    """Longest time between two events of a stream that has some, the later one after `moment`; monotonic seconds."""
    pairs = zip(stream.heard_at, stream.heard_at[1:], strict=False)
    return max((after - before for before, after in pairs if after > moment), default=float("inf"))


async def _adopted(server: ServerProcess) -> tuple[int, int]:
    """Blocks kept and damaged so far. The counters are there once a block was adopted."""
    found = []
    for outcome in ("kept", "damaged"):
        try:
            found.append(int(await metric(server, ADOPTED.format(outcome))))
        except AssertionError:
            found.append(0)
    return found[0], found[1]
