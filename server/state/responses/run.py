"""The generation of a background response, which goes on without its client.

task     reads the engine's call, encodes its events and appends them to the log
readers  send the log from any event on, and wait for more: event number N of the log has the sequence number N
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal, Protocol

from server.schemas.answers.response_items import Response, ResponseFailure
from server.state.responses.errors import StoreFull

_BOUNDARY = b"\n\n"
_COUNT_EVERY = 65536
"""Bytes of events after which the store counts a response again."""


class RunEncoder(Protocol):
    """The part of `server.apis.responses.encode.ResponseStream` that a run uses."""

    def created(self) -> bytes:
        """The first events."""

    def snapshot(self) -> Response:
        """The response so far."""

    def stopped(self, status: Literal["failed", "cancelled"], error: ResponseFailure | None) -> bytes:
        """The last events of a response that does not end by itself."""


class BackgroundRun:
    """One generation. `failure` makes the response's error of an exception; `grown` is awaited when the log has grown and when
    the response has ended, and what it raises fails the response. One writer: its task."""

    def __init__(
        self,
        encoder: RunEncoder,
        chunks: AsyncGenerator[bytes, None],
        failure: Callable[[Exception], ResponseFailure],
    ) -> None:
        self.size = 0
        """Bytes of the log."""
        self.done = False
        """Whether the last event is in the log."""
        self._encoder = encoder
        self._chunks = chunks
        self._failure = failure
        self._log: list[bytes] = []
        self._news = asyncio.Event()
        self._started = asyncio.Event()
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None
        self._append(encoder.created())

    async def start(self, grown: Callable[[], Awaitable[None]]) -> None:
        """Begin. Must be called once. Returns when the task runs: one that is cancelled before would clean up nothing."""
        self._task = asyncio.create_task(self._run(grown), name="background response")
        await self._started.wait()

    def snapshot(self) -> Response:
        """The response so far."""
        return self._encoder.snapshot()

    async def cancel(self) -> None:
        """End the generation now; the response is then cancelled, unless it has ended. Returns when that is done."""
        if self._task is not None and not self._task.done():
            if not self._cancelled:  # a second time would interrupt what frees the sequence
                self._cancelled = True
                self._task.cancel()
            await asyncio.wait((self._task,))

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The events with higher sequence numbers than `after`, until the last one."""
        at = after + 1
        while True:
            news = self._news
            if at < len(self._log):
                chunk = b"".join(self._log[at:])
                at = len(self._log)
                yield chunk
            elif self.done:
                return
            else:
                await news.wait()

    async def _run(self, grown: Callable[[], Awaitable[None]]) -> None:
        self._started.set()
        try:
            await self._generate(grown)
        except asyncio.CancelledError:
            self._append(self._encoder.stopped("cancelled", None))
        except Exception as error:
            self._append(self._encoder.stopped("failed", self._failure(error)))
        finally:
            try:
                await self._chunks.aclose()
            finally:
                self.done = True
                self._tell()
        with contextlib.suppress(StoreFull):  # it is forgotten then
            await grown()

    async def _generate(self, grown: Callable[[], Awaitable[None]]) -> None:
        counted = self.size
        async for chunk in self._chunks:
            self._append(chunk)
            if self.size - counted > _COUNT_EVERY:
                counted = self.size
                await grown()

    def _append(self, chunk: bytes) -> None:
        self._log += [event + _BOUNDARY for event in chunk.split(_BOUNDARY) if event]
        self.size += len(chunk)
        self._tell()

    def _tell(self) -> None:
        """Wake the readers: each waits for the event that was current when it looked."""
        self._news.set()
        self._news = asyncio.Event()
