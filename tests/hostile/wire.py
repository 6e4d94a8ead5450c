"""One connection to the server, byte for byte: what is sent need not be HTTP, what comes back must be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import h11

PATIENCE = 10.0
"""Seconds for an answer; more counts as a hang."""
_EOF = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` is None where the connection ended, or nothing came in time, before a whole answer."""

    status: int | None
    headers: dict[str, str]
    body: bytes
    seconds: float
    note: str = ""
    """Why there is none, or what was wrong with it."""


class Wire(asyncio.Protocol):
    """A TCP connection. Written by the event loop; `ask` is called by one task at a time.

    No stream reader: it forgets what has arrived when the connection is reset, and a refusal is often followed by a reset.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = h11.Connection(h11.CLIENT)
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._note = ""
        self._over = asyncio.Event()
        self.open = False
        """Another request may follow."""

    @classmethod
    async def to(cls, host: str, port: int) -> Wire:
        """A fresh one."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def ask(
        self,
        pieces: Sequence[bytes],
        method: str = "POST",
        *,
        pause: float = 0.0,
        ends: bool = False,
        patience: float = PATIENCE,
    ) -> Answer:
        """Send the pieces, `pause` seconds apart, and wait for one answer. `ends`: nothing more will be sent, and the server is
        told. `method` says how the answer ends: that to HEAD has no body."""
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        # What was really sent does not matter to the parser of answers.
        known = method if method in ("HEAD", "CONNECT") else "POST"
        self._parser.send(h11.Request(method=known, target="/", headers=[("host", "x")]))
        self._status, self._headers, self._note = None, {}, ""
        self._body.clear()
        self._over.clear()
        begun = time.monotonic()
        assert self._transport is not None
        for number, piece in enumerate(pieces):
            if number and pause:
                await asyncio.sleep(pause)
            if self._over.is_set():
                break
            self._transport.write(piece)
        if ends and not self._transport.is_closing():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(patience):
                await self._over.wait()
        except TimeoutError:
            self._note = f"no whole answer within {patience:g} s"
            self._status = None
        if self._status is None:
            self.close()
        seconds = time.monotonic() - begun
        return Answer(self._status, self._headers, bytes(self._body), seconds, self._note)

    def close(self) -> None:
        """At once; what was not sent yet is not."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.open = transport, True

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def eof_received(self) -> None:
        self._feed(_EOF)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if not self._over.is_set():
            self._note = self._note or f"the connection ended: {exc or 'closed'}"
            self._status = None
            self._over.set()

    def _feed(self, data: bytes) -> None:
        if self._over.is_set():
            return
        try:
            self._parser.receive_data(data)
            while (event := self._parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                self._take(event)
                if self._over.is_set():
                    return
        except h11.RemoteProtocolError as error:
            cut = data == _EOF
            self._note = f"the connection ended: {error}" if cut else f"the answer is no HTTP: {error}"
            self._status = None
            self._over.set()

    def _take(self, event: object) -> None:
        match event:
            case h11.Response():
                self._status = event.status_code
                self._headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                if self._headers.get("connection", "").lower() == "close":
                    self.open = False
            case h11.Data():
                self._body += event.data
            case h11.EndOfMessage():
                self._over.set()
            case h11.ConnectionClosed():
                self._note, self._status = "the connection ended: closed", None
                self._over.set()
