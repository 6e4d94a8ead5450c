"""The bodies of POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from engine.errors import InvalidRequest
from server.schemas import extras
from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES, MAX_TOOLS, ChatMessage, PromptEnd, Tool
from server.schemas.sampling import MAX_TOKEN_IDS, TokenId


class TokenizeRequest(PromptEnd):
    """Text, or a chat that goes through the template."""

    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Exactly one kind of input, and nothing besides that would change its ids. Raises InvalidRequest."""
        extras.judge(self.model_extra, type(self).model_fields, unsupported=extras.OF_TOKENIZE)
        if (self.prompt is None) == (self.messages is None):
            message = "Give either 'prompt' or 'messages'."
            raise InvalidRequest(message, param="prompt", code="invalid_value")


class DetokenizeRequest(WireModel):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]
    skip_special_tokens: bool | None = None

    def check(self) -> None:
        """Nothing that looks like a misspelt parameter. Raises InvalidRequest."""
        extras.judge(self.model_extra, type(self).model_fields, unsupported={})
