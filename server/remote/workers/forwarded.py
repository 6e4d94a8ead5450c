"""Requests that a worker passes on: the server's own application answers them, and the worker sends the answer to its client.

They are those about state that belongs to this process: probes and metrics, adapters, stored and background responses.
"""

from __future__ import annotations

import asyncio

import structlog
from starlette.types import ASGIApp, Message, Scope

from server.http.call import CALL, Call
from server.remote import messages as m
from server.remote.link import Link

log = structlog.get_logger("server")


class ForwardedRequests:
    """The passed-on requests of one worker, a task each. One writer: the event loop."""

    def __init__(self, app: ASGIApp, link: Link) -> None:
        self._app = app
        self._link = link
        self._open: dict[int, _Exchange] = {}

    def begin(self, request: m.Forward) -> None:
        """Answer a request."""
        exchange = self._open[request.number] = _Exchange(request, self._link)
        task = exchange.task = asyncio.create_task(exchange.run(self._app), name=f"passed on: {request.path}")
        task.add_done_callback(lambda _: self._open.pop(request.number, None))

    def disconnected(self, number: int) -> None:
        """The client has disconnected."""
        if (exchange := self._open.get(number)) is not None:
            exchange.leave()

    def body_sent(self, number: int) -> None:
        """The client has what was sent."""
        if (exchange := self._open.get(number)) is not None:
            exchange.body_sent.set()

    def close(self) -> None:
        """The worker is gone, and its clients with it. What they asked for is finished as with any client that disconnects."""
        for exchange in list(self._open.values()):
            exchange.leave()


class _Exchange:
    """One request and its answer, as an ASGI server has them."""

    def __init__(self, request: m.Forward, link: Link) -> None:
        self.body_sent = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._request = request
        self._link = link
        self._call = Call(request.request_id)
        self._scope = {**_scope(request), CALL: self._call}
        self._disconnected = asyncio.Event()
        self._body_given = False
        self._ended = False

    def leave(self) -> None:
        """The client is gone."""
        self._disconnected.set()
        self.body_sent.set()

    async def run(self, app: ASGIApp) -> None:
        """Call the application."""
        try:
            await app(self._scope, self._receive, self._send)
        except Exception as error:
            log.exception("a request failed", exc_info=error, request_id=self._request.request_id)
        finally:
            if not self._ended:
                self._link.send(m.Body(self._request.number, b"", False, failed=True))

    async def _receive(self) -> Message:
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._disconnected.is_set():
            return
        number = self._request.number
        if message["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            names = list(self._call.ignored) or None
            self._link.send(m.Head(number, message["status"], headers, names, self._call.response_id))
            return
        body, more = bytes(message.get("body", b"")), message.get("more_body", False)
        if not more:
            refusal = self._call.refusal
            self._ended = True
            self._link.send(
                m.Body(number, body, False, refusal and (refusal.status, refusal.code, refusal.param))
            )
        elif body:
            self.body_sent.clear()
            self._link.send(m.Body(number, body, True))
            await self.body_sent.wait()


def _scope(request: m.Forward) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version,
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": request.client,
        "server": request.server,
        "state": {},
    }
