"""The client of `cohort bench`: whatever way bytes come, tokens, times and failures are told right."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clients.bench.load import Run, run
from clients.bench.stream import CompletionReader, Served
from clients.http import BenchFault, Broken, Client, Refused, complaint
from tests.client_commands.bench_fake import Cut, FakeServer, every, whole

pytestmark = pytest.mark.long

# Self-signed for localhost and 127.0.0.1, until 2126; of use for nothing else.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUD+SxqnaiCTl0jcnmr4U2BjdSmMwwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTE1MzgwOFoYDzIxMjYxMDI4
MTUzODA4WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAT+x+NKisZ7b+1Ut/U11YGC7POeKiBv9rVk9RoVaMFq+51/SDmkuoM/
4m4faAQom3Q8E3C6FXIQN4hyNPp1pQTso28wbTAdBgNVHQ4EFgQU5XUJGXOU/w9X
tW0pQ4KpdPdQkNwwHwYDVR0jBBgwFoAU5XUJGXOU/w9XtW0pQ4KpdPdQkNwwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgMRntKIlPT58kp/Cl603BeM1YfoeTCvfO2HXLom1vd2MCIQDq
pEMYfSSjRJYS7Mn0wg/D+PkFX9tI2rcOQ+yl2WHfvQ==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBYoMmmq0k0l7EZ6F
eaYMkHP2ZkllTdHWzwCbyJJKgcKhRANCAAT+x+NKisZ7b+1Ut/U11YGC7POeKiBv
9rVk9RoVaMFq+51/SDmkuoM/4m4faAQom3Q8E3C6FXIQN4hyNPp1pQTs
-----END PRIVATE KEY-----
"""


def asked(**more: object) -> dict[str, object]:
    return {
        "model": "first", "prompt": [1, 2, 3], "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True},
        **more,
    }  # fmt: skip


async def load(server: FakeServer, requests: int = 3, concurrency: int = 1, **more: object) -> Run:
    client = Client(server.url, server.key)
    message = client.message("POST", "/v1/completions", asked(**more))
    return await run(client, [message] * requests, concurrency, lambda: None)


def words_apart(data: bytes) -> Iterator[bytes]:
    """Cut inside the framing, inside a character of two bytes, and inside the JSON."""
    at = data.find("é".encode()) + 1
    yield data[:1]
    yield data[1 : max(at, 1)]
    yield data[max(at, 1) :]


@pytest.mark.long(every=6)
@pytest.mark.parametrize(
    "cut", [whole, every(1), every(7), words_apart], ids=["whole", "bytes", "sevens", "odd"]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "until-eof"])
async def test_an_answer_in_any_pieces(cut: Cut, newline: str, chunked: bool) -> None:
    with FakeServer(cut=cut, newline=newline, chunked=chunked) as server:
        result = await load(server)
    assert result.failures == []
    for one in result.served:
        assert (one.output_tokens, len(one.arrivals), one.prompt_tokens, one.counted) == (6, 6, 3, True)
        assert one.arrivals == sorted(one.arrivals) and one.arrivals[0] > one.sent_at


async def test_tokens_are_counted_by_usage_not_by_events() -> None:
    with FakeServer(tokens_per_event=4) as server:
        [one] = (await load(server, 1)).served
    assert (one.output_tokens, len(one.arrivals)) == (6, 2)


async def test_without_usage_events_are_counted() -> None:
    with FakeServer(counts=False, closing_event=True) as server:
        [one] = (await load(server, 1)).served
    assert (one.output_tokens, len(one.arrivals), one.prompt_tokens, one.counted) == (6, 6, None, False)


@pytest.mark.parametrize("closing", [True, False])
async def test_a_closing_event_is_no_token(closing: bool) -> None:
    with FakeServer(closing_event=closing) as server:
        [one] = (await load(server, 1)).served
    assert len(one.arrivals) == 6


