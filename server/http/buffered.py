"""Answers that are not streamed: how much they may hold, and how large ones are sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import InvalidRequest

MAX_ANSWER_BYTES = 256 * 2**20
"""Of what one answer holds besides its generated text, encoded: logprobs (four million tokens and alternatives, all kept until
the last token has come), and what each choice repeats of its prompt."""
_PAUSE_INTERVAL = 0.005
"""Seconds after which work that never had to wait lets others run."""
_SEND_BYTES = 64 * 1024
"""Smaller pieces are sent together: one `send` costs as much as copying these."""


class AnswerBudget:
    """What one answer may still take in. One writer: the task that collects it."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int, param: str) -> None:
        """So many bytes more, which the field `param` asks for. Raises InvalidRequest where it is too much."""
        self._taken += size
        if self._taken > MAX_ANSWER_BYTES:
            message = (
                f"This answer would be more than {MAX_ANSWER_BYTES} bytes by what '{param}' adds to it. Ask for fewer "
                "alternatives, choices or tokens, or for a stream."
            )
            raise InvalidRequest(message, param, "answer_too_large")


class YieldRegularly:
    """Lets others run where much is done that waits for nothing. One writer: the task that does it."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def pause(self) -> None:
        """To be called after each piece of the work."""
        if time.monotonic() - self._since > _PAUSE_INTERVAL:
            await asyncio.sleep(0)
            self._since = time.monotonic()


class ChunkedJSON(Response):
    """JSON in pieces, of which some may stand in it many times: they are never put together as a whole, and others run
    between one send and the next."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = list(pieces)
        super().__init__(media_type="application/json")
        self.headers["content-length"] = str(sum(map(len, self._pieces)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as fast as the client reads."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        held = b""
        for body in _grouped(self._pieces):
            if held:
                await send({"type": "http.response.body", "body": held, "more_body": True})
                await asyncio.sleep(0)
            held = body
        await send({"type": "http.response.body", "body": held, "more_body": False})


def _grouped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Small ones joined, large ones as they are."""
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
