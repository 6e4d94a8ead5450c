"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta, Raw

from server.schemas.answers.common import (
    Components,
    Count,
    PromptLogprobs,
    Seed,
    StopReason,
    Timings,
    TokenUsage,
)

ReasoningField = Literal["reasoning", "reasoning_content"]
ChatFinish = Literal["stop", "length", "tool_calls", "content_filter"]


class TokenLogprob(TypedDict):
    """A token and its logprob."""

    token: str
    logprob: float
    bytes: list[Count] | None


class ChosenLogprob(TypedDict):
    """A token of the answer with its most likely alternatives."""

    token: str
    logprob: float
    bytes: list[Count] | None
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """Logprobs of a choice or chunk."""

    content: list[ChosenLogprob]
    refusal: None


class CalledFunction(TypedDict):
    """Name of a function, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a whole answer."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class FunctionDelta(TypedDict):
    """The name once, arguments in fragments."""

    name: NotRequired[str]
    arguments: NotRequired[str]


class ToolCallDelta(TypedDict):
    """A part of a call."""

    index: Count
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: NotRequired[FunctionDelta]


class ChatEnd(TypedDict):
    """Why a choice ended."""

    finish_reason: ChatFinish | None
    stop_reason: StopReason


class AnsweredMessage(TypedDict):
    """The message of a whole choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[Annotated[list[ToolCall], Meta(min_length=1)]]
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]


class ChatChoice(TypedDict):
    """A whole choice."""

    index: Count
    message: AnsweredMessage
    logprobs: ChatLogprobs | Raw | None
    finish_reason: ChatFinish | None
    stop_reason: StopReason
    token_ids: NotRequired[Sequence[Count]]


class ChatCompletion(TypedDict):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    system_fingerprint: str
    seed: Seed
    choices: Annotated[list[ChatChoice], Meta(min_length=1)]
    usage: TokenUsage
    prompt_token_ids: NotRequired[Sequence[Count]]
    prompt_logprobs: NotRequired[PromptLogprobs | Raw | None]
    timings: NotRequired[Timings]


class ChatDelta(TypedDict):
    """What a chunk adds to a choice."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    tool_calls: NotRequired[Annotated[list[ToolCallDelta], Meta(min_length=1)]]
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]


class ChatChunkChoice(TypedDict):
    """A choice of a chunk."""

    index: Count
    delta: ChatDelta
    logprobs: ChatLogprobs | Raw | None
    finish_reason: ChatFinish | None
    stop_reason: NotRequired[StopReason]
    token_ids: NotRequired[Sequence[Count]]


class ChatCompletionChunk(TypedDict):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    system_fingerprint: str
    seed: Seed
    choices: Annotated[list[ChatChunkChoice], Meta(max_length=1)]
    usage: NotRequired[TokenUsage]
    prompt_token_ids: NotRequired[Sequence[Count]]
    timings: NotRequired[Timings]


COMPONENTS: Components = {
    "ChatLogprobs": (ChatLogprobs, ""),
    "AnsweredToolCall": (ToolCall, ""),
    "ToolCallDelta": (ToolCallDelta, ""),
    "AnsweredMessage": (AnsweredMessage, ""),
    "ChatCompletion": (ChatCompletion, ""),
    "ChatCompletionChunk": (ChatCompletionChunk, ""),
}
