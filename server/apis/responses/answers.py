"""Answers of the Responses API that are no response, item or event; those are in `server.schemas.answers.response_items`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from msgspec import Raw

from server.schemas.answers.common import Components, Count


class InputTokenCount(TypedDict):
    """The answer of `/v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: Count


class DeletedResponse(TypedDict):
    """A stored response is deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(TypedDict):
    """Input of a stored response."""

    object: Literal["list"]
    data: list[dict[str, Any] | Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


COMPONENTS: Components = {
    "InputTokenCount": (InputTokenCount, ""),
    "DeletedResponse": (DeletedResponse, ""),
    "InputItemList": (InputItemList, ""),
}
