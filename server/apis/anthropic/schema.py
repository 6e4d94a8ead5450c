"""The bodies of POST /v1/messages and /v1/messages/count_tokens, in Anthropic's shape."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from server.schemas.base import WireModel
from server.schemas.chat import FUNCTION_NAME, MAX_MESSAGES, MAX_NAME_LENGTH, MAX_PARTS
from server.schemas.extras import OF_TOKENIZE, UNSUPPORTED, Rules
from server.schemas.sampling import (
    MAX_OUTPUT_TOKENS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    Integer,
    RequestFields,
    Stop,
)

MAX_OFFERED = 512
"""Most tools of a request: agents with several tool servers offer hundreds."""
TEXT, THINKING, REDACTED, TOOL_USE, TOOL_RESULT = (
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
)
CUSTOM = "custom"
"""Type of a tool that the client runs and describes."""
_ELSEWHERE = "it belongs to /v1/chat/completions"
_REFUSED = {
    "stop": "use 'stop_sequences'",
    "max_completion_tokens": "use 'max_tokens'",
    "response_format": "use 'output_config.format'",
    "structured_outputs": "use 'output_config.format'",
    "reasoning_effort": "use 'output_config.effort'",
    "parallel_tool_calls": "use 'tool_choice.disable_parallel_tool_use'",
    "continue_final_message": "end 'messages' with a message of role 'assistant', which the answer continues",
    "container": "this server runs no code",
    **dict.fromkeys(
        (
            "n", "logprobs", "top_logprobs", "prompt_logprobs", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens",
            "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "min_p", "typical_p", "repetition_penalty",
            "presence_penalty", "frequency_penalty", "stream_options", "skip_special_tokens", "return_token_ids",
            "return_tokens_as_token_ids", "truncate_prompt_tokens", "truncation_side", "add_generation_prompt",
            "add_special_tokens", "prompt",
            "guided_regex", "guided_choice", "guided_grammar",
        ),
        _ELSEWHERE,
    ),
}  # fmt: skip
_FIELDS = {"thinking", "system", "stop_sequences"}
"""Names that other endpoints refuse and that are fields here."""
RULES = Rules(
    refused={name: f"'{name}' is not supported here: {reason}." for name, reason in _REFUSED.items()},
    unsupported={name: values for name, values in UNSUPPORTED.items() if name not in {*_REFUSED, *_FIELDS}}
    | {"mcp_servers": ([],)},
)
"""Rules for other keys of a message."""
COUNT_RULES = Rules(
    unsupported={name: values for name, values in OF_TOKENIZE.items() if name not in _FIELDS}
    | {"mcp_servers": ([],)}
)
"""Rules for other keys of a count, which no setting of generation changes."""


class CacheControl(WireModel):
    """Mark of a block: the prompt up to its end is kept for later prompts, until others need the room."""

    type: Literal["ephemeral"]
    """Anthropic: Kind of the mark."""
    ttl: Literal["5m", "1h"] | None = None
    """Anthropic: Accepted: what is kept goes when others need the room, however old it is."""


class ResultBlock(WireModel):
    """Content block of a tool's result: `text`, `search_result`, `document` or `tool_reference`. A document is read if its
    `source` is text; images and other documents are not read."""

    type: str
    """Anthropic: Kind of the block."""
    text: str | None = None
    """Anthropic: Text of a block of type `text`."""
    title: str | None = None
    """Anthropic: Title of a document or search result."""
    source: str | dict[str, Any] | None = None
    """Anthropic: Contents of a document or image, or the origin of a search result."""
    content: Any = None
    """Anthropic: Text blocks of a search result."""
    tool_name: str | None = None
    """Anthropic: Name of the tool that a `tool_reference` points to."""
    cache_control: CacheControl | None = None
    """Anthropic: Mark behind the block, of which a request may have four."""


class ContentBlock(WireModel):
    """Content block of a message: `text`, `document`, `search_result` or `image`; in a user's message also `tool_result`, in an
    assistant's `thinking`, `redacted_thinking` and `tool_use`. A document is read if its `source` is text; images and other
    documents return 400, unless the server runs with `--unread-parts placeholder`."""

    type: str
    """Anthropic: Kind of the block."""
    text: str | None = None
    """Anthropic: Text of a block of type `text`."""
    thinking: str | None = None
    """Anthropic: Reasoning of an earlier answer, for chat templates that read it."""
    signature: str | None = None
    """Anthropic: Of a `thinking` block. Not checked; in a block without text it is read for the reasoning that it carries."""
    data: str | None = None
    """Anthropic: Accepted in a `redacted_thinking` block, which only its creator can read; the block is left out."""
    id: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Anthropic: Identifier of a `tool_use`."""
    name: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Anthropic: Name of the tool that a `tool_use` calls."""
    input: dict[str, Any] | None = None
    """Anthropic: Arguments of a `tool_use`."""
    tool_use_id: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Anthropic: Identifier of the `tool_use` that a `tool_result` answers."""
    content: str | Annotated[list[ResultBlock], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    """Anthropic: Content of a `tool_result` or `search_result`: a text, or a list of blocks."""
    is_error: bool | None = None
    """Anthropic: Whether a `tool_result` is an error; the model then reads "Error: " before a text that does not say so itself.
    Default: false."""
    title: str | None = None
    """Anthropic: Title of a document or search result."""
    context: str | None = None
    """Anthropic: Context of a document, read before its text."""
    source: str | dict[str, Any] | None = None
    """Anthropic: Contents of a document or image, or the origin of a search result."""
    cache_control: CacheControl | None = None
    """Anthropic: Mark behind the block, of which a request may have four."""


class InputMessage(WireModel):
    """Message of a conversation."""

    role: Literal["user", "assistant", "system"]
    """Anthropic: Author of the message. Messages of one author in a row count as one."""
    content: str | Annotated[list[ContentBlock], Field(max_length=MAX_PARTS, fail_fast=True)]
    """Anthropic: Text, or a list of content blocks."""


class SystemBlock(WireModel):
    """Text block of the system prompt."""

    type: Literal["text"]
    """Anthropic: Kind of the block."""
    text: str
    """Anthropic: Text of the block."""
    cache_control: CacheControl | None = None
    """Anthropic: Mark behind the block, of which a request may have four."""


class OfferedTool(WireModel):
    """Tool that the model may call. Tools of another `type` than `custom` run on Anthropic's servers or are known to its models
    only: they are left out, and `x-cohort-ignored` lists them."""

    name: Annotated[str, Field(pattern=FUNCTION_NAME)] | None = None
    """Anthropic: Name of the tool. Required for a `custom` tool."""
    type: str | None = None
    """Anthropic: Kind of the tool. Default: custom."""
    description: str | None = None
    """Anthropic: Purpose of the tool, for the model to read."""
    input_schema: dict[str, Any] | None = None
    """Anthropic: JSON schema of the arguments. Required for a `custom` tool."""
    strict: bool | None = None
    """Anthropic: Whether arguments must follow `input_schema`. Default: false."""
    eager_input_streaming: bool | None = None
    """Anthropic: Accepted: arguments are always streamed while they are generated. Default: true."""
    cache_control: CacheControl | None = None
    """Anthropic: Mark behind the block, of which a request may have four."""


class MessagesToolChoice(WireModel):
    """Tools that the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    """Anthropic: `auto` lets the model choose, `any` forces a call, `tool` forces a call of `name`, `none` forbids calls."""
    name: str | None = None
    """Anthropic: Name of the tool to call. Required with type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """Anthropic: Whether one answer may have at most one call. Default: false."""


class Thinking(WireModel):
    """Reasoning before the answer. The variables `enable_thinking` and `thinking` of the chat template follow `type`, and
    `thinking_budget` follows `budget_tokens`."""

    type: Literal["enabled", "disabled", "adaptive"]
    """Anthropic: Whether the model is to reason. If the chat template cannot choose, the header `x-cohort-ignored` lists the
    parameter."""
    budget_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """Anthropic: Passed to the chat template as `thinking_budget`. If the template does not use it, the header `x-cohort-ignored`
    lists it, and only `max_tokens` limits the reasoning, together with the answer."""
    display: Literal["summarized", "full", "omitted", "updates"] | None = None
    """Anthropic: `omitted` leaves the text of the reasoning out of the answer; the block's signature carries it to the next turn.
    Reasoning is never summarized, so the others mean the same. Default: full."""


class OutputFormat(WireModel):
    """JSON schema that the answer follows."""

    type: Literal["json_schema"]
    """Anthropic: Kind of the format."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    """Anthropic: JSON schema. A grammar enforces it."""


class OutputConfig(WireModel):
    """Form and effort of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Anthropic: Passed to the chat template as `reasoning_effort`. If the template does not use it, the header
    `x-cohort-ignored` lists it."""
    format: OutputFormat | None = None
    """Anthropic: Form of the answer's text. A forced call is no text, and the header `x-cohort-ignored` lists the format then.
    Default: free text."""


class MessagesPrompt(WireModel):
    """The fields that make the prompt."""

    model: Annotated[str, Field(max_length=1024)]
    """Anthropic: Name of the model, as GET /v1/models lists it, or one that a `--model-alias` matches."""
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """Anthropic: Messages of the conversation so far, oldest first. The answer continues a last message of the assistant."""
    system: str | Annotated[list[SystemBlock], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    """Anthropic: System prompt. A text `x-anthropic-billing-header: ...;` in it, which differs from request to request, is left
    out."""
    tools: Annotated[list[OfferedTool], Field(max_length=MAX_OFFERED, fail_fast=True)] | None = None
    """Anthropic: Tools that the model may call."""
    tool_choice: MessagesToolChoice | None = None
    """Anthropic: Tools that the model may or must call. A grammar enforces forced calls. Default: auto."""
    thinking: Thinking | None = None
    """Anthropic: Reasoning before the answer. Default: disabled."""
    output_config: OutputConfig | None = None
    """Anthropic: Form and effort of the answer."""
    output_format: OutputFormat | None = None
    """Anthropic: Older name of `output_config.format`."""
    cache_control: CacheControl | None = None
    """Anthropic: Mark behind the last block of the conversation; it counts as one of four."""
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM: Variables for the chat template. They take precedence over those of `thinking`. The header `x-cohort-ignored` lists
    those that the template does not use."""


class MessagesRequest(RequestFields, MessagesPrompt):
    """Body of a message."""

    rules: ClassVar[Rules] = RULES

    model: Annotated[str, Field(max_length=1024)]
    """Anthropic: Name of the model, as GET /v1/models lists it, or one that a `--model-alias` matches."""
    max_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)]
    """Anthropic: Maximum number of tokens to generate. If fewer fit into the context, an answer that reaches its end has the stop
    reason `model_context_window_exceeded`."""
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    """Anthropic: Texts that end the answer. They are not part of it."""
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """Anthropic: Sampling temperature; 0 takes the likeliest token at each step. Default: the model's."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Anthropic: Sample from the likeliest tokens whose probabilities add up to this. Default: the model's."""
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOP_K)] | None = None
    """Anthropic: Sample from this number of likeliest tokens; 0 and -1 mean all. Default: the model's."""
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    """OpenAI: Seed of sampling: the same request with the same seed gets the same answer if the same requests run
    beside it, or with `--deterministic`. Default: random."""
    stream: bool | None = None
    """Anthropic: Whether the answer is sent as server-sent events while it is generated. Default: false."""


class CountTokensRequest(MessagesPrompt):
    """Body of a count: the prompt's fields of a message."""

    rules: ClassVar[Rules] = COUNT_RULES
