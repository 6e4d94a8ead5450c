"""API keys. Pure ASGI: the check is made on `scope["path"]`, which is what routing uses, before anything reads the request.

Without keys every path is open. With keys every path needs one, except those of a short list below: a route added later is
protected unless it is added to that list.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.endpoints import without_slash
from server.http.errors import http_error_response

KEYLESS = frozenset({"/live", "/ready", "/health", "/version", "/", "/docs"})
METRICS = "/metrics"
ADMIN = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/kill_executor"})
"""Paths that require the admin key, whatever other keys there are; see `is_admin`."""
STORIES = "/v1/requests"
"""Path of the stories of calls, which are the admin's too, each under a path of its own."""
STEPS = "/v1/steps"
"""Shows the requests of all clients: where clients have keys, it requires the admin key."""

TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""Identity of the client whose request is being answered: a prefix of the key's hash, "" where no key is required."""
KEY_NAME: ContextVar[str] = ContextVar("key_name", default="")
"""Name of that client's key, for people: logs, stories, metrics. "" where no key is required."""
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
        open_paths: Collection[str] = (),
    ) -> None:
        """`open_paths` need no key either: files of the console, which are the same on every server."""
        self._app = app
        self._open_paths = frozenset(open_paths)
        self._admin_keys = _named({"admin": admin_key})
        self._api_keys = _named({f"key-{number}": key for number, key in enumerate(api_keys, 1)})
        self._metrics_keys = _named({"metrics": metrics_key})

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
        KEY_NAME.set("")
        path = scope["path"]
        if path in KEYLESS or path in self._open_paths:
            return True
        admin = is_admin(path) or (without_slash(path) == STEPS and bool(self._api_keys))
        keys = self._admin_keys if admin else self._metrics_keys if path == METRICS else self._api_keys
        if not keys:
            return not admin
        key = _given_key(scope)
        if key is None:
            return False
        hashed = _hash(key)
        # Every key is compared, so that the time does not tell which one came close.
        matches = [name for name, known in keys if hmac.compare_digest(hashed, known)]
        if not matches:
            return False
        TENANT.set(hashed.hex()[:16])
        KEY_NAME.set(matches[0])
        return True


def is_admin(path: str) -> bool:
    """Whether a path requires the admin key."""
    path = without_slash(path)
    return path in ADMIN or path == STORIES or path.startswith(f"{STORIES}/")


def _given_key(scope: Scope) -> bytes | None:
    """The request's key; None without one, and for two in one header, of which a proxy in front may have looked at the other.
    Anthropic's clients send `x-api-key`, which counts if there is no `Authorization`."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if not found:
        keys = [value.strip() for name, value in scope["headers"] if name == b"x-api-key"]
        return keys[0] if len(keys) == 1 else None
    scheme, _, key = found[0].partition(b" ")
    return key.strip() if len(found) == 1 and scheme.lower() == b"bearer" else None


def _named(keys: Mapping[str, str | None]) -> tuple[tuple[str, bytes], ...]:
    """Name and hash of each key that is given."""
    return tuple((name, _hash(key.encode("utf-8", "surrogateescape"))) for name, key in keys.items() if key)


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
