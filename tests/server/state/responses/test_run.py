"""A background run: its log, its readers, and cancellation at every await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

import pytest

from server.state.responses.errors import StoreFull
from server.state.responses.run import BackgroundRun


class Encoder:
    """Events are words."""

    ended = ""

    def created(self) -> bytes:
        return b"created\n\nqueued\n\n"

    def snapshot(self) -> dict[str, Any]:
        return {"status": self.ended or "in_progress"}

    def stopped(self, status: Literal["failed", "cancelled"], error: Mapping[str, Any] | None) -> bytes:
        assert not self.ended, "ended twice"
        self.ended = status
        return status.encode() + b"\n\n"


class Source:
    """Words, then a wait, then the end; freeing takes a while."""

    def __init__(self, *words: bytes, error: Exception | None = None) -> None:
        self.go = asyncio.Event()
        self.freed = False
        self._words, self._error = words, error

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            for word in self._words:
                yield word
            if self._error is not None:
                raise self._error
            await self.go.wait()
            yield b"completed\n\n"
        finally:
            await asyncio.sleep(0.02)
            self.freed = True


async def nothing() -> None:
    pass


def failure(error: Exception) -> dict[str, Any]:
    return {"code": "x", "message": str(error)}


async def read(run: BackgroundRun, after: int = -1) -> list[str]:
    out = b"".join([chunk async for chunk in run.events(after)])
    return out.decode().split("\n\n")[:-1]


async def test_readers_get_every_event_once_wherever_they_begin() -> None:
    source = Source(b"a\n\nb\n\n", b"c\n\n")
    run = BackgroundRun(Encoder(), source.chunks(), failure)
    early = asyncio.create_task(read(run))
    await run.start(nothing)
    late = asyncio.create_task(read(run, 3))
    await asyncio.sleep(0)
    source.go.set()
    whole = ["created", "queued", "a", "b", "c", "completed"]
    assert await early == whole and await late == whole[4:]
    assert await read(run, 1) == whole[2:] and await read(run, 99) == []
    assert source.freed and run.done and run.size == sum(len(word) + 2 for word in whole)


async def test_two_cancels_free_once_and_both_wait() -> None:
    source, encoder = Source(b"a\n\n"), Encoder()
    run = BackgroundRun(encoder, source.chunks(), failure)
    await run.start(nothing)
    await asyncio.sleep(0.01)

    async def cancel() -> bool:
        await run.cancel()
        return source.freed and run.done

    assert await asyncio.gather(cancel(), cancel()) == [True, True]
    assert (await read(run))[-1] == "cancelled"
    await run.cancel()


async def test_a_cancel_right_after_the_start_ends_it() -> None:
    source = Source()
    run = BackgroundRun(Encoder(), source.chunks(), failure)
    await run.start(nothing)
    await run.cancel()
    assert (await read(run))[-1] == "cancelled" and source.freed


async def test_a_reader_that_leaves_ends_nothing() -> None:
    source = Source(b"a\n\n")
    run = BackgroundRun(Encoder(), source.chunks(), failure)
    await run.start(nothing)
    reader = asyncio.create_task(read(run))
    await asyncio.sleep(0.01)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    source.go.set()
    assert (await read(run))[-1] == "completed"


@pytest.mark.parametrize("error", [RuntimeError("odd"), StoreFull("full")])
async def test_a_failure_is_the_last_event(error: Exception) -> None:
    source = Source(b"a\n\n", error=error)
    run = BackgroundRun(Encoder(), source.chunks(), failure)
    await run.start(nothing)
    assert await read(run) == ["created", "queued", "a", "failed"]


async def test_a_store_that_is_full_at_the_end_changes_nothing() -> None:
    source = Source(b"a\n\n")

    async def full() -> None:
        raise StoreFull("full")

    run = BackgroundRun(Encoder(), source.chunks(), failure)
    await run.start(full)
    source.go.set()
    assert (await read(run))[-1] == "completed"


async def test_growth_is_counted_on_the_way() -> None:
    source = Source(*[b"x" * 40_000 + b"\n\n"] * 6)
    told = []

    async def grown() -> None:
        told.append(run.size)

    run = BackgroundRun(Encoder(), source.chunks(), failure)
    await run.start(grown)
    source.go.set()
    await read(run)
    assert len(told) == 4 and told == sorted(told)
