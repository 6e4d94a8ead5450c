"""A stream whose model has to be loaded first: signs of life are sent before there is anything else to send.

A load may take longer than proxies keep a silent connection. Until the first sign of life nothing is sent, so an error by then is
a plain HTTP error with its own status; a later one is the stream's last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.apis.base.common import models_of
from server.apis.base.progress import HEADER, INTERVAL
from server.http.call import call_of
from server.http.errors import ClientDisconnected
from server.http.event_stream import KEEP_ALIVE, EventStream, OpenAIForm, StreamForm
from server.state.server_state import ModelRowLike

Answering = Callable[[], Coroutine[Any, Any, Response]]


class LoadForm(OpenAIForm):
    """OpenAI's form with comments `: progress {...}`, for clients that send `X-Cohort-Progress`."""

    def __init__(self, row: ModelRowLike) -> None:
        self._row = row

    def keep_alive(self) -> bytes:
        """How far the load is: `detail`, `done` and `total` as in /ready."""
        progress = self._row.state.progress
        facts: dict[str, Any] = {"state": "loading", "detail": "waiting for room in memory"}
        if progress is not None:
            facts |= {"detail": progress.label, "done": progress.done, "total": progress.total}
        return b": progress " + msgspec.json.encode(facts) + b"\n\n"


async def answer_once_loaded(
    request: Request,
    name: str | None,
    stream: bool,
    answer: Answering,
    form: StreamForm | None = None,
    media_type: str = "text/event-stream",
) -> Response:
    """What `answer` returns. If the call wants a `stream` of a model that has to be loaded first, a response that waits for it
    and sends signs of life meanwhile. `form`: the API's, of a stream that has not begun; None: OpenAI's. Raises ModelNotFound,
    and what `answer` raises."""
    models = models_of(request)
    if not stream or models is None:
        return await answer()
    row = await models.find_or_scan(name)
    if row.status == "loaded":
        return await answer()
    interval: float = KEEP_ALIVE
    chosen: StreamForm = form or OpenAIForm()
    if form is None and HEADER in request.headers:
        interval, chosen = INTERVAL, LoadForm(row)
    return _WaitingStream(answer, interval, chosen, media_type)


class _WaitingStream(Response):
    """See the module."""

    def __init__(self, answer: Answering, interval: float, form: StreamForm, media_type: str) -> None:
        super().__init__(media_type=media_type)
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"
        del self.headers["content-length"]
        self._answer = answer
        self._interval = interval
        self._form = form
        self._started = False
        """Whether status and headers were sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send signs of life until the answer begins, then the answer. Raises EngineError for a failure before the first."""
        task = asyncio.create_task(self._answer())
        try:
            while not (await asyncio.wait((task,), timeout=self._interval))[0]:
                await self._send(send, self._form.keep_alive())
            response = task.result()
        except ClientDisconnected:
            if not self._started:
                raise
            call_of(scope).disconnected = True
            return
        except Exception as error:
            if not self._started:
                raise
            call_of(scope).refusal, events = self._form.error(error)
            await self._send(send, events, more=False)
            return
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if not self._started:
            await response(scope, receive, send)
            return
        if isinstance(response, EventStream):
            response.begun()
        await response(scope, receive, _without_start(send))

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})


def _without_start(send: Send) -> Send:
    """Sends bodies alone: status and headers are sent."""

    async def sending(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return sending
