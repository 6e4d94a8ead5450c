"""Who may call which path. The check is made on `scope["path"]`, which is what routing uses, before anything reads the request.

Without keys every path is open. With keys every path needs one, except those of a short list below: a route added later is
protected unless it is added to that list. Paths of the administrator need their own key in any case; without one they do not
exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from starlette.responses import Response
from starlette.types import Scope

from server.http.call import call_of
from server.http.endpoints import without_slash
from server.http.errors import http_error_response
from server.http.foreign_paths import MAX_PATH_TOLD
from server.http.form import form_of
from server.http.keys import AnyOf, Keys

KEYLESS = frozenset({"/live", "/ready", "/health", "/version", "/", "/docs"})
METRICS = "/metrics"
ADMIN = frozenset(
    {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/settings", "/v1/requests", "/v1/kill_executor"}
)
"""Paths that require the admin key, and all paths below them, whatever other keys there are."""
_BELOW_ADMIN = tuple(f"{one}/" for one in ADMIN)
STEPS = "/v1/steps"
"""Shows the requests of all clients: where clients have keys, it requires the admin key."""

ANY_API = "x-api-key"
"""Header for a key on every path; an API may have one of its own (`Form.key_header`)."""
_CURE = "Give a valid API key: 'Authorization: Bearer KEY' or '{}: KEY'."


class KeyAuth:
    """Check that requires one of `api_keys` in a header that `_given_key` reads, one of `metrics_keys` for /metrics if
    there are any, and one of `admin_keys` for what changes or shows the server itself: without those, such paths are 404. A key
    of `admin_keys` opens what one of `api_keys` opens, too, under its own name and as a tenant of its own.

    Keys are stored as hashes and compared in constant time; hashing gives all of them the same length. A key that is not
    ASCII is sent as UTF-8.
    """

    def __init__(
        self,
        api_keys: Keys | Iterable[str] = (),
        metrics_key: str | None = None,
        admin_keys: Keys | None = None,
        open_paths: Collection[str] = (),
    ) -> None:
        """`open_paths` need no key either: files of the console, which are the same on every server."""
        self._open_paths = frozenset(open_paths)
        self._api_keys = api_keys if isinstance(api_keys, Keys) else Keys(api_keys)
        self._metrics_keys = Keys(() if metrics_key is None else (metrics_key,), label="metrics")
        self._admin_keys = admin_keys or Keys()
        self._client_keys = AnyOf(self._api_keys, self._admin_keys) if self._api_keys else self._api_keys
        """Those of clients' paths: empty, so that the paths are open, where clients need no key."""

    def __call__(self, scope: Scope) -> Response | None:
        """The answer 401 to a request without a right key; 404 for a path of the administrator on a server without an admin key;
        None for a request that may pass."""
        path = scope["path"]
        plain = without_slash(path)
        admin = _is_admin(plain) or (plain == STEPS and bool(self._api_keys))
        hidden = admin and not self._admin_keys
        if not self._may_pass(scope, self._client_keys if hidden else self._keys_of(path, admin)):
            cure = _CURE.format(form_of(scope).key_header or ANY_API)
            return http_error_response(401, cure, {"WWW-Authenticate": "Bearer"})
        if hidden:
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            return http_error_response(404, f"There is no {method} {path[:MAX_PATH_TOLD]} here.")
        return None

    def _keys_of(self, path: str, admin: bool) -> Keys | AnyOf | None:
        """The keys of a path, None if it needs none."""
        if path in KEYLESS or path in self._open_paths:
            return None
        return self._admin_keys if admin else self._metrics_keys if path == METRICS else self._client_keys

    def _may_pass(self, scope: Scope, keys: Keys | AnyOf | None) -> bool:
        if not keys:
            return True
        key_sent = _given_key(scope)
        key = None if key_sent is None else keys.find(key_sent)
        if key is None:
            return False
        call = call_of(scope)
        call.tenant, call.key_name, call.models = key.tenant, key.name, key.models
        return True


def is_admin(path: str) -> bool:
    """True for the paths of the administrator and those below them."""
    return _is_admin(without_slash(path))


def _is_admin(path: str) -> bool:
    return path in ADMIN or path.startswith(_BELOW_ADMIN)


def _given_key(scope: Scope) -> bytes | None:
    """The request's key; None without one, and for two in one header, of which a proxy in front may have looked at the other.
    Without `Authorization` the header of the path's API counts, and without that `x-api-key`, which Anthropic's clients send."""
    values = _values(scope, b"authorization")
    if values:
        scheme, _, key = values[0].partition(b" ")
        return key.strip() if len(values) == 1 and scheme.lower() == b"bearer" else None
    own = form_of(scope).key_header
    keys = (_values(scope, own.encode()) if own is not None else []) or _values(scope, ANY_API.encode())
    return keys[0].strip() if len(keys) == 1 else None


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]
