"""Answers of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Raw

from server.schemas.answers.common import Components, Count

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
]


class ErrorFacts(TypedDict):
    """What is wrong."""

    type: ErrorType
    message: Annotated[str, Meta(min_length=1)]


class MessagesError(TypedDict):
    """An error."""

    type: Literal["error"]
    error: ErrorFacts
    request_id: str | None


class ThinkingTokens(TypedDict):
    """Details of the generated tokens."""

    thinking_tokens: Count


class MessagesUsage(TypedDict):
    """Token counts."""

    input_tokens: Annotated[
        Count, Meta(description="Tokens of the prompt, without those read from the cache.")
    ]
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count
    output_tokens_details: ThinkingTokens


class TextBlock(TypedDict):
    """A block of text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    """A block of reasoning."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] | Raw


AnsweredBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageEnd(TypedDict):
    """Why a message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class Message(TypedDict):
    """A whole answer, or its beginning without contents."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Sequence[AnsweredBlock]
    usage: MessagesUsage
    stop_reason: StopReason | None
    stop_sequence: str | None


class TextDelta(TypedDict):
    """Text of a block."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    """Reasoning of a block."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """The signature of a block of reasoning."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    """A fragment of the JSON of a call's input."""

    type: Literal["input_json_delta"]
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class MessageStart(TypedDict):
    """The first event."""

    type: Literal["message_start"]
    message: Message


class Ping(TypedDict):
    """A sign of life."""

    type: Literal["ping"]


class BlockStart(TypedDict):
    """A block begins."""

    type: Literal["content_block_start"]
    index: Count
    content_block: AnsweredBlock


class BlockGrowth(TypedDict):
    """A block grows."""

    type: Literal["content_block_delta"]
    index: Count
    delta: BlockDelta


class BlockStop(TypedDict):
    """A block ends."""

    type: Literal["content_block_stop"]
    index: Count


class MessageUpdate(TypedDict):
    """The end of the message is known."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessagesUsage


class MessageStop(TypedDict):
    """The last event."""

    type: Literal["message_stop"]


MessageEvent = MessageStart | Ping | BlockStart | BlockGrowth | BlockStop | MessageUpdate | MessageStop


class TokenCount(TypedDict):
    """The answer of `count_tokens`."""

    input_tokens: Count


COMPONENTS: Components = {
    "MessagesError": (MessagesError, "Error of the Messages API, and the event that ends a failed stream."),
    "MessagesUsage": (MessagesUsage, ""),
    "AnsweredBlock": (AnsweredBlock, ""),
    "Message": (Message, ""),
    "MessageEvent": (MessageEvent, ""),
    "TokenCount": (TokenCount, ""),
}
