"""Links of the console's pages behind a proxy that serves the server below a path of its own.

A proxy takes its path off before it passes a request on, so that https://host/llm/docs arrives as /docs. Links are therefore
relative (`./docs`), which is right wherever the address of the console ends with a slash. Where it does not (https://host/llm),
the proxy has to say what it took off, in X-Forwarded-Prefix, as Traefik's StripPrefix and ingress-nginx do.
"""

from __future__ import annotations

import re

HEADER = "X-Forwarded-Prefix"
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
"""One or more segments. A browser would take two slashes at the beginning for the name of another host."""
_MAX_LENGTH = 200
_LINK = b'="./'


def prefix_of(header: str) -> str:
    """The path in the header, without a slash at the end: several proxies name theirs one after the other, separated by commas.
    "" if it is empty or no plain path: the client may have sent it."""
    parts = [part.strip().rstrip("/") for part in header.split(",")]
    prefix = "".join(parts)
    plain = len(prefix) <= _MAX_LENGTH and all(not part or _PREFIX.fullmatch(part) for part in parts)
    return prefix if plain and not {".", ".."}.intersection(prefix.split("/")) else ""


def with_prefix(page: bytes, prefix: str) -> bytes:
    """The page with its relative links below `prefix`."""
    return page.replace(_LINK, b'="' + prefix.encode("ascii") + b"/")
