"""Chunks that a stream's generator writes itself: in order with the others, and only while nothing is in their way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message

from server.http.call import call_of
from server.http.direct_writer import DirectWriter
from server.http.event_stream import EventStream


class Connection:
    """What Uvicorn's cycle and its transport do with messages and chunks."""

    def __init__(self) -> None:
        self.response_started = self.response_complete = self.disconnected = False
        self.chunked_encoding: bool | None = None
        self.flow = SimpleNamespace(write_paused=False)
        self.transport = SimpleNamespace(write=lambda data: self.sent.append(data.split(b"\r\n")[1]))
        self.sent: list[bytes] = []
        self.gone = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.response_started = self.chunked_encoding = True
        else:
            self.sent.append(message["body"])
            self.response_complete = not message["more_body"]

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def scope_of(connection: Connection) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
    call_of(scope).connection = cast(Any, lambda: connection)
    return scope


async def test_chunks_are_written_behind_the_first_and_before_the_last() -> None:
    connection, writer = Connection(), DirectWriter()
    turn = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        assert not writer.ready, "the head is not sent"
        yield b"first"
        await turn.wait()
        yield b"last"

    task = asyncio.create_task(
        EventStream(chunks(), writer=writer)(scope_of(connection), connection.receive, connection.send)
    )
    while not connection.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert writer.ready
    writer.hold(b"second")
    writer.flush(1.0)
    assert connection.sent == [b"first", b"second"]
    turn.set()
    await task
    assert connection.sent == [b"first", b"second", b"last", b""]
    assert not writer.ready, "the stream is over"


@pytest.mark.parametrize(
    "obstacle", ["paused", "disconnected", "complete", "whole", "gone", "telling", "busy"]
)
async def test_nothing_is_written_where_something_is_in_the_way(obstacle: str) -> None:
    connection, writer = Connection(), DirectWriter()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        if message.get("body") == b": keep-alive\n\n":
            await asyncio.Event().wait()
        await connection.send(message)

    seconds = 0.02 if obstacle == "telling" else 10.0
    stream = EventStream(chunks(), seconds, writer=writer)
    task = asyncio.create_task(stream(scope_of(connection), connection.receive, send))
    while not connection.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert writer.ready
    take_text = writer.text_writer(str.encode)
    assert take_text("")
    match obstacle:
        case "paused":
            connection.flow.write_paused = True
        case "disconnected":
            connection.disconnected = True
        case "complete":
            connection.response_complete = True
        case "whole":
            connection.chunked_encoding = False
        case "gone":
            connection.gone.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        case "telling":
            async with asyncio.timeout(5):
                while writer.ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        case "busy":
            assert writer._sending is not None
            writer._sending.busy = True
    assert not writer.ready
    if obstacle != "whole":  # the form of an answer does not change once it has begun
        # Most are seen behind the next flush. A sign of life may have a number, and says itself that it comes.
        assert take_text("one") == (obstacle != "telling")
        writer.flush(1.0)
        assert not take_text("text")
    task.cancel()
    await asyncio.wait([task])
    assert not take_text("text"), "the stream is over"
    writer.flush(1.0)
    assert connection.sent[0] == b"first" and b"text" not in b"".join(connection.sent)
    assert (b"one" in connection.sent) == (obstacle in {"paused", "busy"}), "there is a client to read it"


async def test_a_written_chunk_puts_off_the_sign_of_life() -> None:
    connection, writer = Connection(), DirectWriter()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"first"
        for _ in range(20):
            await asyncio.sleep(0.02)
            writer.hold(b"more")
            writer.flush(time.monotonic())

    stream = EventStream(chunks(), 0.2, writer=writer)
    await stream(scope_of(connection), connection.receive, connection.send)
    assert connection.sent == [b"first", *[b"more"] * 20, b""]


async def test_texts_are_held_until_the_flush_and_written_as_one_chunk() -> None:
    connection, writer, turn = Connection(), DirectWriter(), asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await turn.wait()
        yield b"last"

    task = asyncio.create_task(
        EventStream(chunks(), writer=writer)(scope_of(connection), connection.receive, connection.send)
    )
    while not connection.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    take = writer.text_writer(lambda text: f"<{text}>".encode())
    assert take("a") and take("") and take("b")
    writer.hold(b"c")
    assert connection.sent == [b"first"]
    writer.flush(1.0)
    writer.flush(1.0)
    assert connection.sent == [b"first", b"<a><b>c"]
    obstacles: list[tuple[Any, str, Any]] = [
        (connection.flow, "write_paused", True),
        (connection, "disconnected", True),
        (connection, "response_complete", True),
        (writer._sending, "gone", True),
        (writer._sending, "telling", True),
        (writer._sending, "busy", True),
    ]
    for place, name, value in obstacles:
        setattr(place, name, value)
        assert not writer.ready and take("d"), name
        writer.flush(1.0)
        assert not take("never"), name
        setattr(place, name, False)
        assert take(""), "nothing is in the way"
    assert take("e")
    writer.flush(1.0)
    assert connection.sent == [b"first", b"<a><b>c", b"<d>", b"<d>", b"<d>", b"<e>"], (
        "to a client that is there"
    )
    turn.set()
    await task
    assert connection.sent[6:] == [b"last", b""]
    assert not take("f"), "the stream is over"
    writer.flush(1.0)
    assert len(connection.sent) == 8
