"""Clients that read slowly, never, or are gone, over a real socket."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from engine.text.generation import TextDelta, TextRequest
from server.http.listener import listen
from server.startup import lifecycle
from tests.server.fakes import House, Script
from tests.server.http.raw_http import STREAM, WHOLE, dial, post, send, serving, until
from tests.server.startup.test_lifecycle import Running, run

pytestmark = pytest.mark.long


def talks(size: int, count: int) -> Script:
    """So many deltas of so many characters, as quickly as they are taken."""

    def script(request: TextRequest) -> Iterator[TextDelta]:
        for _ in range(count):
            yield TextDelta(0, "x" * size, (1,))
        yield TextDelta(0, "", (1,), finish_reason="stop")

    return script


@pytest.fixture
async def impatient(house: House) -> AsyncIterator[Running]:
    """A server that waits a second for its readers."""
    house.state.write_timeout = 1.0
    async with serving(house) as one:
        yield one


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("body", "kept"), [(STREAM, b"Connection: close\r\n"), (WHOLE, b"")], ids=["stream", "whole"]
)
async def test_a_client_that_never_reads_is_given_up(impatient: Running, body: bytes, kept: bytes) -> None:
    engine = impatient.house.engine
    engine.script = talks(10_000, 400)
    with dial(impatient) as client, capture_logs() as logs:
        await send(client, post(body, kept))
        await until(lambda: bool(engine.requests))
        began = time.monotonic()
        await until(lambda: any("did not read" in line["event"] for line in logs))
        assert 0.9 < time.monotonic() - began < 8
        await until(lambda: not engine.open)
        if body == STREAM:
            assert engine.aborted == [engine.requests[0].context.request_id]
        assert await impatient.get("/live") == 200


async def test_a_client_that_reads_slowly_gets_everything(impatient: Running) -> None:
    """For several times the write time-out: what counts is that it takes something."""
    impatient.house.engine.script = talks(10_000, 60)
    loop, got, began = asyncio.get_running_loop(), b"", time.monotonic()
    with dial(impatient) as client:
        await send(client, post(STREAM))
        while piece := await loop.sock_recv(
            client, 4096 if (slow := time.monotonic() - began < 2.5) else 2**20
        ):
            got += piece
            await asyncio.sleep(0.15 if slow else 0)
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert got.count(b"x" * 10_000) == 60


@pytest.mark.long(every=2)
@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_a_drain_waits_for_who_reads_slowly(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the last bytes have, and no longer than the drain has."""
    monkeypatch.setattr(lifecycle, "_LAST_BYTES_TIMEOUT", 1)

    async def drained(timeout: float, complete: bool) -> None:
        house = House()
        running = run(house, drain_timeout=timeout)
        running.loads.set()
        running.core.work.set()  # all is computed when the signal comes
        await running.until("/ready", 200)
        house.engine.script = talks(10_000, 1000)  # more than the kernel takes
        loop, got, began = asyncio.get_running_loop(), b"", time.monotonic()
        with dial(running) as client:
            await send(client, post(body))
            await until(lambda: bool(house.engine.requests))
            await asyncio.sleep(0.3)
            running.signals.arrived()
            while time.monotonic() - began < 3.5:
                got += await loop.sock_recv(client, 1024)
                await asyncio.sleep(0.05)
            assert running.task.done() is not complete
            while piece := await loop.sock_recv(client, 2**20):
                got += piece
        await asyncio.wait_for(running.task, 5)
        if (
            complete or body == STREAM
        ):  # a whole answer is the transport's by then, which goes on while the test does
            assert (got.count(b"x" * 10_000) == 1000) is complete
            assert got.endswith((b"data: [DONE]\n\n\r\n0\r\n\r\n", b"}")) is complete

    await asyncio.gather(drained(20.0, True), drained(0.5, False))


async def test_little_is_made_for_who_does_not_read(running: Running) -> None:
    """What a stream's client does not read is not encoded: the engine's mailbox holds it in its own form."""
    made = 0

    def script(request: TextRequest) -> Iterator[TextDelta]:
        nonlocal made
        for _ in range(5000):
            made += 1
            yield TextDelta(0, "x" * 10_000, (1,))

    running.house.engine.script = script
    with dial(running) as client:
        await send(client, post(STREAM))
        await until(lambda: made > 0)
        before = -1
        while made != before:
            before = made
            await asyncio.sleep(0.3)
        assert made * 10_000 < 2_000_000
    await until(lambda: bool(running.house.engine.aborted))


async def test_connections_inherit_what_finds_the_dead() -> None:
    with listen("127.0.0.1", 0, 45.0) as made, socket.create_connection(made.sockets[0].getsockname()):
        [listener] = made.sockets
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for name, value in (
                ("TCP_KEEPIDLE", 30),
                ("TCP_KEEPINTVL", 10),
                ("TCP_USER_TIMEOUT", 67_500),
                ("TCP_NOTSENT_LOWAT", 131_072),
            ):
                if hasattr(socket, name):
                    assert accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
