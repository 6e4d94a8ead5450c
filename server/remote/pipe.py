"""A `Link` whose bytes are carried by other code: here they wait until they are fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from server.remote.link import Link


class Pipe(asyncio.Transport):
    """The transport of such a link. One writer: the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = bytearray()
        self._news = asyncio.Event()
        self._closed = False
        self.link: Link

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep bytes for `take`."""
        self._waiting += data
        self._news.set()

    def get_write_buffer_size(self) -> int:
        """Bytes that were not fetched yet."""
        return len(self._waiting)

    async def take(self) -> bytes:
        """Wait for bytes and take all of them; b"" at the end."""
        while not self._waiting and not self._closed:
            self._news.clear()
            await self._news.wait()
        data, self._waiting = bytes(self._waiting), bytearray()
        return data

    def close(self) -> None:
        """No more is written; what waits can still be data."""
        self._end(None)

    def abort(self) -> None:
        """As `close`, and what waits is dropped."""
        self._waiting.clear()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._closed:
            self._closed = True
            self._news.set()
            self.link.connection_lost(error)


def pipe_link(
    union: Any, deliver: Callable[[Any], None], on_lost: Callable[[str], None]
) -> tuple[Link, Pipe]:
    """An open link, and what its bytes are data from. Bytes for it go to its `data_received`."""
    pipe, link = Pipe(), Link(union, deliver, on_lost)
    pipe.link = link
    link.connection_made(pipe)
    return link, pipe
