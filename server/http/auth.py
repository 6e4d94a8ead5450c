"""API keys. Pure ASGI: the check is made on `scope["path"]`, which is what routing uses, before anything reads the request.

Without keys every path is open. With keys every path needs one, except those of a short list below: a route added later is
protected unless it is added to that list.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.endpoints import without_slash
from server.http.errors import http_error_response

KEYLESS = frozenset({"/live", "/ready", "/health", "/version"})
METRICS = "/metrics"
ADMIN = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Paths that require the admin key, whatever other keys there are."""

TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""Identity of the client whose request is being answered: a prefix of the key's hash, "" where no key is required."""
_WANTED = "Give a valid API key: 'Authorization: Bearer KEY' or 'x-api-key: KEY'."


class KeyAuth:
    """Middleware that requires one of `api_keys` in `Authorization: Bearer` or `x-api-key`, `metrics_key` for /metrics if one is
    set, and `admin_key` for what changes the server: without one nobody may.

    Keys are stored as hashes and compared in constant time; hashing gives all of them the same length. A key that is not
    ASCII is sent as UTF-8.
    """

    def __init__(
        self,
        app: ASGIApp,
        api_keys: Iterable[str] = (),
        metrics_key: str | None = None,
        admin_key: str | None = None,
    ) -> None:
        self._app = app
        self._admin_keys = (_hash(admin_key.encode("utf-8", "surrogateescape")),) if admin_key else ()
        self._api_keys = tuple(_hash(key.encode("utf-8", "surrogateescape")) for key in api_keys)
        self._metrics_keys = (_hash(metrics_key.encode("utf-8", "surrogateescape")),) if metrics_key else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and not self._may_pass(scope):
            response = http_error_response(401, _WANTED, {"WWW-Authenticate": "Bearer"})
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # no route speaks it
        else:
            await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        TENANT.set("")
        path = scope["path"]
        if path in KEYLESS:
            return True
        admin = without_slash(path) in ADMIN
        keys = self._admin_keys if admin else self._metrics_keys if path == METRICS else self._api_keys
        if not keys:
            return not admin
        key = _given_key(scope)
        if key is None:
            return False
        hashed = _hash(key)
        # Every key is compared, so that the time does not tell which one came close.
        matches = [hmac.compare_digest(hashed, known) for known in keys]
        if not any(matches):
            return False
        TENANT.set(hashed.hex()[:16])
        return True


def _given_key(scope: Scope) -> bytes | None:
    """The request's key; None without one, and for two in one header, of which a proxy in front may have looked at the other.
    Anthropic's clients send `x-api-key`, which counts if there is no `Authorization`."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if not found:
        keys = [value.strip() for name, value in scope["headers"] if name == b"x-api-key"]
        return keys[0] if len(keys) == 1 else None
    scheme, _, key = found[0].partition(b" ")
    return key.strip() if len(found) == 1 and scheme.lower() == b"bearer" else None


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
