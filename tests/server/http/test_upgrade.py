"""Requests that offer another protocol: they are requests like any other."""

import pytest

from tests.server.http.raw_http import status_of, talk
from tests.server.startup.test_lifecycle import Running

BODY = b'{"prompt": "Hi", "user": "u"}'
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + OFFER
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
IN_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + BODY[:5] + b"\r\n%x\r\n" % len(BODY[5:])
IN_CHUNKS += BODY[5:] + b"\r\n0\r\n\r\n"
LAST = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("request_bytes", [WHOLE, IN_CHUNKS], ids=["whole", "chunked"])
async def test_its_body_is_read_however_it_arrives(running: Running, request_bytes: bytes) -> None:
    """The body with the head, behind it, a byte at a time; and the connection goes on."""
    end = request_bytes.index(b"\r\n\r\n") + 4
    singly = [request_bytes[i : i + 1] for i in range(end - 3, len(request_bytes))]
    for pieces in (
        [request_bytes + request_bytes + LAST],
        [request_bytes[:end], request_bytes[end:] + request_bytes, LAST],
        [request_bytes[: end - 3], *singly, request_bytes, LAST],
    ):
        answer, _ = await talk(running, *pieces, pause=0.01)
        assert answer.count(b"HTTP/1.1 200") == 3, pieces
        assert answer.count(b"x-cohort-ignored: user\r\n") == 2
        assert b"HTTP/1.1 101" not in answer


async def test_without_a_body_it_ends_at_its_head(running: Running) -> None:
    get = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n"
    socket = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for pieces in ([get + socket + LAST], [get, socket, LAST]):
        answer, _ = await talk(running, *pieces, pause=0.01)
        assert answer.count(b"HTTP/1.1 200") == 3


async def test_a_tunnel_is_not_dug(running: Running) -> None:
    answer, _ = await talk(running, b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n" + LAST)
    assert status_of(answer) == 400


async def test_what_follows_an_offer_is_judged_like_anything_else(running: Running) -> None:
    answer, _ = await talk(running, HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert status_of(answer) == 400
    answer, _ = await talk(running, HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")
    assert status_of(answer) == 400
