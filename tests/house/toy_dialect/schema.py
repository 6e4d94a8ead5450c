"""The body of POST /v2/chat."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES
from server.schemas.sampling import RequestFields


class ToyMessage(WireModel):
    """One message."""

    role: Literal["system", "user", "assistant"]
    """Cohere: Who says it."""
    content: Annotated[str, Field(max_length=1_000_000)]
    """Cohere: The text."""


class ToyRequest(RequestFields):
    """Body of a conversation."""

    messages: Annotated[list[ToyMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """Cohere: The conversation."""
    stream: bool | None = None
    """Cohere: Whether the answer comes as events. Default: false."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Cohere: Maximum number of tokens to generate. Default: what fits the context."""
