"""Redirects to the console's pages from where people look for them, for whom no key is needed: they say nothing of the server."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_PAGES: Mapping[str, str] = {
    "/console": "./",
    "/console/": "../",
    "/console/index.html": "../",
    "/console/docs.html": "../docs",
    # Below a slash the page's links would lead nowhere.
    "/docs/": "../docs",
}
"""Paths, and where they lead: relative to the request's address, for what a proxy calls this server is not known."""


class PageRedirects:
    """Middleware that answers these paths with a redirect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Redirect, or pass the request on."""
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            target = _PAGES.get(scope["path"])
            if target is not None:
                headers = {"Location": target, "Cache-Control": "no-cache"}
                await Response(status_code=307, headers=headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)
