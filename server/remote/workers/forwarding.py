"""Passes requests on to the server's process, and its answers back to the clients."""

from __future__ import annotations

import asyncio
import itertools

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.http.call import Refusal, call_of
from server.http.disconnect import disconnected
from server.remote import messages as m
from server.remote.link import Link


class PassedOnFailed(Exception):
    """The server's process has no answer; its log says why."""


class Forwarding:
    """The requests that a worker has passed on. One writer: the event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Queue[m.Head | m.Body]] = {}

    def response(self, request: Request, body: bytes) -> Response:
        """The answer that the server's process gives to this request, whose story begins and ends there."""
        call_of(request.scope).story = None
        return _PassedOn(self, body)

    def received(self, piece: m.Head | m.Body) -> None:
        """A piece of an answer came. One for a client that is gone is dropped."""
        if (pieces := self._open.get(piece.number)) is not None:
            pieces.put_nowait(piece)

    def close(self) -> None:
        """The other process is gone: what it has not answered has no answer."""
        for number, pieces in self._open.items():
            pieces.put_nowait(m.Body(number, b"", False, failed=True))

    async def exchange(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Pass a request on and send what comes back, until the end or until the client disconnects."""
        number = next(self._numbers)
        pieces = self._open[number] = asyncio.Queue()
        self._link.send(_forward(number, scope, body))
        passing = asyncio.create_task(self._pass(number, pieces, scope, send))
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
            else:
                call_of(scope).disconnected = True
        finally:
            del self._open[number]
            if not passing.done() or passing.cancelled():
                self._link.send(m.Disconnected(number))
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _pass(
        self, number: int, pieces: asyncio.Queue[m.Head | m.Body], scope: Scope, send: Send
    ) -> None:
        call = call_of(scope)
        while True:
            piece = await pieces.get()
            if isinstance(piece, m.Head):
                if piece.ignored is not None:
                    call.ignored = piece.ignored
                if piece.response_id is not None:
                    call.response_id = piece.response_id
                headers = list(piece.headers)
                await send({"type": "http.response.start", "status": piece.status, "headers": headers})
                continue
            if piece.failed:
                raise PassedOnFailed("the server's process has no answer")
            if piece.refusal is not None:
                call.refusal = Refusal(*piece.refusal)
            await send({"type": "http.response.body", "body": piece.data, "more_body": piece.more})
            if not piece.more:
                return
            self._link.send(m.BodySent(number))


class _PassedOn(Response):
    """An answer from the server's process."""

    def __init__(self, forwarding: Forwarding, body: bytes) -> None:
        super().__init__()
        self._forwarding = forwarding
        self._asked_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self._forwarding.exchange(scope, self._asked_body, receive, send)


def _forward(number: int, scope: Scope, body: bytes) -> m.Forward:
    return m.Forward(
        number,
        scope["method"],
        scope["path"],
        scope.get("raw_path") or b"",
        scope.get("query_string", b""),
        [(bytes(name), bytes(value)) for name, value in scope["headers"]],
        scope.get("scheme", "http"),
        scope.get("http_version", "1.1"),
        call_of(scope).request_id,
        scope.get("client"),
        scope.get("server"),
        body,
    )
