"""The names that the server answers to.

A web page may point a name of its own at this machine (DNS rebinding) and then reads answers as if they were its own: the
browser sends that name in the Host header. Where a server listens for this machine alone and asks for no key, nothing else
stands in the way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.errors import http_error_response
from server.settings.host_names import ANY, is_address, is_loopback, plain_host

_PORT = re.compile(r":[0-9]*\Z")
_MAX_TOLD = 100
"""Characters of a Host header that are repeated in the answer."""


class Hosts:
    """The hosts that a request may name. Without `names` any; else those names, names below `*.name`, and names and addresses
    of the loopback."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """`names` None: any host. A sequence, even an empty one, limits them."""
        self._any = names is None or ANY in names
        plain = [plain_host(name) for name in names or ()]
        self._exact = frozenset(plain)
        self._below = tuple(name.removeprefix("*") for name in plain if name.startswith("*."))

    def allow(self, host: str) -> bool:
        """True for the value of a Host header that may be answered, whatever its port."""
        if self._any:
            return True
        name = plain_host(_PORT.sub("", host) if not is_address(host) else host)
        return name in self._exact or name.endswith(self._below) or is_loopback(name)


class HostCheck:
    """Middleware that answers 403 to a request for another host. HTTP/1.0 knows requests without a Host header; no browser
    sends them, and health checkers do, so they pass."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 403."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and not self._hosts.allow(host := value.decode("latin-1")):
                    await http_error_response(403, _refusal(host))(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _refusal(host: str) -> str:
    return (
        f"This server does not answer to the host {host[:_MAX_TOLD]!r}, which the Host header names. If that is a name of "
        "yours for it, start the server with --allowed-hosts NAME."
    )


def hosts_of(names: Sequence[str], host: str, address: str, *, keys: bool) -> Hosts:
    """The policy of a server that listens on `address`, which `--host` calls `host`. `names` are those of --allowed-hosts.

    Without names, any host may be asked for where a key is, or where others than this machine can connect: there the
    operator's names are not known, and containers and proxies have many.
    """
    if not names and (keys or not is_loopback(address)):
        return Hosts()
    return Hosts([*names, host])
