"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from engine.errors import FIELD, InvalidRequest, field
from server.schemas.base import WireModel
from server.schemas.extras import Rules
from server.schemas.sampling import (
    MAX_LOGPROBS,
    GenerationFields,
    Integer,
    PromptSideFields,
)
from server.schemas.structured import StructuredFields
from server.schemas.tool_choice import TOOL_CHOICE, Function, ToolChoice, tool_choice

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
MAX_NAME_LENGTH = 1024
FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"
"""Pattern of a function's name: OpenAI's, plus dots and twice the length, which names of tools from other protocols have."""


TEXTS = ("text", "input_text", "output_text", "refusal")
THOUGHTS = ("thinking", "reasoning", "reasoning_text", "redacted_thinking")
"""Types of parts: of text, and of reasoning in an assistant's message, which clients of several APIs send back. Only the
creator of a redacted part can read it."""


class ContentPart(WireModel):
    """One part of a message's content. Parts are text, or reasoning in an assistant's message; URLs are never fetched. Reasoning
    is read from `thinking`, `reasoning`, `text` or `summary`, each a text or a list of texts."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "properties": {
                        "type": {"not": {"enum": ["refusal", *THOUGHTS]}},
                        "text": {"type": "string"},
                    },
                    "required": ["text"],
                },
                {"properties": {"type": {"enum": [*THOUGHTS]}}},
                {
                    "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
                    "required": ["refusal"],
                },
            ]
        }
    )

    type: Annotated[str, WithJsonSchema({"enum": [*TEXTS, *THOUGHTS]})]
    """OpenAI: Kind of the part: `text`, `input_text`, `output_text` or `refusal`; in an assistant's message also `thinking`,
    `reasoning`, `reasoning_text` or `redacted_thinking`."""
    text: str | None = None
    """OpenAI: Text of the part. Required unless the part is a refusal or reasoning."""
    refusal: str | None = None
    """OpenAI: Text of a refusal. Required in a part of type `refusal`."""
    thinking: Any = None
    """Anthropic: Reasoning of an earlier answer, a text or a list of texts, for chat templates that read it."""
    reasoning: Any = None
    """LangChain: Another name for `thinking`."""
    summary: Any = None
    """OpenAI: Another name for `thinking`, read only if the part has no other reasoning."""

    @property
    def thought(self) -> str:
        """The text of a part of reasoning, "" if it has no readable text."""
        texts = (_texts(one) for one in (self.thinking, self.reasoning, self.text, self.summary))
        return next(filter(None, texts), "") if self.type != "redacted_thinking" else ""


def _texts(value: Any) -> str:
    """A text, or the texts in a list of texts and of objects with one text each."""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_texts, value)))
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else ""


class FunctionCall(WireModel):
    """Function that the assistant called, with its arguments."""

    name: Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
    """OpenAI: Name of the function that the assistant called."""
    arguments: str | dict[str, Any] | None = None
    """OpenAI: Arguments of the call: JSON text, as generated, or a JSON object."""


class ToolCall(WireModel):
    """Call in an earlier message of the assistant."""

    id: str | None = None
    """OpenAI: Identifier of the call; the message with its result repeats it as `tool_call_id`."""
    type: Literal["function"] = "function"
    """OpenAI: Kind of the tool; functions are the only kind. Default: function."""
    function: FunctionCall
    """OpenAI: Function that the assistant called, with its arguments."""


class ChatMessage(WireModel):
    """Message of a conversation. Unknown keys are ignored, since evaluation tools send some."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"role": {"const": "assistant"}}},
                {"properties": {"content": {"not": {"type": "null"}}}, "required": ["content"]},
            ]
        }
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """OpenAI: Author of the message. `developer` is treated as `system`, unless the chat template has a role `developer`."""
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    """OpenAI: Text, or a list of text parts. Only an assistant's message may omit it."""
    name: str | None = None
    """OpenAI: Name of the author, passed to the chat template."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    """OpenAI: Calls that the assistant made in this message."""
    tool_call_id: str | None = None
    """OpenAI: Identifier of the call whose result this message of role `tool` contains."""
    reasoning: str | None = None
    """vLLM: Reasoning of an earlier answer, for chat templates that read it."""
    reasoning_content: str | None = None
    """vLLM: Another name for `reasoning`."""


class FunctionDefinition(WireModel):
    """Function that the model may call. The chat template receives `parameters` unchanged. Required and named calls, and calls of
    a `strict` function, follow it."""

    rules: ClassVar[Rules] = Rules(handed_on=True)

    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    """OpenAI: Name of the function."""
    description: str | None = None
    """OpenAI: Purpose of the function, for the model to read."""
    parameters: dict[str, Any] | None = None
    """OpenAI: JSON schema of the arguments. In required and named calls, and in calls of a `strict` function, objects with
    `properties` have no other keys, unless the schema sets `additionalProperties`."""
    strict: bool | None = None
    """OpenAI: Whether arguments must follow `parameters`. Default: false."""


class Tool(WireModel):
    """Tool that the model may call."""

    rules: ClassVar[Rules] = Rules(handed_on=True)

    type: Literal["function"] = "function"
    """OpenAI: Kind of the tool; functions are the only kind. Default: function."""
    function: FunctionDefinition
    """OpenAI: Function that the model may call."""


class PromptEnd(WireModel):
    """The end of a conversation's prompt: the beginning of an answer, or inside the last message."""

    add_generation_prompt: bool | None = None
    """vLLM: Whether the prompt ends with the beginning of an assistant's message. Default: true, unless
    continue_final_message."""
    continue_final_message: bool | None = None
    """vLLM: Whether the answer continues the last message instead of following it. Default: false."""

    @property
    def begins_answer(self) -> bool:
        """True if an answer begins: the default, unless the last message is continued."""
        return (
            not self.continue_final_message
            if self.add_generation_prompt is None
            else self.add_generation_prompt
        )


