"""Many connections, and many requests on one, over a real socket."""

import asyncio
import subprocess
import sys

import pytest

from engine.text.generation import TextDelta
from server.http import protocol
from tests.server.http.raw_http import (
    CHUNKED,
    GET,
    PIECE,
    STREAM,
    WHOLE,
    dial,
    limits,
    post,
    protocol_of,
    send,
    status_of,
    talk,
    until,
)
from tests.server.startup.test_lifecycle import Running


async def test_pipelined_requests_are_answered_in_order_each_with_its_own_id(running: Running) -> None:
    paths = [b"/live", b"/nope", b"/version", b"/v1/models", b"/live"]
    asked = b"".join(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in paths)
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(running, asked + last)
    statuses = [part.split()[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200", b"200", b"200", b"200"]
    ids = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id:")]
    assert len(set(ids)) == 6


async def test_too_many_connections(running: Running) -> None:
    """Probes are answered: who asks them would end a server that only has many clients."""
    limits(max_connections=3)
    held = [dial(running) for _ in range(3)]
    try:
        await asyncio.sleep(0.1)
        for path in (b"/live", b"/ready?x=y", b"/health", b"/metrics"):
            answer, _ = await talk(running, GET % path * 2)
            assert answer.startswith(b"HTTP/1.1 200"), path
            assert answer.count(b"HTTP/1.1 ") == 1
            assert b"connection: close" in answer
        for request in (GET % b"/v1/models", post(WHOLE, b""), b"POST /live HTTP/1.1\r\nHost: x\r\n\r\n"):
            answer, _ = await talk(running, request)
            assert status_of(answer) == 503
            assert b"retry-after: 5" in answer
        assert not running.house.engine.requests
    finally:
        for client in held:
            client.close()
    await asyncio.sleep(0.1)
    answer, _ = await talk(running, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


async def test_far_too_many_connections(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SPARE_CONNECTIONS", 1)
    monkeypatch.setattr(protocol, "IDLE_AT_LEAST", 60.0)
    monkeypatch.setattr(protocol, "SPARE_TIMEOUT", 0.5)
    limits(max_connections=1)
    loop = asyncio.get_running_loop()
    held = [dial(running) for _ in range(2)]
    try:
        await asyncio.sleep(0.1)
        # Who has not asked yet makes room for who comes later ...
        assert (await talk(running, GET % b"/live"))[0].startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(loop.sock_recv(held[1], 1), 5) == b""
        # ... after some time without that ...
        held.append(dial(running))
        assert await asyncio.wait_for(loop.sock_recv(held[2], 1), 5) == b""
        # ... and where all have asked, the last one goes.
        held.append(dial(running))
        await send(held[3], post(WHOLE, b""))
        assert (await asyncio.wait_for(loop.sock_recv(held[3], 4096), 5)).startswith(b"HTTP/1.1 503")
        assert (await talk(running, GET % b"/live"))[0] == b""
    finally:
        for client in held:
            client.close()


async def test_the_longest_idle_connection_makes_room(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "IDLE_AT_LEAST", 0.0)
    running.house.engine.script = lambda request: (TextDelta(0, "a", (1,)), asyncio.Event())
    limits(max_connections=3)
    loop = asyncio.get_running_loop()
    busy, first, second = (dial(running) for _ in range(3))
    with busy, first, second:
        await send(busy, post(STREAM, b""))
        for client in (second, first, second):  # the first is idle for longer in the end
            await send(client, GET % b"/live")
            assert (await asyncio.wait_for(loop.sock_recv(client, 4096), 5)).startswith(b"HTTP/1.1 200")
        closing = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await talk(running, closing))[0].startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(loop.sock_recv(first, 4096), 5) == b""
        await send(second, GET % b"/live")
        assert (await asyncio.wait_for(loop.sock_recv(second, 4096), 5)).startswith(b"HTTP/1.1 200")
        assert not running.house.engine.aborted


def test_the_limit_of_files_makes_room() -> None:
    code = (
        "import resource as r; from server.http.listener import most_connections as m;"
        "r.setrlimit(r.RLIMIT_NOFILE, (300, {hard})); print(m(), r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    for hard, expected in ((1000, "680 1000"), (300, "22 300"), (9000, "8192 8512")):
        command = [sys.executable, "-c", code.format(hard=hard)]
        assert subprocess.check_output(command, text=True).strip() == expected


async def test_who_pipelines_and_goes_ends_what_runs(running: Running) -> None:
    """The request that is being answered hears of it, not only the one that came last."""
    engine = running.house.engine
    engine.script = lambda request: (TextDelta(0, "a", (1,)), asyncio.Event())
    for body in (STREAM, WHOLE):
        engine.aborted.clear()
        engine.paused.clear()
        client = dial(running)
        await send(client, post(body, b""))
        await asyncio.wait_for(engine.paused.wait(), 5)
        await asyncio.get_running_loop().sock_sendall(client, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        await asyncio.sleep(0.1)
        assert not engine.aborted
        client.close()
        await until(lambda: bool(engine.aborted), 2)


async def test_who_sends_too_many_requests_ahead_is_closed(running: Running) -> None:
    running.house.engine.script = lambda request: (TextDelta(0, "a", (1,)), asyncio.Event())
    ahead = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n" * (protocol.MAX_PIPELINED + 1)
    answer, _ = await talk(running, post(STREAM, b"") + ahead)
    assert answer.count(b"HTTP/1.1 ") <= 1
    await until(lambda: bool(running.house.engine.aborted), 2)


@pytest.mark.parametrize(
    "bad",
    [
        CHUNKED + b"ZZ\r\n",
        GET % b"/live" + CHUNKED + b"ZZ\r\n",
        b"more body than was declared\r\n\r\n",
        b"GET /live HTTP/1.1\r\nx-big: " + PIECE * 3,
    ],
    ids=["chunk", "third request", "longer body", "head"],
)
async def test_what_comes_behind_a_running_answer_does_not_break_it(running: Running, bad: bytes) -> None:
    """The refusal follows the answers to what was asked before."""
    engine = running.house.engine
    go = asyncio.Event()
    engine.script = lambda request: (
        TextDelta(0, "a", (1,)),
        go,
        TextDelta(0, "b", (1,), finish_reason="stop"),
    )
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(post(STREAM, b""))
    await asyncio.wait_for(engine.paused.wait(), 5)
    writer.write(bad)
    await asyncio.sleep(0.1)
    go.set()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    stream, _, rest = answer.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert stream.count(b"HTTP/1.1 ") == 1
    statuses = [part.split()[0] for part in rest.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [*[b"200"] * bad.count(b"GET /live HTTP/1.1\r\nHost"), statuses[-1]]
    assert status_of(rest[rest.rindex(b"HTTP/1.1 ") :]) == (431 if b"x-big" in bad else 400)
    assert not engine.aborted
    await until(lambda: not protocol_of(running).budget.total)
