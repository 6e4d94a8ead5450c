"""HTTP/1.0 clients, and the rules of RFC 9112 for a request's head, over a real socket."""

import json

import pytest

from engine.errors import ExecutorFailed
from engine.text.generation import TextDelta
from server.http.head import is_host
from tests.server.fakes import says, steps
from tests.server.http.raw_http import STREAM, WHOLE, status_of, talk
from tests.server.startup.test_lifecycle import Running

JSON = b"Content-Type: application/json\r\n"
LAST = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def split(answer: bytes) -> tuple[bytes, bytes]:
    """Head, in lower case, and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


def old(body: bytes, more: bytes = b"") -> bytes:
    """A POST of HTTP/1.0."""
    head = b"POST /v1/completions HTTP/1.0\r\n" + JSON + more
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


OLD_HEADERS = [b"", b"Host: x\r\n", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"]


async def test_a_stream_to_an_old_client_has_no_chunks(running: Running) -> None:
    """Its body ends with the connection, whatever the client hopes for."""
    for more in OLD_HEADERS:
        answer, _ = await talk(running, old(STREAM, more))
        head, body = split(answer)
        assert head.startswith(b"http/1.1 200")
        assert b"transfer-encoding" not in head and b"content-length" not in head
        assert b"connection: close" in head
        events = body.split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        assert all(event.startswith(b"data: ") for event in events[:-1]), body
        assert len(events) > 4


async def test_a_stream_that_fails_ends_as_any_other(running: Running) -> None:
    running.house.engine.script = steps(TextDelta(0, "a", (7,)), ExecutorFailed("gone"))
    head, body = split((await talk(running, old(STREAM)))[0])
    assert b"transfer-encoding" not in head
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n") and b"executor_died" in body


OLD_REQUESTS = [
    (old(WHOLE), 200),
    (old(b"{"), 400),
    (b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200),
    (b"GET /nope HTTP/1.0\r\n\r\n", 404),
]


async def test_an_old_client_is_told_the_length_where_there_is_one(running: Running) -> None:
    for request_bytes, status in OLD_REQUESTS:
        head, body = split((await talk(running, request_bytes))[0])
        assert head.startswith(b"http/1.1 %d" % status)
        assert b"transfer-encoding" not in head and b"connection: close" in head
        assert b"content-length: %d" % len(body) in head
        assert json.loads(body)


async def test_a_newer_client_still_gets_chunks(running: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + JSON
    answer, _ = await talk(running, head + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM)
    said, body = split(answer)
    assert b"transfer-encoding: chunked" in said and body.endswith(b"0\r\n\r\n")


BAD_HOSTS = [
    b"",
    b"Host: x\r\nHost: x\r\n",
    b"Host: x\r\nhost: y\r\n",
    b"Host:\r\n",
    b"Host: a b\r\n",
    b"Host: x, y\r\n",
    b"Host: http://x\r\n",
    b"Host: x/health\r\n",
    b"Host: x:y\r\n",
    b"Host: x:99999\r\n",
    b"Host: user@x\r\n",
    b"Host: [::1\r\n",
    b"Host: [1.2.3.4]\r\n",
    b"Host: x%zz\r\n",
    b"Host: \xc3\xbc\r\n",
]


async def test_exactly_one_valid_host(running: Running) -> None:
    for hosts in BAD_HOSTS:
        answer, _ = await talk(running, b"GET /v1/models HTTP/1.1\r\n" + hosts + b"\r\n")
        assert status_of(answer) == 400
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "invalid_http" and "Host" in error["message"]


async def test_two_hosts_are_none_in_any_version(running: Running) -> None:
    answer, _ = await talk(running, b"GET /live HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n")
    assert status_of(answer) == 400


@pytest.mark.parametrize(
    "host", ["x", "x:80", "x:", "127.0.0.1:8000", "[::1]", "[fd00::1]:8000", "a_b.example", "x.", "x%41"]
)
def test_hosts_that_are_valid(host: str) -> None:
    assert is_host(host.encode())


FAULTY = [
    (b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (b"GET /live HTTP/0.9\r\nHost: x\r\n\r\n", 505),
    (b"GET /live HTTP/2.0\r\nHost: x\r\n\r\n", 505),
]


async def test_what_no_client_may_send(running: Running) -> None:
    for request_bytes, status in FAULTY:
        answer, _ = await talk(running, request_bytes)
        assert status_of(answer) == status


async def test_one_refusal_is_enough(running: Running) -> None:
    """The parser stumbles over the same head, or over what stands behind it."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n"
    for request_bytes in (
        head + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        head + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"GET /live HTTP/1.1\r\n\r\nGARBAGE\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    ):
        answer, _ = await talk(running, request_bytes)
        assert status_of(answer) in (400, 501)
        assert answer.count(b"\r\nx-request-id: ") == 1


async def test_a_large_stream_to_an_old_client_is_whole(running: Running) -> None:
    """More than goes into the connection's buffers at once."""
    running.house.engine.script = says(*["x" * 100_000] * 20)
    _, body = split((await talk(running, old(STREAM)))[0])
    assert body.count(b"x" * 100_000) == 20 and body.endswith(b"data: [DONE]\n\n")


async def test_an_absolute_target_names_the_host(running: Running) -> None:
    close = b"Host: other\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(running, b"GET http://x:80/live?a HTTP/1.1\r\n" + close)
    assert answer.startswith(b"HTTP/1.1 200")
    answer, _ = await talk(running, b"GET http://user@x/live HTTP/1.1\r\n" + close)
    assert status_of(answer) == 400


async def test_a_refusal_waits_for_the_answers_before_it(running: Running) -> None:
    get = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    answer, _ = await talk(running, get + b"GET /v1/models HTTP/1.1\r\n\r\n" + get)
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 400") == 1
    assert answer.index(b"HTTP/1.1 200") < answer.index(b"HTTP/1.1 400")


async def test_head_has_the_headers_of_get_and_no_body(running: Running) -> None:
    for path in (b"/live", b"/metrics", b"/v1/models/fake", b"/openapi.json", b"/nope"):
        end = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        got, body = split((await talk(running, b"GET " + path + end))[0])
        head, nothing = split((await talk(running, b"HEAD " + path + end))[0])
        names = [line.partition(b":")[0] for line in got.split(b"\r\n")]
        assert nothing == b"" and [line.partition(b":")[0] for line in head.split(b"\r\n")] == names
        assert b"content-length: %d" % len(body) in got
        if path != b"/metrics":  # its numbers move
            assert b"content-length: %d" % len(body) in head


async def test_a_refused_head_has_no_body(running: Running) -> None:
    answer, _ = await talk(running, b"HEAD /live HTTP/1.1\r\n\r\n")
    head, body = split(answer)
    assert head.startswith(b"http/1.1 400") and b"content-length: " in head and body == b""
