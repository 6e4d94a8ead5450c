"""What a call holds until its answer has been sent, such as its model, is released when the call ends, however it ends."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.call import call_of


class ReleaseHolds:
    """The innermost layer of a server of several models."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the call, then release what it holds."""
        try:
            await self._app(scope, receive, send)
        finally:
            call_of(scope).release_holds()