class TemplateVariables(WireModel):
    """Variables for the chat template. Two parameters of OpenAI are among them, because the template alone decides their meaning
    for an open model."""

    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM: Variables for the chat template, such as `enable_thinking`. The header `x-cohort-ignored` lists those that the
    template does not use."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """OpenAI: Passed to the chat template. If the template does not use it, the header `x-cohort-ignored` lists it. Default: the
    template's."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """OpenAI: Passed to the chat template. If the template does not use it, the header `x-cohort-ignored` lists it. Default: the
    template's."""

    def variables(self, read: Container[str]) -> tuple[dict[str, Any], list[str]]:
        """The variables for a template that reads the names in `read`, and the paths of those it does not read. A parameter
        takes precedence over the same name in `chat_template_kwargs`."""
        fields = {name: getattr(self, name) for name in _DIRECT_VARIABLES}
        values = {name: value for name, value in fields.items() if value is not None}
        kwargs = self.chat_template_kwargs or {}
        unread = [name for name in values if name not in read]
        unread += [f"chat_template_kwargs.{name}" for name in kwargs if name not in read]
        return kwargs | {name: value for name, value in values.items() if name in read}, unread


_DIRECT_VARIABLES = ("reasoning_effort", "verbosity")


class ChatPromptFields(PromptEnd, TemplateVariables):
    """The fields that the chat template sees."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """OpenAI: Messages of the conversation so far, oldest first."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """OpenAI: Functions that the model may call."""


class ChatRequest(PromptSideFields, StructuredFields, GenerationFields, ChatPromptFields):
    """Body of a chat completion."""

    rules: ClassVar[Rules] = Rules(
        refused={
            "prompt": "'prompt' belongs to /v1/completions; a chat has 'messages'.",
            "best_of": "'best_of' belongs to /v1/completions.",
        }
    )

    logprobs: bool | None = None
    """OpenAI: Whether the answer contains the log probability of each token. Default: false."""
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """OpenAI: Number of alternatives per token. Requires `logprobs`. Default: 0."""
    tool_choice: Annotated[str | dict[str, Any] | None, WithJsonSchema(TOOL_CHOICE)] = None
    """OpenAI: Functions that the model may or must call: `none`, `auto`, `required` (Mistral: `any`), one function by name, or a
    list of allowed tools. A grammar enforces required and named calls. Default: auto."""
    parallel_tool_calls: bool | None = None
    """OpenAI: Whether one answer may contain several calls. Default: true."""
    add_special_tokens: bool | None = None
    """vLLM: Whether the tokenizer adds its special tokens, such as BOS, to the rendered chat template, which normally contains
    them. Default: false."""
    include_reasoning: bool | None = None
    """vLLM: Whether the answer contains the reasoning, in a field apart from the content. Default: true."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None if no logprobs were requested."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def choice(self) -> ToolChoice:
        """The request's choice of tools. Raises InvalidRequest naming the field."""
        functions = []
        for place, tool in enumerate(self.tools or ()):
            function = tool.function
            functions.append(Function(place, function.name, function.parameters, bool(function.strict)))
        return tool_choice(functions, self.tool_choice, self.parallel_tool_calls is not False)

    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model sees. With tool_choice "none" it sees none, and otherwise only those that are allowed, which
        is the surest way to comply; a named tool is shown among all others. Raises InvalidRequest as `choice` does."""
        choice = self.choice
        if choice.mode == "none":
            return []
        places = {one.place for one in choice.functions}
        return [
            {"type": tool.type, **tool.model_dump(exclude_unset=True)}
            for place, tool in enumerate(self.tools or ())
            if choice.mode == "named" or place in places
        ]

    def check(self) -> None:
        """Check the rules that types alone do not express. Raises InvalidRequest naming the field."""
        self.check_generation()
        self.check_prompt_side(bool(self.stream))
        if self.top_logprobs and not self.logprobs:
            message = f"'{FIELD}' is only allowed when '{field('logprobs')}' is true."
            raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
        self.check_logprobs(self.n or 1, self.num_logprobs, "top_logprobs")
        self._check_tools()

    def _check_tools(self) -> None:
        names = set[str]()
        for place, tool in enumerate(self.tools or ()):
            name = tool.function.name
            if name in names:
                param = f"tools.{place}.function.name"
                message = f"Invalid value for '{FIELD}': there is another function '{name}' before it."
                raise InvalidRequest(message, param=param, code="invalid_value")
            names.add(name)
