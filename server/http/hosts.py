"""Host names that the server accepts.

A web page may point its own host name at this machine (DNS rebinding) and then read answers as same-origin: the browser sends
that name in the Host header. For a server that listens on the loopback interface without API keys, the check of that header is
the only protection.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Scope

from server.http.errors import http_error_response
from server.settings.host_names import ANY, is_address, is_loopback, plain_host

_PORT = re.compile(r":[0-9]*\Z")
_CACHE_SIZE = 64
"""Number of values of the header whose answer is cached: most requests of a server name one of a few hosts."""
_MAX_TOLD = 100
"""Number of characters of a Host header that the answer repeats."""


class Hosts:
    """The hosts that a request may name: without `names` any host; else those names, names below `*.name`, and names and
    addresses of the loopback."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """`names` None: any host. A sequence, even an empty one, limits them."""
        self._any = names is None or ANY in names
        plain = [plain_host(name) for name in names or ()]
        self._exact = frozenset(plain)
        self._below = tuple(name.removeprefix("*") for name in plain if name.startswith("*."))
        self._is_listed = functools.lru_cache(_CACHE_SIZE)(self._look_up)

    def allow(self, host: str) -> bool:
        """True for the value of a Host header that may be answered, whatever its port."""
        return self._any or self._is_listed(host)

    def _look_up(self, host: str) -> bool:
        name = plain_host(_PORT.sub("", host) if not is_address(host) else host)
        return name in self._exact or name.endswith(self._below) or is_loopback(name)


class HostCheck:
    """Check that answers 403 to a request for another host. Requests without a Host header (HTTP/1.0) pass: health checkers
    send them, browsers do not."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def __call__(self, scope: Scope) -> Response | None:
        """The answer 403, or None."""
        for name, value in scope["headers"]:
            if name == b"host" and not self._hosts.allow(host := value.decode("latin-1")):
                return http_error_response(403, _refusal(host))
        return None


def _refusal(host: str) -> str:
    return (
        f"This server does not answer to the host {host[:_MAX_TOLD]!r}, which the Host header names. If that is a name of "
        "yours for it, start the server with --allowed-hosts NAME."
    )


def hosts_of(names: Sequence[str], host: str, address: str, *, keys: bool) -> Hosts:
    """The policy of a server that listens on `address`, which `--host` calls `host`. `names` are those of --allowed-hosts.

    Without names, any host is allowed if keys are required or if other machines can connect: the names under which such a
    server is reached are unknown, and containers and proxies use many.
    """
    if not names and (keys or not is_loopback(address)):
        return Hosts()
    return Hosts([*names, host])
