"""Paths of requests, and the endpoint of the API that each path means. Metrics label endpoints by their templates: clients
choose the paths, and their number is unlimited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from starlette.routing import BaseRoute, compile_path

Answered = Callable[[str | None, int], None]
"""Function that counts an answer, by the request's path (None: the path never became known) and the status."""

OTHER = "other"
"""Label of every path that is not an endpoint, and of requests that ended before their path was complete."""
_CONVERTOR = re.compile(r":\w+}")


class Endpoints:
    """The paths that an application answers, as templates (`/v1/models/{name}`)."""

    def __init__(self, paths: Iterable[str]) -> None:
        """`paths` as Starlette writes them, with convertors (`{name:path}`)."""
        self._exact: set[str] = set()
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        for path in paths:
            if "{" in path:
                self._patterns.append((compile_path(path)[0], _CONVERTOR.sub("}", path)))
            else:
                self._exact.add(path)

    @property
    def templates(self) -> list[str]:
        """All templates, sorted."""
        return sorted({*self._exact, *(template for _, template in self._patterns)})

    def template_of(self, path: str | None) -> str:
        """The endpoint's template, or OTHER. A trailing slash makes no difference."""
        if path is None:
            return OTHER
        path = without_slash(path)
        if path in self._exact:
            return path
        return next((template for pattern, template in self._patterns if pattern.match(path)), OTHER)


def paths_of(routes: Iterable[BaseRoute]) -> Iterator[str]:
    """The paths of all routes, including those of included routers."""
    for route in routes:
        included = getattr(route, "original_router", None)
        inner: Iterable[BaseRoute] | None = getattr(route, "routes", None) or getattr(
            included, "routes", None
        )
        yield from paths_of(inner or ())
        if path := getattr(route, "path", None):
            yield path


def path_of(target: bytes) -> str:
    """The path of a request target, undecoded, without its query, and without the server of an absolute target."""
    path = target.partition(b"?")[0].decode("latin-1")
    if not path.startswith("/") and "://" in path:
        return "/" + path.partition("://")[2].partition("/")[2]
    return path


def without_slash(path: str) -> str:
    """The path without trailing slashes; "/" stays."""
    return path.rstrip("/") or "/"
