"""`Link`: one end of the socket between server and worker, on the event loop.

What is sent in one turn of the loop goes out as one frame at its end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from server.remote.codec import WireError, decoder, encode

MAX_UNSENT = 256 * 2**20
"""Bytes that wait for an end that does not read; beyond them it is given up."""


class Link(asyncio.Protocol):
    """Calls `deliver` with each message, and `lost` once: with "" at the end of the stream, or with what went wrong.

    One writer: the event loop. `before_flush` may queue more messages at the end of a turn;
    `unsendable` hears of a message that cannot be encoded, and of the reason.
    """

    def __init__(self, union: Any, deliver: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        self.open = False
        self._decoder = decoder(union)
        self._deliver = deliver
        self._on_lost = on_lost
        self._reason = ""
        self._unsent: list[msgspec.Struct] = []
        self._flushing = False
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self.before_flush: Callable[[], None] = lambda: None
        self.unsendable: Callable[[msgspec.Struct, str], None] = _cannot_be_sent

    @classmethod
    async def connect(
        cls, sock: socket.socket, union: Any, deliver: Callable[[Any], None], on_lost: Callable[[str], None]
    ) -> Link:
        """The link over a connected socket, which it owns from now on."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(union, deliver, on_lost), sock=sock)
        return link

    def send(self, message: msgspec.Struct) -> None:
        """Send a message at the end of this turn. Dropped once the link is closed."""
        self._unsent.append(message)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what waits at the end of this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits, now."""
        self.before_flush()
        self._flushing = False
        messages, self._unsent = self._unsent, []
        if not messages or not self.open:
            return
        try:
            self._transport.write(encode(messages))
        except WireError:
            self._write_each(messages)
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self.give_up(f"{MAX_UNSENT} bytes wait for it to read")

    def _write_each(self, messages: list[msgspec.Struct]) -> None:
        """Send the messages one by one: one of them cannot be encoded."""
        for message in messages:
            try:
                self._transport.write(encode([message]))
            except WireError as error:
                self.unsendable(message, str(error))

    def close(self) -> None:
        """Close after what was sent. Idempotent."""
        if self.open:
            self.flush()
            self._transport.close()

    def give_up(self, reason: str) -> None:
        """Close at once."""
        if self.open:
            self._reason = reason
            self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base class
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            frames = self._decoder.feed(data)
        except WireError as error:
            self.give_up(str(error))
            return
        for frame in frames:
            for message in frame:
                if self.open:
                    self._deliver(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.open = False
        self._unsent.clear()
        self._on_lost(self._reason or ("" if exc is None else str(exc)))


def _cannot_be_sent(message: msgspec.Struct, reason: str) -> None:
    raise WireError(f"{type(message).__name__}: {reason}")
