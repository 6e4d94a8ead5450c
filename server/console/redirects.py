"""Redirects to the console's pages from where people look for them, for whom no key is needed: they say nothing of the server."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Scope

_PAGES: Mapping[str, str] = {
    "/console": "./",
    "/console/": "../",
    "/console/index.html": "../",
    "/console/docs.html": "../docs",
    # Below a slash the page's links would lead nowhere.
    "/docs/": "../docs",
}
"""Paths, and where they lead: relative to the request's address, for what a proxy calls this server is not known."""


def redirect_page(scope: Scope) -> Response | None:
    """The redirect of a request for one of these paths, else None."""
    target = _PAGES.get(scope["path"])
    if target is None or scope["method"] not in ("GET", "HEAD"):
        return None
    return Response(status_code=307, headers={"Location": target, "Cache-Control": "no-cache"})
