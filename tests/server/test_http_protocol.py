"""The limits on a request that is still being received, over a real socket."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from engine.text.generation import TextDelta, TextRequest
from server import http_protocol
from server.body_budget import BodyBudget, Flow
from server.listener import listen
from tests.server.fakes import House, Script
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
    monkeypatch.setattr(http_protocol, "BODY_WINDOW", 0.3)
    monkeypatch.setattr(http_protocol, "BODY_RATE", 10)
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


# -- readers ---------------------------------------------------------------------------------------------------------------


def talks(size: int, count: int) -> Script:
    """So many deltas of so many characters, as quickly as they are taken."""

    def script(request: TextRequest) -> Iterator[TextDelta]:
        for _ in range(count):
            yield TextDelta(0, "x" * size, (1,))
        yield TextDelta(0, "", (1,), finish_reason="stop")

    return script


STREAM = b'{"prompt": "Hi", "stream": true}'
WHOLE = b'{"prompt": "Hi"}'


def post(body: bytes, close: bytes = b"Connection: close\r\n") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n"
    return head % (close, len(body)) + body


@pytest.fixture
async def impatient(house: House) -> AsyncIterator[Running]:
    """A server that waits a second for its readers."""
    house.state.write_timeout = 1.0
    one = run(house)
    one.loads.set()
    one.core.work.set()
    await one.until("/ready", 200)
    yield one
    one.signals.arrived()
    await asyncio.wait_for(one.task, 10)


def dial(running: Running, buffer: int = 8192) -> socket.socket:
    """A client whose kernel takes little for it."""
    host, port = running.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.setblocking(False)
    client.connect_ex((host, int(port)))
    return client


async def until(ready: Callable[[], bool], within: float = 10.0) -> None:
    for _ in range(int(within / 0.02)):
        if ready():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came to that")


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.sleep(0.05)  # until it is connected
    await asyncio.get_running_loop().sock_sendall(client, data)


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
            assert engine.aborted == [engine.requests[0].request_id]
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
    with listen("127.0.0.1", 0, 45.0) as listener, socket.create_connection(listener.getsockname()):
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


def limits(**values: object) -> None:
    """Of the server that runs."""
    for name, value in values.items():
        setattr(http_protocol.BoundedHttpProtocol.__subclasses__()[-1], name, value)


GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


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
    monkeypatch.setattr(http_protocol, "SPARE_CONNECTIONS", 1)
    monkeypatch.setattr(http_protocol, "IDLE_AT_LEAST", 60.0)
    monkeypatch.setattr(http_protocol, "SPARE_TIMEOUT", 0.5)
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
    monkeypatch.setattr(http_protocol, "IDLE_AT_LEAST", 0.0)
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
        "import resource as r; from server.listener import most_connections as m;"
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
    ahead = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n" * (http_protocol.MAX_PIPELINED + 1)
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


# -- the budget for bodies -------------------------------------------------------------------------------------------------


def protocol_of(running: Running) -> type[http_protocol.BoundedHttpProtocol]:
    return http_protocol.BoundedHttpProtocol.__subclasses__()[-1]


async def test_unfinished_bodies_share_a_budget(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is above it stays with its client, and gets its answer once those who hold the budget are refused."""
    monkeypatch.setattr(http_protocol, "BODY_WINDOW", 1.0)
    size, budget = 2**20, BodyBudget(2 * 2**20)
    limits(budget=budget)
    body = json.dumps({"prompt": "Hi", "user": "x" * size}).encode()
    loop = asyncio.get_running_loop()
    stalled = [dial(running) for _ in range(6)]
    sending = [asyncio.create_task(send(client, post(body)[:-1])) for client in stalled]
    try:
        most = 0
        for _ in range(20):
            most = max(most, budget.total)
            await asyncio.sleep(0.02)
        assert 2 * size < most < 5 * size
        assert await running.get("/live") == 200
        answer, _ = await talk(running, post(body))
        assert answer.startswith(b"HTTP/1.1 200")
        for client in stalled:
            assert (await asyncio.wait_for(loop.sock_recv(client, 4096), 10)).startswith(b"HTTP/1.1 408")
        await asyncio.gather(*sending)
        assert budget.total == 0
    finally:
        for client in stalled:
            client.close()


async def test_a_body_larger_than_the_budget_passes(running: Running) -> None:
    limits(budget=BodyBudget(1000))
    answers = await asyncio.gather(
        *(talk(running, post(json.dumps({"prompt": "Hi", "user": "x" * 10**6}).encode())) for _ in range(4))
    )
    statuses = {int(answer.split()[1]) for answer, _ in answers}
    assert 200 in statuses <= {200, 503}
    await until(lambda: not protocol_of(running).budget.total)


async def test_a_trickle_is_no_progress(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_WINDOW", 0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    answer, _ = await talk(running, head, *[b" "] * 100, pause=0.02)
    assert status_of(answer) == 408


async def test_without_a_key_no_body_is_read() -> None:
    house = House(options={"api_keys": ["key"]})
    one = run(house)
    one.loads.set()
    one.core.work.set()
    try:
        await one.until("/ready", 200)
        answer, _ = await talk(one, post(WHOLE)[: -len(WHOLE)])
        assert answer.startswith(b"HTTP/1.1 401")
    finally:
        one.signals.arrived()
        await asyncio.wait_for(one.task, 10)


def test_the_budget_lets_the_oldest_go_on() -> None:
    flows = [Flow(Transport()) for _ in range(4)]  # type: ignore[arg-type]
    budget = BodyBudget(600_000)
    assert all(budget.take(flow, 300_000) for flow in flows)
    assert [flow.no_room for flow in flows] == [False, False, True, True]
    assert budget.take(flows[0], 10**9)
    assert not flows[0].no_room
    flows[2].resume_reading()  # a handler wants more: no reason to read
    assert budget.take(flows[3], 100_000)
    assert not budget.take(flows[3], 900_000)
    budget.give(flows[3])
    budget.give(flows[0])
    assert [flow.no_room for flow in flows[1:3]] == [False, False]
    assert not budget.take_ahead(600_000)
    budget.give_ahead(600_000)
    budget.give(flows[1])
    budget.give(flows[2])
    assert budget.total == 0


class Transport:
    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
