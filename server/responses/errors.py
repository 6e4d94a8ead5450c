"""Refusals of the store of responses."""

from __future__ import annotations

from engine.errors import InvalidRequest


class ResponseNotFound(InvalidRequest):
    """There is no such response, any more, or for this API key."""

    status = 404
    code = "response_not_found"


class StoreFull(InvalidRequest):
    """Only background responses in progress are left, and they fill the store."""

    status = 429
    type = "rate_limit_error"
    code = "responses_store_full"
