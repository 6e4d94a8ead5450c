"""The body of POST /v1/responses, in the shape of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from engine.errors import InvalidRequest
from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES, MAX_NAME_LENGTH, MAX_PARTS
from server.schemas.extras import UNSUPPORTED, Rules
from server.schemas.sampling import (
    MAX_LOGPROBS,
    MAX_OUTPUT_TOKENS,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    Integer,
    RequestFields,
)

MAX_OFFERED = 1024
"""Most tools of a request, those of namespaces counted together: agents with several tool servers offer hundreds."""
MAX_METADATA = 16
FUNCTION, CUSTOM, NAMESPACE = "function", "custom", "namespace"
"""Types of tools that the client runs."""
ENCRYPTED_REASONING = "reasoning.encrypted_content"
OUTPUT_LOGPROBS = "message.output_text.logprobs"
"""Values of `include` that have an effect."""
_ELSEWHERE = "it belongs to /v1/chat/completions"
_REFUSED = {
    "messages": "use 'input'",
    "max_tokens": "use 'max_output_tokens'",
    "max_completion_tokens": "use 'max_output_tokens'",
    "response_format": "use 'text.format'",
    "structured_outputs": "use 'text.format'",
    "reasoning_effort": "use 'reasoning.effort'",
    "verbosity": "use 'text.verbosity'",
    "logprobs": f"use 'include' with {OUTPUT_LOGPROBS}",
    "conversation": "use 'previous_response_id'",
    "system": "use 'instructions'",
    "prompt": "prompts are not stored here; use 'input'",
    "context_management": "use 'truncation'",
    **dict.fromkeys(
        (
            "n", "stop", "prompt_logprobs", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens",
            "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "typical_p", "repetition_penalty",
            "skip_special_tokens", "return_token_ids", "return_tokens_as_token_ids", "truncate_prompt_tokens",
            "truncation_side", "add_generation_prompt", "continue_final_message", "add_special_tokens",
            "guided_regex", "guided_choice", "guided_grammar",
        ),
        _ELSEWHERE,
    ),
}  # fmt: skip
_FIELDS = {"instructions", "input", "reasoning"}
"""Names that other endpoints refuse and that are fields here."""


class InputPart(WireModel):
    """Part of a message's content or of a call's result: `input_text`, `output_text`, `text`, `refusal`, `summary_text` or
    `reasoning_text`. Images and files return 400, unless the server runs with `--unread-parts placeholder`."""

    type: str
    """OpenAI: Kind of the part."""
    text: str | None = None
    """OpenAI: Text of the part."""
    refusal: str | None = None
    """OpenAI: Text of a part of type `refusal`."""


Parts = Annotated[list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True)]
Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]


class InputItem(WireModel):
    """Item of the input: `message` (the default), `function_call`, `function_call_output`, `custom_tool_call`,
    `custom_tool_call_output`, `reasoning` or `item_reference`. Items of tools that run on OpenAI's servers are left out, and
    `x-cohort-ignored` lists them."""

    type: Name | None = None
    """OpenAI: Kind of the item. Default: message."""
    id: Name | None = None
    """OpenAI: Identifier of the item. An `item_reference` needs that of an output item of a stored response."""
    status: Name | None = None
    """OpenAI: Accepted and without effect."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """OpenAI: Author of a message."""
    content: str | Parts | None = None
    """OpenAI: Content of a message, a text or a list of parts; of a reasoning item its text."""
    call_id: Name | None = None
    """OpenAI: Identifier of a call; the item with its result repeats it."""
    name: Name | None = None
    """OpenAI: Name of the tool that a call calls."""
    namespace: Name | None = None
    """OpenAI: Namespace of the tool that a call calls."""
    arguments: str | dict[str, Any] | None = None
    """OpenAI: Arguments of a `function_call`: JSON text, as generated, or a JSON object."""
    input: str | None = None
    """OpenAI: Input of a `custom_tool_call`."""
    output: str | Parts | None = None
    """OpenAI: Result of a call."""
    summary: Parts | None = None
    """OpenAI: Summary of a reasoning item, read only if the item has no other text."""
    encrypted_content: str | None = None
    """OpenAI: Reasoning as this server wrote it; what other servers wrote is left out, and `x-cohort-ignored` lists it."""


class ResponsesTool(WireModel):
    """Tool that the model may call: `function`, `custom` (its input is one text) or `namespace` (a group of both). Tools of
    other types run on OpenAI's servers: they are left out, and `x-cohort-ignored` lists them."""

    rules: ClassVar[Rules] = Rules(handed_on=True)

    type: Name
    """OpenAI: Kind of the tool."""
    name: Name | None = None
    """OpenAI: Name of a function, a custom tool or a namespace."""
    description: str | None = None
    """OpenAI: Purpose of the tool, for the model to read."""
    parameters: dict[str, Any] | None = None
    """OpenAI: JSON schema of a function's arguments."""
    strict: bool | None = None
    """OpenAI: Whether arguments must follow `parameters`. Default: false."""
    format: dict[str, Any] | None = None
    """OpenAI: Form of a custom tool's input. The model reads a grammar as part of the description; it is not enforced, as
    `x-cohort-ignored` says."""
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_OFFERED, fail_fast=True)] | None = None
    """OpenAI: Tools of a namespace."""


