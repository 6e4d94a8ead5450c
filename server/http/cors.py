"""Cross-origin requests: which web pages of other origins may call this server from a browser. By default none may.

Starlette's middleware answers in plain text, names the origins it refuses, and misses the answers made above it. This policy is
called by the outermost middleware instead, and follows the Fetch standard (https://fetch.spec.whatwg.org).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from server.http.form import form_of

Pair = tuple[bytes, bytes]

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_EXPOSED = b"x-request-id, request-id, x-cohort-ignored, server-timing, retry-after, x-should-retry"
_MAX_AGE = "600"
"""Time for which a browser may cache the answer to a preflight, in seconds."""
_ANY = "*"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_MAX_HEADER_NAMES = 1024
_OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for the server's own pages, and for what the user of the browser starts."""
_DEFAULT_PORT = re.compile(r":(80|443)\Z")


class Cors:
    """Answers preflights and adds headers to responses. Without `origins` it does neither."""

    def __init__(
        self,
        origins: Sequence[str] = (),
        methods: Sequence[str] = (_ANY,),
        headers: Sequence[str] = (_ANY,),
        credentials: bool = False,
    ) -> None:
        if credentials and _ANY in origins:
            raise ValueError("credentials for every origin")
        self._origins = frozenset(origin.lower() for origin in origins)
        self._methods = METHODS if _ANY in methods else tuple(method.upper() for method in methods)
        self._headers = None if _ANY in headers else ", ".join(headers)
        self._credentials = credentials

    def headers(self, scope: Scope) -> list[Pair]:
        """Headers that every response to this request carries."""
        if not self._origins:
            return []
        everybody = _ANY in self._origins
        vary = (
            [] if everybody else [(b"vary", b"Origin")]
        )  # a cache must not show one page's answer to another
        origin = self._origin(scope)
        if origin is None:
            return vary
        allowed = b"*" if everybody else origin.encode("latin-1")
        own = form_of(scope).id_header
        further = own is not None and own.encode() not in _EXPOSED.split(b", ")
        exposed = _EXPOSED + f", {own}".encode() if further else _EXPOSED
        headers = [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", exposed)]
        if self._credentials:
            headers.append((b"access-control-allow-credentials", b"true"))
        return headers + vary

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a preflight of an allowed origin; None for any other request. A preflight of another origin is answered
        like an ordinary request. The browser itself refuses a method or header that is not listed."""
        if scope["method"] != "OPTIONS" or not self._origins or self._origin(scope) is None:
            return None
        request_headers = Headers(scope=scope)
        if "access-control-request-method" not in request_headers:
            return None
        headers = {
            "Access-Control-Allow-Methods": ", ".join(self._methods),
            "Access-Control-Max-Age": _MAX_AGE,
        }
        names = self._headers
        if names is None:
            # "*" does not mean Authorization, so what was asked for is named.
            header_names = request_headers.get("access-control-request-headers", "")
            fits = len(header_names) <= _MAX_HEADER_NAMES and _HEADER_NAMES.fullmatch(header_names)
            names = header_names if fits else ""
            headers["Vary"] = "Access-Control-Request-Headers"
        if names:
            headers["Access-Control-Allow-Headers"] = names
        return Response(status_code=204, headers=headers)

    def is_foreign_page(self, scope: Scope) -> bool:
        """True for a request by a web page of another origin than the server's, unless that origin is allowed. A request without
        `Origin` and `Sec-Fetch-Site` is no page's: browsers send one of them with everything that may have a body."""
        headers = Headers(scope=scope)
        if self._origin(scope) is not None:
            return False
        if any(site not in _OWN_SITES for site in headers.getlist("sec-fetch-site")):
            return True
        own = _DEFAULT_PORT.sub("", headers.get("host", "").lower())
        return any(not own or _authority(origin) != own for origin in headers.getlist("origin"))

    def _origin(self, scope: Scope) -> str | None:
        """The request's origin if it is allowed, else None."""
        origins = Headers(scope=scope).getlist("origin")
        if len(origins) != 1:
            return None
        return origins[0] if _ANY in self._origins or origins[0].lower() in self._origins else None


def _authority(origin: str) -> str | None:
    """Host and port of an origin, without a default port; None for an opaque one, which is `null`. Schemes are not compared: a
    proxy may end TLS, and then the server does not know its own."""
    _, slashes, rest = origin.lower().partition("://")
    return _DEFAULT_PORT.sub("", rest) if slashes else None
