"""The body of an error in OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from server.schemas.answers.common import Components

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "service_unavailable",
    "server_error",
    "executor_error",
    "internal_error",
]


class ErrorFacts(TypedDict):
    """What is wrong, and the field at fault."""

    message: Annotated[str, Meta(min_length=1)]
    type: ErrorType
    param: str | None
    code: str


class ErrorBody(TypedDict):
    """An error."""

    error: ErrorFacts


COMPONENTS: Components = {
    "Error": (
        ErrorBody,
        "Body of every answer that is not a success, and the event that ends a failed stream.",
    ),
}
