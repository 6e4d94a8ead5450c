"""Refusals of the store of responses."""

from __future__ import annotations

from engine.errors import InvalidRequest, Overloaded


class ResponseNotFound(InvalidRequest):
    """No response of this id is stored for this API key: it is unknown, deleted or expired."""

    status = 404
    code = "response_not_found"


class StoreFull(Overloaded):
    """Only background responses in progress are left, and they fill the store."""

    code = "responses_store_full"
