"""Media types of request bodies: uncompressed JSON with a matching Content-Type.

A browser sends bodies of other types to any server without a preflight. Only for `application/json` does it send one, which
`--allowed-origins` answers; so a body of another type may come from a page that is not allowed to call.

On the paths of an API whose clients rely on that (`Form.any_media`) a body of any type is read as JSON unless a web page of
another origin sent it. Current browsers send `Origin` with every POST of such a
page, be it a form's, `fetch`'s or `sendBeacon`'s, and most send `Sec-Fetch-Site`, too; a script can neither leave them out nor
choose them. The rule is that of Go's `http.CrossOriginProtection` (https://pkg.go.dev/net/http#CrossOriginProtection).
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from server.http.cors import Cors
from server.http.form import form_of

_JSON = re.compile(r"application/(?:[a-z0-9!#$&^_.+-]+\+)?json")
_OF_MEDIA = (b"content-type", b"content-encoding")
_USUAL = (b"content-type", b"application/json")
"""The headers of media that nearly every request has, and no others."""
_MAX_TOLD = 100
"""Number of characters of a header that the answer repeats."""


def check_media(scope: Scope, cors: Cors) -> None:
    """Check the headers of a body. Raises HTTPException (415) if its Content-Type is not JSON, or if it is compressed. On
    the paths of a form with `any_media` the Content-Type matters only for web pages of origins that `cors` does not allow.

    A request without a body needs no Content-Type; it is refused later, for the missing body.
    """
    media = [one for one in scope["headers"] if one[0] in _OF_MEDIA]
    if media == [_USUAL]:
        return
    headers = Headers(scope=scope)
    for coding in _listed(headers, "content-encoding"):
        if coding.lower() != "identity":
            message = f"The body's Content-Encoding {coding[:_MAX_TOLD]!r} is not supported; send the body as it is."
            # RFC 9110, 12.5.3: tells the client which codings would do.
            raise HTTPException(415, message, {"accept-encoding": "identity"})
    kinds = headers.getlist("content-type")
    if not kinds and not _has_body(headers):
        return
    if len(kinds) == 1 and is_json(kinds[0]):
        return
    any_media = form_of(scope).any_media
    if any_media and not cors.is_foreign_page(scope):
        return
    state = f"is {', '.join(kinds)[:_MAX_TOLD]!r}" if kinds else "is missing"
    reads = (
        "from web pages of other origins this server reads JSON" if any_media else "this server reads JSON"
    )
    message = (
        f"The Content-Type of the body {state}, and {reads}: send 'Content-Type: application/json'. "
        "With curl -d, add -H 'Content-Type: application/json'."
    )
    raise HTTPException(415, message, {"accept": "application/json"})


def is_json(content_type: str) -> bool:
    """True for `application/json` and `application/NAME+json`, with any parameters."""
    return _JSON.fullmatch(content_type.partition(";")[0].strip().lower()) is not None


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _listed(headers: Headers, name: str) -> list[str]:
    parts = ",".join(headers.getlist(name)).split(",")
    return [part.strip() for part in parts if part.strip()]
