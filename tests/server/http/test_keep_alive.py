"""A stream that has nothing to say says that it is alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from engine.errors import DeadlinePassed, ExecutorFailed
from server.http.event_stream import EventStream

COMMENT = b": keep-alive\n\n"
SCOPE = {"type": "http"}


class Client:
    """Takes what is sent; `goes` when told to, and reads only while `reads` is set."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.goes, self.reads = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.heard = asyncio.Condition()

    async def receive(self) -> dict[str, str]:
        await self.goes.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        async with self.heard:
            self.heard.notify_all()
        await self.reads.wait()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(5), self.heard:
            await self.heard.wait_for(ready)


def starts(client: Client) -> int:
    return sum(message["type"] == "http.response.start" for message in client.messages)


async def test_a_silent_stream_is_kept_alive_and_goes_on() -> None:
    go = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"
        await go.wait()
        yield b"two"

    client = Client()
    stream = EventStream(chunks(), keep_alive=0.02)
    call = asyncio.create_task(stream(SCOPE, client.receive, client.send))
    await client.until(lambda: client.bodies.count(COMMENT) >= 2)
    go.set()
    await call
    assert [body for body in client.bodies if body != COMMENT] == [b"one", b"two", b""]
    assert client.bodies[0] == b"one" and client.bodies[1] == COMMENT
    assert starts(client) == 1


async def test_who_waits_in_the_queue_hears_too_and_an_error_is_an_event_then() -> None:
    go = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        await go.wait()
        raise DeadlinePassed("too late")
        yield b""

    client = Client()
    call = asyncio.create_task(EventStream(chunks(), keep_alive=0.02)(SCOPE, client.receive, client.send))
    await client.until(lambda: COMMENT in client.bodies)
    go.set()
    await call
    assert starts(client) == 1 and client.messages[0]["status"] == 200
    assert b"too late" in client.bodies[-2] and client.bodies[-2].endswith(b"data: [DONE]\n\n")


async def test_an_error_that_comes_soon_keeps_its_status() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        raise ExecutorFailed("gone")
        yield b""

    client = Client()
    with pytest.raises(ExecutorFailed):
        await EventStream(chunks(), keep_alive=0.02)(SCOPE, client.receive, client.send)
    assert client.messages == []


async def test_a_stream_that_talks_has_no_comments() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for number in range(30):
            await asyncio.sleep(0.01)
            yield b"%d" % number

    client = Client()
    await EventStream(chunks(), keep_alive=2.0)(SCOPE, client.receive, client.send)
    assert client.bodies == [*(b"%d" % number for number in range(30)), b""]


async def test_nothing_is_said_beside_a_chunk_that_waits_for_its_reader() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"

    client = Client()
    client.reads.clear()
    stream = EventStream(chunks(), keep_alive=0.02)
    call = asyncio.create_task(stream(SCOPE, client.receive, client.send))
    await client.until(lambda: len(client.messages) == 1)
    await asyncio.sleep(0.1)
    assert len(client.messages) == 1
    client.reads.set()
    await call
    assert client.bodies == [b"one", b""]


async def test_a_client_that_goes_while_it_waits_is_noticed() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            closed.set()

    client = Client()
    call = asyncio.create_task(
        EventStream(chunks(), keep_alive=0.02)(dict(SCOPE), client.receive, client.send)
    )
    await client.until(lambda: COMMENT in client.bodies)
    client.goes.set()
    async with asyncio.timeout(5):
        await call
    assert closed.is_set()
