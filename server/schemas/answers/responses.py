"""Answers of the Responses API that are no response, item or event; `server.openapi.responses` describes those."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Raw

from server.schemas.answers.common import Components, Count, ReasoningTokens


class InputDetails(TypedDict):
    """Details of the prompt's tokens."""

    cached_tokens: Count
    cache_write_tokens: Count


class ResponsesUsage(TypedDict):
    """Token counts."""

    input_tokens: Annotated[Count, Meta(description="Tokens of the prompt, with those read from the cache.")]
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: ReasoningTokens
    total_tokens: Count


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
    "ResponsesUsage": (ResponsesUsage, ""),
    "DeletedResponse": (DeletedResponse, ""),
    "InputItemList": (InputItemList, ""),
}
