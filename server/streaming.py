"""Server-sent events over ASGI, and work that ends when its client goes away.

Starlette's StreamingResponse would do, at several times the cost of a chunk: it wraps every send in a task group and
encodes str. Here a chunk is bytes made by `server/wire.py`, and costs one `send`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError
from server.errors import ClientDisconnected, error_object

log = structlog.get_logger("server")

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"
_PAUSE_INTERVAL = 0.005
"""Seconds after which a stream that never had to wait lets others run."""
_CHECK_INTERVAL = 5.0
"""Seconds between looks at whether a send is stuck."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client closes its connection.

    The request's body must have been read. Raises ClientDisconnected, and whatever `work` raises.
    """
    return await _race(receive, work, _Sending(timeout=None))


class EventStream(Response):
    """Streams the bytes an async generator yields.

    Headers go out with the first chunk, so an error before it is a plain HTTP error with its own status, which SDKs know
    how to retry. An error later is an SSE event, since the status is spent.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], write_timeout: float) -> None:
        super().__init__(media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # nginx would hold chunks back
        del self.headers["content-length"]
        self._chunks = chunks
        self._write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises EngineError if it fails before the first chunk."""
        sending = _Sending(self._write_timeout)
        try:
            await _race(receive, self._stream(send, sending), sending)
        except ClientDisconnected:  # there is nobody to answer; the access log hears of it
            scope["cohort.disconnected"] = True

    async def _stream(self, send: Send, sending: _Sending) -> None:
        started = False
        paused = time.monotonic()
        try:
            async for chunk in self._chunks:
                sending.since = now = time.monotonic()
                if now - paused > _PAUSE_INTERVAL:
                    # With a backlog nothing here waits, least of all a send to a client that has gone: without a pause
                    # neither its going nor any other client would be noticed until all is encoded.
                    await asyncio.sleep(0)
                    paused = time.monotonic()
                if sending.gone:
                    raise ClientDisconnected
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                sending.since = None
        except Exception as error:
            if not started or isinstance(error, ClientDisconnected):
                raise
            sending.since = time.monotonic()
            event = error_event(error)
            await send({"type": "http.response.body", "body": event + DONE, "more_body": True})
        finally:
            await self._chunks.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Sending:
    """When the send in progress began (seconds, monotonic), None between sends. One writer: the streaming task.

    A timer per chunk would cost more than the chunk; this costs an assignment, and is looked at every few seconds.
    """

    def __init__(self, timeout: float | None) -> None:
        self.since: float | None = None
        self.timeout = timeout
        self.gone = False
        """The client has closed its connection. One writer: the watcher."""

    @property
    def stuck(self) -> bool:
        """True if the client has not read for too long."""
        return (
            self.timeout is not None
            and self.since is not None
            and time.monotonic() - self.since > self.timeout
        )


async def _race(receive: Receive, work: Coroutine[Any, Any, Result], sending: _Sending) -> Result:
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive, sending))
    interval = None if sending.timeout is None else min(_CHECK_INTERVAL, sending.timeout)
    try:
        while not task.done():
            await asyncio.wait((task, watcher), timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and (watcher.done() or sending.stuck):
                raise ClientDisconnected
        return task.result()
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        await asyncio.wait((watcher,))
        if not task.cancelled():
            task.exception()  # read, so that a failure while being cancelled is not reported as never retrieved


async def _disconnected(receive: Receive, sending: _Sending) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    sending.gone = True


def error_event(error: Exception) -> bytes:
    """An error as an event of a stream that has begun."""
    if isinstance(error, EngineError):
        data = error_object(error.message, error.type, error.param, error.code)
    else:
        log.exception("a stream failed", exc_info=error)
        data = error_object("Internal server error.", "internal_error", None, "internal_error")
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
