"""The HTTP client of `cohort bench`: HTTP/1.1 over asyncio streams of bytes, parsed by httptools.

A benchmark shares the machine with the server it measures, and receives thousands of chunks a second: what a general client
spends on each of them would be missing in the figures. Here a chunk costs a callback of the loop, one of the parser, and
what the sink makes of it: 6 microseconds in all, where httpx takes 66 (64 streams, uvloop).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec

from clients.address import BadAddress, parse_address
from server import __version__
from server.commands.common import CONTROL

PATIENCE = 600.0
"""Seconds without a byte. A long prompt on a busy server takes its time."""
_KEY = re.compile(r"[\x20-\x7e]+")

Sink = Callable[[bytes, float], None]
"""Is given parts of a body, and the time at which each came."""


class BenchFault(Exception):
    """There is nothing to measure: no server, one that refuses, or an option that makes no sense. One line."""


class Broken(Exception):
    """A connection ended, or made no sense, before the answer was complete. `unheard`: not a byte of it had come."""

    def __init__(self, message: str, *, unheard: bool = False) -> None:
        super().__init__(message)
        self.unheard = unheard


class Refused(Exception):
    """An answer whose status is not 200."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body
        self.message = complaint(body)
        super().__init__(f"{status}: {self.message}" if self.message else str(status))


def complaint(body: bytes | Any) -> str:
    """What an error's body says, as one clean line: OpenAI's form, FastAPI's, the status of /ready, or text."""
    content: Any = body
    if isinstance(body, bytes):
        try:
            content = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            content = body.decode("utf-8", "replace")
    for name in ("error", "message", "detail", "status"):
        if isinstance(content, dict) and content.get(name):
            content = content[name]
    return CONTROL.sub("", " ".join(str(content).split()))[:300] if content else ""


class Client:
    """Where the server is, and who asks. Holds no connection."""

    def __init__(self, url: str, key: str | None) -> None:
        """Raises BenchFault for an address that is none, and for a key that no header can carry."""
        try:
            self.secure, self.host, port, self._base = parse_address(url)
        except BadAddress as error:
            raise BenchFault(str(error)) from None
        self.port = port or (443 if self.secure else 80)
        if key and not _KEY.fullmatch(key):
            raise BenchFault("the key (--api-key or its variable): it should be one line of ASCII characters")
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{'https' if self.secure else 'http'}://{name}:{self.port}{self._base}"
        self._headers = (
            f"Host: {name}:{self.port}\r\nUser-Agent: cohort-bench/{__version__}\r\nAccept: */*\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
        )  # fmt: skip
        self._tls = ssl.create_default_context() if self.secure else None

    def message(self, method: str, path: str, body: Any = None) -> bytes:
        """A whole request; `body` is sent as JSON."""
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._headers}"
        if body is None:
            return f"{head}\r\n".encode()
        data = msgspec.json.encode(body)
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    async def connect(self) -> Connection:
        """Raises OSError, of which what is wrong with a certificate is one."""
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self.host, self.port, ssl=self._tls
        )
        return connection

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded JSON of one answer, over a connection of its own. Raises Refused, Broken and OSError."""
        try:
            return msgspec.json.decode(await self.fetch(method, path, body))
        except (msgspec.DecodeError, RecursionError):
            raise Broken(f"{path} answers with something that is no JSON") from None

    async def fetch(self, method: str, path: str, body: Any = None) -> bytes:
        """The body of one answer, over a connection of its own. Raises Refused, Broken and OSError."""
        whole = bytearray()
        connection = await self.connect()
        try:
            async with asyncio.timeout(PATIENCE):
                await connection.exchange(
                    self.message(method, path, body), lambda data, _: whole.extend(data)
                )
            return bytes(whole)
        except TimeoutError:
            raise Broken(f"nothing came for {PATIENCE:g} s") from None
        finally:
            connection.close()


class Connection(asyncio.Protocol):
    """One connection, kept alive; one request at a time, all by the one task that opened it."""

    def __init__(self) -> None:
        self.last_byte_at = time.perf_counter()
        """When the last bytes came."""
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[None] | None = None
        self._sink: Sink = _ignore
        self._until_eof = True
        self._has_answer = False
        self._status = 0
        self._refusal = bytearray()

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether an answer is being waited for."""
        return self._answered is not None and not self._answered.done()

    async def exchange(self, message: bytes, sink: Sink) -> None:
        """Send a request and wait for the end of its answer, whose body goes to `sink`. Raises Refused and Broken."""
        if self._transport is None or self._transport.is_closing():
            raise Broken("the connection is closed", unheard=True)
        self._answered = asyncio.get_running_loop().create_future()
        self._sink, self._has_answer, self._status, self._until_eof = sink, False, 0, True
        self._refusal.clear()
        self.last_byte_at = time.perf_counter()
        self._transport.write(message)
        try:
            await self._answered
        finally:
            self._sink = _ignore
        if self._status != 200:
            raise Refused(self._status, bytes(self._refusal))

    def close(self) -> None:
        """At once: whatever the server still sends is of no interest."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, reason: str) -> None:
        """End what is being waited for."""
        self._fail(reason)

    # -- what asyncio calls ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        self.last_byte_at = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the server speaks no HTTP: {CONTROL.sub('', str(error))[:200]}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.busy and self._status and self._until_eof and error is None:
            self.on_message_complete()  # HTTP/1.0: the end of the connection is that of the body
        self._fail("the server closed the connection before the answer was complete")

    # -- what the parser calls ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_answer = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_eof = False

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._status == 200:
            self._sink(data, self.last_byte_at)
        elif len(self._refusal) < 1 << 16:
            self._refusal += data

    def on_message_complete(self) -> None:
        if self._status < 200:
            return  # an interim answer
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _fail(self, reason: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(Broken(reason, unheard=not self._has_answer))
        self.close()


def _ignore(data: bytes, now: float) -> None:
    """Ignore bytes that arrive without a request."""


def reason(error: Exception) -> str:
    """Why something failed, as one clean line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return CONTROL.sub("", " ".join(str(text).split()))[:300]
