"""The limits on a request that is still being received, over a real socket."""

import asyncio
import json
import re

import pytest

from server.http import protocol
from server.http.body_budget import BodyBudget, Flow
from tests.server.fakes import House
from tests.server.http.raw_http import (
    CHUNKED,
    JSON,
    PIECE,
    WHOLE,
    dial,
    limits,
    post,
    protocol_of,
    send,
    serving,
    status_of,
    talk,
    until,
)
from tests.server.startup.test_lifecycle import Running


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
    assert re.search(rb"\r\nx-request-id: req_[0-9a-f]{24}\r\n", answer)


async def test_headers_have_their_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.2)
    pieces = [b"GET /live HTTP/1.1\r\n", *(b"x-%d: y\r\n" % number for number in range(100))]
    answer, _ = await talk(running, *pieces, pause=0.02)
    assert status_of(answer) == 408


async def test_a_body_may_be_slow_but_not_stop(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_WINDOW", 0.3)
    monkeypatch.setattr(protocol, "BODY_RATE", 10)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Connection: close\r\nContent-Length: %d\r\n\r\n"
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
    monkeypatch.setattr(protocol.BoundedHttpProtocol, "_idle_timeout", 0.2)
    for pieces in ((), (b"\r\n",)):
        assert (await talk(running, *pieces))[0] == b""


async def test_large_bodies_and_kept_connections_pass(running: Running) -> None:
    body = json.dumps({"prompt": "Hi", "user": "x" * 1_000_000}).encode()
    one = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )
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
    answer, _ = await talk(running, b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + few + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    many = b"".join(b"x-%d: y\r\n" % number for number in range(10_000))
    answer, _ = await talk(running, b"GET /live HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n")
    if answer:  # a reset may overtake it
        assert status_of(answer) == 431


async def test_a_chunked_body(running: Running) -> None:
    body = b'{"prompt": "Hi", "user": "u"}'
    chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-trailer: z\r\n\r\n"
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(running, CHUNKED + chunks + last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"x-cohort-ignored: user\r\n" in answer


# -- the budget for bodies -------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_unfinished_bodies_share_a_budget(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is above it stays with its client, and gets its answer once those who hold the budget are refused."""
    monkeypatch.setattr(protocol, "BODY_WINDOW", 1.0)
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
    monkeypatch.setattr(protocol, "BODY_WINDOW", 0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    answer, _ = await talk(running, head, *[b" "] * 100, pause=0.02)
    assert status_of(answer) == 408


async def test_without_a_key_no_body_is_read() -> None:
    house = House(options={"api_keys": ["key"]})
    async with serving(house) as one:
        answer, _ = await talk(one, post(WHOLE)[: -len(WHOLE)])
        assert answer.startswith(b"HTTP/1.1 401")


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


async def test_what_the_protocol_refuses_has_the_form_of_the_path(running: Running) -> None:
    """As far as the path is known."""
    for path, anthropics in (
        (b"/v1/messages", True),
        (b"/v1/messages/count_tokens?beta=true", True),
        (b"/v1/completions", False),
        (b"/api/chat", False),
    ):
        head = (
            b"POST "
            + path
            + b" HTTP/1.1\r\nHost: x\r\n"
            + JSON
            + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
        )
        answer, _ = await talk(running, head)
        lines, _, body = answer.partition(b"\r\n\r\n")
        error = json.loads(body)
        assert f"content-length: {len(body)}".encode() in lines.lower()
        assert (error.get("type") == "error") is anthropics
        assert isinstance(error["error"], str) is (path == b"/api/chat")
        if anthropics:
            assert error["error"]["type"] == "invalid_request_error"
            assert f"x-request-id: {error['request_id']}".encode() in lines
