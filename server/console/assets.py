"""Files of the console, as they lie in `static/`, and the headers that they are sent with."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).resolve().parent / "static"
INDEX, REFERENCE = "index.html", "docs.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No script may turn text into markup: the pages build elements one by one.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    # A browser asks each time, and gets a 304: after an upgrade no page mixes files of two versions.
    "Cache-Control": "no-cache",
}
"""Headers of every page and file of the console."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    media_type: str
    etag: str


@functools.cache
def assets() -> Mapping[str, Asset]:
    """The files by their paths below `static/`, read once. Only these are served: no path of a request reaches the disk."""
    assets_by_path = {}
    for path in sorted(STATIC.rglob("*")):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            assets_by_path[path.relative_to(STATIC).as_posix()] = Asset(
                body, _TYPES[path.suffix], etag_of(body)
            )
    return assets_by_path


def etag_of(body: bytes) -> str:
    """The entity tag of a file with this content."""
    return f'"{hashlib.sha256(body).hexdigest()[:16]}"'
