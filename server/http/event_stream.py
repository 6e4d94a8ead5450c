"""Server-sent events, or lines of JSON, over ASGI.

Starlette's StreamingResponse would work, at several times the cost per chunk: it wraps every send in a task group and
encodes str. Here a chunk is bytes made by `server/answer/sse.py`, and costs one `send`, or a write to the transport where the
generator has a `DirectWriter`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Protocol

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from engine.errors import EngineError
from server.http.call import Refusal, call_of
from server.http.direct_writer import DirectWriter
from server.http.disconnect import Alive, Sending, race
from server.http.errors import ClientDisconnected
from server.http.form import Failure, plain_error

log = structlog.get_logger("server")

DONE = b"data: [DONE]\n\n"
_PAUSE_INTERVAL = 0.005
"""Interval at which a stream that never waits yields to the event loop, in seconds."""
KEEP_ALIVE = 10.0
"""Time without a chunk after which a keep-alive comment is sent, in seconds: proxies close silent connections, and a request
may wait in the queue or for the executor to restart."""
_COMMENT = b": keep-alive\n\n"
"""Comment line, which readers of event streams ignore."""


class StreamForm(Protocol):
    """What a stream sends in its API's own form besides the generator's chunks."""

    def keep_alive(self) -> bytes:
        """What a silent stream sends. It may come before the first chunk."""

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """An error of a stream that has begun: as facts for the log and metrics, and as the stream's last events."""


class OpenAIForm:
    """Comments keep a stream alive, and an event in OpenAI's form ends a failed one."""

    def keep_alive(self) -> bytes:
        """A comment."""
        return _COMMENT

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """The error and [DONE]."""
        refusal, failure = failure_of(error)
        return refusal, b"data: " + msgspec.json.encode(plain_error(failure)) + b"\n\n" + DONE


_OPENAI = OpenAIForm()


class EventStream(Response):
    """Streams the bytes an async generator yields.

    Headers are sent with the first chunk, so an earlier error is a plain HTTP error with its own status, which SDKs know how
    to retry. A later error is an SSE event, since the status is already sent; so is an error after `keep_alive` seconds of
    waiting for the first chunk. A client that does not read pauses only its generator: `server/http/protocol.py` closes the
    connection of a client that reads nothing for too long.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        keep_alive: float = KEEP_ALIVE,
        form: StreamForm = _OPENAI,
        *,
        media_type: str = "text/event-stream",
        writer: DirectWriter | None = None,
    ) -> None:
        super().__init__(media_type=media_type)
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # nginx would hold chunks back
        del self.headers["content-length"]
        self._chunks = chunks
        self._keep_alive = keep_alive
        self._form = form
        self._writer = writer
        """By which the generator may write chunks itself while this stream's task waits for its next one."""
        self._started = False
        """Whether status and headers are sent or being sent."""
        self._connection: RequestResponseCycle | None = None
        self._refusal: Refusal | None = None
        """Error that ended the stream, if it failed after its beginning."""

    def begun(self) -> None:
        """Status and headers are sent already, and signs of life behind them. Called before the stream itself is."""
        self._started = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises EngineError if it fails before the first chunk."""
        sending, connection = Sending(), call_of(scope).connection
        self._connection = None if connection is None else connection()
        alive = Alive(self._keep_alive, partial(self._tell, send))
        try:
            await race(receive, self._stream(send, sending), sending, alive)
        except ClientDisconnected:  # no client is left to answer; the access log records it
            call_of(scope).disconnected = True
        finally:
            if self._refusal is not None:
                call_of(scope).refusal = self._refusal

    async def _tell(self, send: Send) -> None:
        """Send a sign of life, which may have a number: none that comes later may be written before it."""
        if self._writer is not None:
            self._writer.look_again()
        await self._send(send, self._form.keep_alive())

    async def _send(self, send: Send, body: bytes) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _stream(self, send: Send, sending: Sending) -> None:
        paused = time.monotonic()
        if self._writer is not None and self._connection is not None:
            self._writer.open(self._connection, sending)
        try:
            async for chunk in self._chunks:
                sending.busy, now = True, time.monotonic()
                if now - paused > _PAUSE_INTERVAL:
                    # With a backlog nothing here waits, least of all a send to a client that has gone: without a pause
                    # neither its going nor any other client would be noticed until all is encoded.
                    await asyncio.sleep(0)
                    paused = time.monotonic()
                if sending.gone:
                    raise ClientDisconnected
                await self._send(send, chunk)
                sending.busy, sending.at = False, now
        except Exception as error:
            if not self._started or isinstance(error, ClientDisconnected):
                raise
            sending.busy = True
            self._refusal, events = self._form.error(error)
            await send({"type": "http.response.body", "body": events, "more_body": True})
        finally:
            if self._writer is not None:
                self._writer.close()
            await self._chunks.aclose()
        if not self._started:  # a stream without events
            await self._send(send, b"")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def refusal_of(error: Exception) -> tuple[Refusal, str, str]:
    """An error of a stream that has begun: facts for the log and metrics, its message and OpenAI's type."""
    if isinstance(error, EngineError):
        return Refusal(error.status, error.code, error.param), error.message, error.type
    log.exception("a stream failed", exc_info=error)
    return Refusal(500, "internal_error", None), "Internal server error.", "internal_error"


def failure_of(error: Exception, request_id: str | None = None) -> tuple[Refusal, Failure]:
    """An error of a stream that has begun: facts for the log and metrics, and what the client is told in its API's form."""
    refusal, message, kind = refusal_of(error)
    return refusal, Failure(refusal.status, message, kind, refusal.param, refusal.code, request_id)
