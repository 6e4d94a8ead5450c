"""The bodies of POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from engine.errors import InvalidRequest
from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES, MAX_TOOLS, ChatMessage, PromptEnd, TemplateVariables, Tool
from server.schemas.extras import OF_TOKENIZE, Rules
from server.schemas.sampling import MAX_TOKEN_IDS, TokenId, TruncationFields


class TokenizeRequest(PromptEnd, TruncationFields, TemplateVariables):
    """Text, or a chat that is rendered by the template."""

    rules: ClassVar[Rules] = Rules(unsupported=OF_TOKENIZE)

    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Check that there is exactly one kind of input. Raises InvalidRequest."""
        self.check_truncation()
        message = "Give either 'prompt' or 'messages'."
        if self.prompt is None and self.messages is None:
            raise InvalidRequest(message, param="prompt", code="missing_required_parameter")
        if self.prompt is not None and self.messages is not None:
            raise InvalidRequest(message, param="prompt", code="invalid_value")


class DetokenizeRequest(WireModel):
    """Token ids to turn into text."""

    rules: ClassVar[Rules] = Rules(unsupported={})

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]
    skip_special_tokens: bool | None = None