def test_the_only_event_counts_even_without_text() -> None:
    """A token may have no text, such as a special one."""
    reader = CompletionReader()
    reader.feed(b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n', 2.0)
    assert reader.result(1.0) == Served(1.0, [2.0], None, 1, False)


def test_two_events_in_one_read_came_together() -> None:
    reader = CompletionReader()
    event = b'data: {"choices":[{"text":"a"}]}\n\n'
    reader.feed(event + event + event[:9], 2.0)
    reader.feed(event[9:] + b"data: [DO", 3.0)
    assert reader.result(1.0) == "the answer ended without [DONE]"
    reader.feed(b"NE]\n", 4.0)
    assert reader.result(1.0) == Served(1.0, [2.0, 2.0, 3.0], None, 3, False)


@pytest.mark.parametrize("event", [b"{", b'{"choices": 3}', b"[]", b"\xff", b'{"usage": "much"}'])
def test_an_event_that_is_none(event: bytes) -> None:
    reader = CompletionReader()
    reader.feed(b"data: " + event + b"\ndata: [DONE]\n", 1.0)
    assert reader.result(0.0) == "the server sent an event that no OpenAI-compatible API has"


async def test_connections_are_kept_and_never_more_than_asked_for() -> None:
    with FakeServer(delay=0.001) as server:
        result = await load(server, 20, 4)
        assert len(result.served) == 20
        assert server.connections == 4 and server.most_running == 4


async def test_a_server_that_closes_after_each_answer() -> None:
    with FakeServer(keep_alive=False) as server:
        assert len((await load(server, 5)).served) == 5
        assert server.connections == 5


async def test_a_connection_closed_while_idle_is_no_failure() -> None:
    """The server's FIN may still be on its way when the next request is written."""
    with FakeServer(close_idle=True) as server:
        assert len((await load(server, 30, 3)).served) == 30


async def test_failures_are_told_apart_and_do_not_stop_the_rest() -> None:
    with FakeServer(
        error_in=lambda n: n == 2, hang_up_in=lambda n: n == 4, refuse_in=lambda n: n == 6
    ) as server:
        result = await load(server, 8)
    assert result.failures == [
        "the engine is down",
        "the server closed the connection before the answer was complete",
        "400: not today",
    ]
    assert len(result.served) == 5


async def test_a_server_that_hangs_up_on_everybody() -> None:
    with FakeServer(hang_up_in=lambda n: True) as server:
        result = await load(server, 4, 2)
    assert not result.served and len(result.failures) == 4


async def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from clients.bench import load as loading

    monkeypatch.setattr(loading, "PATIENCE", 0.05)
    monkeypatch.setattr(loading, "LOOK_EVERY", 0.01)
    with FakeServer(delay=3600) as server:
        assert (await load(server, 1)).failures == ["nothing came for 0.05 s"]


async def test_no_server_is_not_an_outcome() -> None:
    with FakeServer() as server:
        pass
    with pytest.raises(ConnectionRefusedError):
        await load(server)


@asynccontextmanager
async def saying(words: bytes) -> AsyncIterator[Client]:
    """A client of a server that says this to whoever asks, and closes."""
    told = asyncio.Event()

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(words)
        writer.close()
        await writer.wait_closed()
        told.set()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        yield Client(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        await told.wait()


async def test_what_speaks_no_http() -> None:
    async with saying(b"SSH-2.0-OpenSSH\r\n") as client:
        with pytest.raises(Broken, match="speaks no HTTP"):
            await client.ask("GET", "/v1/models")


async def test_an_interim_answer_is_passed_over() -> None:
    words = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    async with saying(words) as client:
        assert await client.ask("GET", "/") == {}


async def test_half_an_answer() -> None:
    async with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}") as client:
        with pytest.raises(Broken, match="before the answer was complete"):
            await client.ask("GET", "/")


async def test_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with FakeServer(tls=tls, cut=every(5)) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await load(server)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        result = await load(server, 4, 2)
    assert [one.output_tokens for one in result.served] == [6] * 4


async def test_the_key_is_sent() -> None:
    with FakeServer(key="secret") as server:
        assert len((await load(server, 1)).served) == 1
        with pytest.raises(Refused, match="401: who is it"):
            await Client(server.url, "wrong").ask("GET", "/v1/models")


@pytest.mark.parametrize(
    ("url", "target", "host"),
    [
        ("127.0.0.1:8000", "/v1/models", "127.0.0.1:8000"),
        ("http://example.org/v1/", "/v1/models", "example.org:80"),
        ("https://example.org/llm/v1", "/llm/v1/models", "example.org:443"),
        ("http://[::1]:9/", "/v1/models", "[::1]:9"),
    ],
)
def test_addresses(url: str, target: str, host: str) -> None:
    head = Client(url, None).message("GET", "/v1/models").decode()
    assert head.startswith(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n")


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://here", "http://a b", "http://user:pass@here", "http://x:99999"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BenchFault) as error:
        Client(url, None)
    assert "pass" not in str(error.value).replace("password", "")


def test_a_key_that_no_header_can_carry() -> None:
    with pytest.raises(BenchFault, match="ASCII"):
        Client("http://here", "one\r\ntwo")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "no\\u001b[2J such\\n model"}}', "no[2J such model"),
        (b'{"error": "no"}', "no"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"status": "loading", "detail": "warming up"}', "warming up"),
        (b'{"status": "loading"}', "loading"),
        (b"<html>502</html>", "<html>502</html>"),
        (b"", ""),
    ],
)
def test_what_an_error_says(body: bytes, text: str) -> None:
    assert complaint(body) == text
