"""Anthropic's form of errors, for its paths.

{"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}
"""

from __future__ import annotations

from collections.abc import Mapping

from server.apis.anthropic.answers import ErrorType, MessagesError
from server.http.form import Failure, Form

PREFIX = "/v1/messages"
"""Path below which answers have Anthropic's form."""
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Types by status; the other statuses of clients' mistakes are `invalid_request_error`, and those of the server `api_error`."""


def speaks(path: str) -> bool:
    """True if answers of this path, which need not exist, have Anthropic's form."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def error_object(failure: Failure) -> MessagesError:
    """The whole body as plain data."""
    kind = _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": failure.named},
        "request_id": failure.request_id,
    }


FORM = Form(speaks, error_object, id_header="request-id")
"""Anthropic's SDKs look for the request's id in `request-id`."""
