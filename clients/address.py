"""Addresses of servers as people give them on the command line."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from server.commands.common import CONTROL


class BadAddress(ValueError):
    """No address. The message needs a name before it where the address has one: `--url`."""


def parse_address(url: str) -> tuple[bool, str, int | None, str]:
    """Whether it is https, host, port and the path before /v1. Raises BadAddress."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as it is looked up
    except ValueError:  # of which UnicodeError is one
        host = ""
    if not host or parts.scheme not in ("http", "https") or CONTROL.search(host) or re.search(r"\s", host):
        raise BadAddress(f"{url}: it should be an address such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        # Not shown again: it has a password in it.
        raise BadAddress("a name and password in the address are not sent; give a key with --api-key")
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~", errors="surrogateescape")
    # People give the base of the API as well as the server's address.
    return parts.scheme == "https", host, port, path.rstrip("/").removesuffix("/v1")
