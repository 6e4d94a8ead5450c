"""Answers that are not streamed: the limit on their size, and how large ones are sent in pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import FIELD, InvalidRequest

MAX_ANSWER_BYTES = 256 * 2**20
"""Limit in bytes on the encoded parts of one answer besides its generated text: logprobs (four million tokens and alternatives,
all kept until the last token), and the part of its prompt that each choice repeats."""
_PAUSE_INTERVAL = 0.005
"""Interval at which work that never waits yields to the event loop, in seconds."""
_SEND_BYTES = 64 * 1024
"""Size in bytes below which pieces are sent together: one `send` costs as much as copying these."""


class AnswerBudget:
    """Bytes that one answer may still take in. One writer: the task that collects the answer."""

    def __init__(self) -> None:
        self._size = 0

    def take(self, size: int, param: str) -> None:
        """Count the bytes that the field `param` adds to the answer. Raises InvalidRequest if the answer becomes too large."""
        self._size += size
        if self._size > MAX_ANSWER_BYTES:
            message = (
                f"This answer would be more than {MAX_ANSWER_BYTES} bytes by what '{FIELD}' adds to it. Ask for fewer "
                "alternatives, choices or tokens, or for a stream."
            )
            raise InvalidRequest(message, param, "answer_too_large")


class YieldRegularly:
    """Yields to the event loop at intervals during long work that never waits. One writer: the task that does the work."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def pause(self) -> None:
        """Yield if it is time. Call it after each piece of the work."""
        if time.monotonic() - self._since > _PAUSE_INTERVAL:
            await asyncio.sleep(0)
            self._since = time.monotonic()


class ChunkedJSON(Response):
    """JSON in pieces, some of them repeated many times. The pieces are never joined into one buffer, and other tasks run
    between one send and the next."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = list(pieces)
        super().__init__(media_type="application/json")
        self.headers["content-length"] = str(sum(map(len, self._pieces)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces as fast as the client reads."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        previous = b""
        for body in _grouped(self._pieces):
            if previous:
                await send({"type": "http.response.body", "body": previous, "more_body": True})
                await asyncio.sleep(0)
            previous = body
        await send({"type": "http.response.body", "body": previous, "more_body": False})


def _grouped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, with small ones joined and large ones unchanged."""
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > _SEND_BYTES and small:
            yield b"".join(small)
            small, size = [], 0
        if len(piece) > _SEND_BYTES:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)
