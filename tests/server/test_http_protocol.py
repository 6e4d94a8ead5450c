"""The limits on a request that is still being received, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from server import http_protocol
from tests.server.fakes import House
from tests.server.test_lifecycle import Running, run


@pytest.fixture
async def running(house: House) -> AsyncIterator[Running]:
    one = run(house)
    one.loads.set()
    one.core.work.set()
    await one.until("/ready", 200)
    yield one
    one.signals.arrived()
    await asyncio.wait_for(one.task, 10)


async def talk(running: Running, *pieces: bytes, pause: float = 0.0) -> tuple[bytes, int]:
    """What comes back until the server closes, and how much it let us send."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = asyncio.create_task(reader.read())
    sent = 0
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(pause)
            if answer.done():
                break
    try:
        return await asyncio.wait_for(answer, 5), sent
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def status_of(answer: bytes) -> int:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    return int(head.split()[1])


PIECE = b"x" * 65536
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "start",
    [
        b"GET /live HTTP/1.1\r\nx-big: ",
        b"GET /",
        b"GET /live HTTP/1.1\r\nx-",
        CHUNKED + b"1;",
        CHUNKED + b"2\r\n{}\r\n0\r\nx-trailer: ",
    ],
    ids=["header", "url", "name", "chunk extension", "trailer"],
)
async def test_what_is_no_body_has_an_end(running: Running, start: bytes) -> None:
    answer, sent = await talk(running, start, *[PIECE] * 100)
    assert sent < 100 * len(PIECE)
    if answer:  # a reset may overtake it
        assert status_of(answer) in (400, 431)


async def test_the_answer_arrives_and_says_431(running: Running) -> None:
    answer, _ = await talk(running, b"GET /live HTTP/1.1\r\nx-big: ", *[b"x" * 16384] * 8, pause=0.02)
    assert status_of(answer) == 431


async def test_headers_have_their_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT", 0.2)
    pieces = [b"GET /live HTTP/1.1\r\n", *(b"x-%d: y\r\n" % number for number in range(100))]
    answer, _ = await talk(running, *pieces, pause=0.02)
    assert status_of(answer) == 408


async def test_a_body_may_be_slow_but_not_stop(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_TIMEOUT", 0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    body = b'{"prompt": "Hi"}'
    slow = [body[i : i + 1] for i in range(len(body))]
    answer, _ = await talk(running, head % len(body), *slow, pause=0.04)
    assert answer.startswith(b"HTTP/1.1 200")
    answer, _ = await talk(running, head % (len(body) + 1), body)
    assert status_of(answer) == 408
    assert running.house.engine.requests[1:] == []


async def test_a_connection_without_a_request_is_idle(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol.BoundedHttpProtocol, "_idle_timeout", 0.2)
    for pieces in ((), (b"\r\n",)):
        assert (await talk(running, *pieces))[0] == b""


async def test_large_bodies_and_kept_connections_pass(running: Running) -> None:
    body = json.dumps({"prompt": "Hi", "user": "x" * 1_000_000}).encode()
    one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(running, one, one, one + last)
    assert answer.count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize(
    "start",
    [
        b"HELLO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /live HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: x\r\nbad\x00name: y\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=lambda start: start[:40].decode("latin-1"),
)
async def test_what_is_no_http_is_told_in_the_usual_form(running: Running, start: bytes) -> None:
    answer, _ = await talk(running, start)
    assert status_of(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_many_headers(running: Running) -> None:
    few = b"".join(b"x-%d: y\r\n" % number for number in range(200))
    answer, _ = await talk(running, b"GET /live HTTP/1.1\r\nConnection: close\r\n" + few + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    many = b"".join(b"x-%d: y\r\n" % number for number in range(10_000))
    answer, _ = await talk(running, b"GET /live HTTP/1.1\r\n" + many + b"\r\n")
    if answer:  # a reset may overtake it
        assert status_of(answer) == 431


async def test_a_chunked_body(running: Running) -> None:
    body = b'{"prompt": "Hi", "user": "u"}'
    chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-trailer: z\r\n\r\n"
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(running, CHUNKED + chunks + last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"x-cohort-ignored: user\r\n" in answer


async def test_pipelined_requests_are_answered_in_order_each_with_its_own_id(running: Running) -> None:
    paths = [b"/live", b"/nope", b"/version", b"/v1/models", b"/live"]
    asked = b"".join(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in paths)
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(running, asked + last)
    statuses = [part.split()[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200", b"200", b"200", b"200"]
    ids = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id:")]
    assert len(set(ids)) == 6
