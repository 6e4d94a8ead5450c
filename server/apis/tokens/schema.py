"""The bodies of POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from engine.errors import InvalidRequest
from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES, MAX_TOOLS, ChatMessage, PromptEnd, TemplateVariables, Tool
from server.schemas.extras import OF_TOKENIZE, Rules
from server.schemas.sampling import MAX_TOKEN_IDS, TokenId, TruncationFields


class TokenizeRequest(PromptEnd, TruncationFields, TemplateVariables):
    """Text, or a conversation that the chat template renders."""

    rules: ClassVar[Rules] = Rules(unsupported=OF_TOKENIZE)

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
                    "required": ["prompt"],
                },
                {
                    "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}},
                    "required": ["messages"],
                },
            ]
        }
    )

    model: str | None = None
    """OpenAI: Name of the model, as GET /v1/models lists it. Default: the served model."""
    prompt: str | None = None
    """vLLM: Text to tokenize. Exactly one of `prompt` and `messages` is required."""
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    """vLLM: Conversation to tokenize, rendered by the chat template."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """OpenAI: Functions that the chat template describes to the model."""
    add_special_tokens: bool | None = None
    """vLLM: Whether the tokenizer adds its special tokens, such as BOS. Default: true for prompt, false for messages."""
    return_token_strs: bool | None = None
    """vLLM: Whether the answer contains the text of each token. Default: false."""

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
    """OpenAI: Name of the model, as GET /v1/models lists it. Default: the served model."""
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]
    """vLLM: Token ids to turn into text."""
    skip_special_tokens: bool | None = None
    """Cohort: Whether special tokens are left out of the text. Default: false."""