class ReasoningSettings(WireModel):
    """Reasoning before the answer."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """OpenAI: Passed to the chat template as `reasoning_effort`; `none` turns reasoning off, if the template can. Without an
    effect, the header `x-cohort-ignored` lists it. Default: the template's."""
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """OpenAI: Accepted and without effect, as `x-cohort-ignored` says: reasoning is shown whole and never summarized."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """OpenAI: Older name of `summary`."""


class TextFormat(WireModel):
    """Form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    """OpenAI: Kind of format: `text`, `json_object` (any JSON object) or `json_schema`."""
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    """OpenAI: Name of the schema."""
    description: str | None = None
    """OpenAI: Purpose of the schema."""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """OpenAI: JSON schema that the answer follows. Required with type `json_schema`."""
    strict: bool | None = None
    """OpenAI: Accepted and without effect: every answer follows the schema. Default: true."""


class TextSettings(WireModel):
    """Form and length of the answer's text."""

    format: TextFormat | None = None
    """OpenAI: Form of the text. It is enforced for texts; a forced call is no text, and the header `x-cohort-ignored` lists the
    format then. Default: text."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """OpenAI: Passed to the chat template. If the template does not use it, the header `x-cohort-ignored` lists it. Default: the
    template's."""


class ResponseStreamOptions(WireModel):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """OpenAI: Accepted: events are never padded. Default: false."""


