"""What is checked of each request before anything reads its body, in one layer: a layer for each check would cost more than most
of the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.auth import KEYLESS, METRICS
from server.http.endpoints import without_slash

Check = Callable[[Scope], Response | None]
"""Returns the answer to a request that goes no further, else None."""


class Checks:
    """Middleware that answers what the first of its checks answers, and closes web sockets, which no route speaks."""

    def __init__(self, app: ASGIApp, checks: Sequence[Check]) -> None:
        self._app = app
        self._checks = tuple(checks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on."""
        if scope["type"] == "http":
            for check in self._checks:
                if (answer := check(scope)) is not None:
                    await answer(scope, receive, send)
                    return
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)


def take_off_slash(scope: Scope) -> None:
    """Treat `/v1/models/` as `/v1/models`, for every method. It runs after the check of keys, so it leaves alone paths that have
    a key rule of their own: with the slash they are different paths to that check. The log keeps the path as it was sent, which
    is `raw_path`."""
    if scope["path"].endswith("/"):
        path = without_slash(scope["path"])
        if path not in KEYLESS and path != METRICS:
            scope["path"] = path
