"""Responses of the Responses API, their items, and the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from server.schemas.answers.common import Components, Count, ReasoningTokens

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
IncompleteReason = Literal["max_output_tokens", "content_filter"]


LifecycleType = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
]


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


class TokenLogprob(TypedDict):
    """A token and its logprob."""

    token: str
    logprob: float
    bytes: list[Count]


class ChosenLogprob(TypedDict):
    """A token of the answer with its most likely alternatives."""

    token: str
    logprob: float
    bytes: list[Count]
    top_logprobs: list[TokenLogprob]


class TextPart(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[dict[str, Any]], Meta(max_length=0)]
    logprobs: list[ChosenLogprob]


class ReasoningPart(TypedDict):
    """The text of an item of reasoning."""

    type: Literal["reasoning_text"]
    text: str


Part = TextPart | ReasoningPart


class MessageItem(TypedDict):
    """A message."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: Annotated[list[TextPart], Meta(max_length=1)]


class ReasoningItem(TypedDict):
    """Reasoning."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: Annotated[list[dict[str, Any]], Meta(max_length=0)]
    content: Annotated[list[ReasoningPart], Meta(max_length=1)]
    encrypted_content: NotRequired[str]


class FunctionCallItem(TypedDict):
    """A call of a function."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    type: Literal["function_call"]
    arguments: str
    namespace: NotRequired[str]


class CustomCallItem(TypedDict):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    type: Literal["custom_tool_call"]
    input: str
    namespace: NotRequired[str]


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class ResponseFailure(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is not complete."""

    reason: IncompleteReason


class ReasoningSettings(TypedDict):
    """The request's settings of reasoning."""

    effort: str | None
    summary: None


class TextSettings(TypedDict):
    """The request's settings of text."""

    format: dict[str, Any]
    verbosity: NotRequired[str]


class ResponseEcho(TypedDict):
    """Members of a response that repeat the request, with the values that count."""

    background: bool
    instructions: str | None
    max_output_tokens: Count | None
    max_tool_calls: Count | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: Count
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None
    presence_penalty: float
    frequency_penalty: float


class ResponseHead(TypedDict):
    """Members of a response that the server makes."""

    id: str
    object: Literal["response"]
    created_at: Count
    status: ResponseStatus
    completed_at: Count | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: Sequence[OutputItem]
    usage: ResponsesUsage | None


class Response(ResponseHead, ResponseEcho):
    """A response."""


class LifecycleEvent(TypedDict):
    """The response has reached a stage."""

    type: LifecycleType
    response: Response
    sequence_number: Count


class ItemEvent(TypedDict):
    """An item begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: Count
    item: OutputItem
    sequence_number: Count


class PartEvent(TypedDict):
    """The part of an item begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: Count
    content_index: Count
    part: Part
    sequence_number: Count


class TextDelta(TypedDict):
    """Text."""

    type: Literal["response.output_text.delta"]
    item_id: str
    output_index: Count
    content_index: Count
    delta: str
    logprobs: list[ChosenLogprob]
    sequence_number: Count


class TextDone(TypedDict):
    """The whole text."""

    type: Literal["response.output_text.done"]
    item_id: str
    output_index: Count
    content_index: Count
    text: str
    logprobs: list[ChosenLogprob]
    sequence_number: Count


class ReasoningDelta(TypedDict):
    """Reasoning."""

    type: Literal["response.reasoning_text.delta"]
    item_id: str
    output_index: Count
    content_index: Count
    delta: str
    sequence_number: Count


class ReasoningDone(TypedDict):
    """The whole reasoning."""

    type: Literal["response.reasoning_text.done"]
    item_id: str
    output_index: Count
    content_index: Count
    text: str
    sequence_number: Count


class ArgumentsDelta(TypedDict):
    """A fragment of a function's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: Count
    delta: str
    sequence_number: Count


class ArgumentsDone(TypedDict):
    """The whole arguments."""

    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: Count
    name: str
    arguments: str
    sequence_number: Count


class InputDelta(TypedDict):
    """Input of a custom tool."""

    type: Literal["response.custom_tool_call_input.delta"]
    item_id: str
    output_index: Count
    delta: str
    sequence_number: Count


class InputDone(TypedDict):
    """The whole input."""

    type: Literal["response.custom_tool_call_input.done"]
    item_id: str
    output_index: Count
    input: str
    sequence_number: Count


ResponseEvent = (
    LifecycleEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)

COMPONENTS: Components = {
    "ResponsesUsage": (ResponsesUsage, ""),
    "OutputItem": (OutputItem, ""),
    "Response": (Response, ""),
    "ResponseEvent": (ResponseEvent, ""),
}