class ResponsesRequest(RequestFields):
    """Body of a response."""

    rules: ClassVar[Rules] = Rules(
        refused={name: f"'{name}' is not supported here: {reason}." for name, reason in _REFUSED.items()},
        unsupported={
            name: values for name, values in UNSUPPORTED.items() if name not in {*_REFUSED, *_FIELDS}
        },
    )

    input: (
        str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    """OpenAI: Text of a user, or items of the conversation, oldest first. Only a request with `previous_response_id` may omit
    it."""
    instructions: str | None = None
    """OpenAI: System prompt of this response. It is not carried over by `previous_response_id`."""
    previous_response_id: Name | None = None
    """OpenAI: Identifier of a stored response whose input and output precede this input. A response that is unknown, expired or
    of another API key returns 404."""
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_OFFERED, fail_fast=True)] | None = None
    """OpenAI: Tools that the model may call."""
    tool_choice: str | dict[str, Any] | None = None
    """OpenAI: Tools that the model may or must call: `none`, `auto`, `required`, one function or custom tool by name, or a list
    of allowed tools. A grammar enforces forced calls. Default: auto."""
    parallel_tool_calls: bool | None = None
    """OpenAI: Whether one answer may contain several calls. Default: true."""
    max_tool_calls: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """OpenAI: Accepted: it limits tools that run on the server, of which there are none."""
    text: TextSettings | None = None
    """OpenAI: Form and length of the answer's text."""
    reasoning: ReasoningSettings | None = None
    """OpenAI: Reasoning before the answer."""
    include: Annotated[list[Name], Field(max_length=64, fail_fast=True)] | None = None
    """OpenAI: Additional contents: `message.output_text.logprobs`, and `reasoning.encrypted_content`, the reasoning as a text
    that clients send back. It is encoded and not encrypted, since the answer contains the reasoning anyway."""
    max_output_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """OpenAI: Maximum number of tokens to generate, those of reasoning included. Default: what fits the context."""
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """OpenAI: Sampling temperature; 0 takes the likeliest token at each step. Default: the model's."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """OpenAI: Sample from the likeliest tokens whose probabilities add up to this. Default: the model's."""
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOP_K)] | None = None
    """vLLM: Sample from this number of likeliest tokens; 0 and -1 mean all. Default: the model's."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """vLLM: Exclude tokens whose probability is below this fraction of the likeliest token's. Default: the model's."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """OpenAI: Subtracted from the logits of tokens that occur in the answer. Default: 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """OpenAI: Subtracted from the logit of a token once for each time it occurs in the answer. Default: the model's."""
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    """vLLM: Seed of sampling: the same request with the same seed gets the same answer if the same requests run beside
    it, or with `--deterministic`. Default: random."""
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """OpenAI: Number of alternatives per token. It has an effect only if `include` asks for log probabilities. Default: 0."""
    truncation: Literal["auto", "disabled"] | None = None
    """OpenAI: `auto` drops the oldest items of the input, those of the system excepted, until the prompt fits the context;
    `disabled` returns 400. Default: disabled."""
    stream: bool | None = None
    """OpenAI: Whether the answer is sent as server-sent events while it is generated. Default: false."""
    stream_options: ResponseStreamOptions | None = None
    """OpenAI: Options of a stream."""
    background: bool | None = None
    """OpenAI: Whether the response is generated whether or not the client stays. Requires `store`. Default: false."""
    store: bool | None = None
    """OpenAI: Whether the response can be retrieved and continued later, while there is room in the server's memory. Default:
    true, unless the server runs with `--responses-store-entries 0`."""
    metadata: dict[str, str] | None = None
    """OpenAI: Up to 16 pairs of texts, which the response repeats."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    """OpenAI: Repeated in the response, and without effect."""
    safety_identifier: Annotated[str, Field(max_length=1024)] | None = None
    """OpenAI: Repeated in the response, and without effect."""
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = None
    """OpenAI: Repeated in the response, and without effect: the prefix cache finds what is common by itself."""
    prompt_cache_retention: Annotated[str, Field(max_length=64)] | None = None
    """OpenAI: Repeated in the response, and without effect."""
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    """OpenAI: Accepted and without effect: every response has the tier `default`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM: Variables for the chat template. They take precedence over those of `reasoning` and `text`. The header
    `x-cohort-ignored` lists those that the template does not use."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None if no logprobs were requested."""
        return (self.top_logprobs or 0) if OUTPUT_LOGPROBS in (self.include or ()) else None

    def check(self) -> None:
        """Check the rules that types alone do not express. Raises InvalidRequest naming the field."""
        if self.input is None and self.previous_response_id is None:
            message = "Missing required parameter: 'input'."
            raise InvalidRequest(message, "input", "missing_required_parameter")
        if self.background and self.store is False:
            message = "'background' requires 'store': the response would be lost."
            raise InvalidRequest(message, "background", "invalid_value")
        if len(self.metadata or ()) > MAX_METADATA:
            message = f"'metadata' should have at most {MAX_METADATA} pairs."
            raise InvalidRequest(message, "metadata", "invalid_value")
        format_ = None if self.text is None else self.text.format
        if format_ is not None and format_.type == "json_schema" and format_.schema_ is None:
            message = "Missing required parameter: 'text.format.schema'."
            raise InvalidRequest(message, "text.format.schema", "missing_required_parameter")

    def variables(self, read: Container[str]) -> tuple[dict[str, Any], list[str]]:
        """The variables for a chat template that reads the names in `read`, and the names of what has no effect."""
        variables: dict[str, Any] = {}
        ignored: list[str] = []
        effort = None if self.reasoning is None else self.reasoning.effort
        if effort is not None:
            if effort != "none" and "reasoning_effort" in read:
                variables["reasoning_effort"] = effort
            variables |= {name: effort != "none" for name in _SWITCHES if name in read}
            if not variables:
                ignored.append("reasoning.effort")
        if self.text is not None and self.text.verbosity is not None:
            if "verbosity" in read:
                variables["verbosity"] = self.text.verbosity
            else:
                ignored.append("text.verbosity")
        kwargs = self.chat_template_kwargs or {}
        ignored += [f"chat_template_kwargs.{name}" for name in kwargs if name not in read]
        return variables | kwargs, ignored

    def without_effect(self) -> list[str]:
        """Names of given parameters that have no effect, whatever the model."""
        names = []
        if self.reasoning is not None and (self.reasoning.summary or self.reasoning.generate_summary):
            names.append("reasoning.summary" if self.reasoning.summary else "reasoning.generate_summary")
        if self.top_logprobs and self.num_logprobs is None:
            names.append("top_logprobs")
        names += [
            f"include.{one}"
            for one in self.include or ()
            if one not in (OUTPUT_LOGPROBS, ENCRYPTED_REASONING)
        ]
        return names


_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn reasoning on and off."""
