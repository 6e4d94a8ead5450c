"""Routes that are found in a table, and an application whose calls pass the server's own layers and no others.

Starlette tries one pattern after another until a route matches, in layers of its own and of FastAPI around that: for failures,
form data, limits on bodies, and what is to be closed behind a handler. The server's layers answer failures and limit bodies
themselves, and handlers that take the request alone have nothing to close. Of a call whose answer takes a millisecond all that
would be a tenth.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from server.http.plain_routes import is_simple

Handler = Callable[[Request], Awaitable[Response]]
Handlers = Mapping[Any, ExceptionHandler]
"""What answers exceptions, by their class."""


class Application(FastAPI):
    """FastAPI's application. Its routes and `user_middleware` are what they are there; the layers that FastAPI puts around them
    are not used, but for those around routes that `DirectRoutes` does not find."""

    def build_middleware_stack(self) -> ASGIApp:
        """Called by Starlette at the first request, when all routes and layers are known."""
        handlers = dict(self.exception_handlers)
        routed = ExceptionMiddleware(AsyncExitStackMiddleware(self.router), handlers)
        app: ASGIApp = DirectRoutes(routed, direct_handlers(self.router.routes), handlers)
        for layer in reversed(self.user_middleware):
            app = layer.cls(app, *layer.args, **layer.kwargs)
        return app


class DirectRequest(Request):
    """A request whose body is read without the generators of `stream`."""

    async def body(self) -> bytes:
        """See Starlette's Request. Raises ClientDisconnect."""
        if not hasattr(self, "_body"):
            pieces: list[bytes] = []
            while not self._stream_consumed:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    self._is_disconnected = True
                    raise ClientDisconnect
                pieces.append(message.get("body", b""))
                self._stream_consumed = not message.get("more_body", False)
            self._body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._body


class DirectRoutes:
    """The innermost layer: calls a handler of its table, and answers what that raises; passes other requests on."""

    def __init__(self, app: ASGIApp, table: Mapping[tuple[str, str], Handler], handlers: Handlers) -> None:
        """`table`: handlers by method and path."""
        self._app = app
        self._table = table
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request. Raises what no handler of exceptions answers."""
        handler = self._table.get((scope["method"], scope["path"])) if _is_plain(scope) else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = DirectRequest(scope, receive, send)
        response_started = False

        async def send_noting(message: Message) -> None:
            nonlocal response_started
            response_started = True
            await send(message)

        try:
            await (await handler(request))(scope, receive, send_noting)
        except Exception as error:
            answering = next(
                (self._handlers[kind] for kind in type(error).__mro__ if kind in self._handlers), None
            )
            if answering is None:
                raise
            if response_started:
                raise RuntimeError(
                    "an exception that would be answered came after the answer's head"
                ) from error
            response: Response = await answering(request, error)  # type: ignore[misc, arg-type]
            await response(scope, receive, send)
            error.__traceback__ = None  # an error that is raised again and again would collect them


def direct_handlers(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path: of routes that `simplify` lets call their handlers directly, whose path has no parameters,
    and that no route before them would take."""
    table: dict[tuple[str, str], Handler] = {}
    earlier: list[BaseRoute] = []
    for route in routes:
        if isinstance(route, APIRoute) and _is_direct(route):
            for method in route.methods or ():
                scope = {"type": "http", "method": method, "path": route.path, "root_path": ""}
                if not any(one.matches(scope)[0] is Match.FULL for one in earlier):
                    table[method, route.path] = route.endpoint
        earlier.append(route)
    return table


def _is_direct(route: APIRoute) -> bool:
    return is_simple(route) and inspect.iscoroutinefunction(route.endpoint) and "{" not in route.path


def _is_plain(scope: Scope) -> bool:
    """Whether the path is the whole path of a route. It is not below another application's, which FastAPI itself takes off."""
    return scope["type"] == "http" and not scope.get("root_path")
