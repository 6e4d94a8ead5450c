"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from engine.errors import InvalidRequest
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
    """One part of a message's content. Only text is served; nothing is ever fetched from a URL. Of the reasoning in an
    assistant's history any form is taken: `thinking`, `reasoning`, `text` or `summary`, a text or a list of texts."""

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
    """OpenAI: `text`, also `input_text`, `output_text` and `refusal`; in an assistant's message also `thinking`, `reasoning`,
    `reasoning_text` and `redacted_thinking`."""
    text: str | None = None
    """OpenAI: The text."""
    refusal: str | None = None
    """OpenAI: The text of a refusal."""
    thinking: Any = None
    """Anthropic: Reasoning of an earlier answer, a text or a list of texts, for templates that read it."""
    reasoning: Any = None
    """LangChain: The same by another name."""
    summary: Any = None
    """OpenAI: The same, where nothing else tells of it."""

    @property
    def thought(self) -> str:
        """The text of a part of reasoning, "" if it has no readable text."""
        found = (_texts(one) for one in (self.thinking, self.reasoning, self.text, self.summary))
        return next(filter(None, found), "") if self.type != "redacted_thinking" else ""


def _texts(value: Any) -> str:
    """A text, or the texts in a list of texts and of objects with one text each."""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_texts, value)))
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else ""


class FunctionCall(WireModel):
    """The function that the assistant called; `arguments` is JSON in a string, as generated, or the object itself."""

    name: Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
    """OpenAI: The function's name."""
    arguments: str | dict[str, Any] | None = None
    """OpenAI: A JSON object, as text."""


class ToolCall(WireModel):
    """A call in an earlier assistant message."""

    id: str | None = None
    """OpenAI: The call's id."""
    type: Literal["function"] = "function"
    """OpenAI: There are functions only. Default: function."""
    function: FunctionCall
    """OpenAI: What was called."""


class ChatMessage(WireModel):
    """One message. Extra keys are tolerated: evaluation tools send some."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"role": {"const": "assistant"}}},
                {"properties": {"content": {"not": {"type": "null"}}}, "required": ["content"]},
            ]
        }
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """OpenAI: `developer` means `system`, unless the template names it."""
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    """OpenAI: Text, or parts of text. Null in an assistant's message with tool calls."""
    name: str | None = None
    """OpenAI: Handed to the template."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    """OpenAI: What the assistant called."""
    tool_call_id: str | None = None
    """OpenAI: Which call a tool's message answers."""
    reasoning: str | None = None
    """vLLM: Reasoning of an earlier answer, for templates that read it."""
    reasoning_content: str | None = None
    """vLLM: The same by its other name."""


class FunctionDefinition(WireModel):
    """A function the model may call; `parameters` is a JSON schema, passed to the template unchanged. Calls follow it if they
    are forced or the function is `strict`."""

    rules: ClassVar[Rules] = Rules(handed_on=True)

    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    """OpenAI: Its name."""
    description: str | None = None
    """OpenAI: What it does, for the model."""
    parameters: dict[str, Any] | None = None
    """OpenAI: JSON schema of its arguments. Forced calls, and those of a `strict` function, add no names to objects whose
    `properties` are given, unless `additionalProperties` is too."""
    strict: bool | None = None
    """OpenAI: Whether arguments are held to the schema. Default: false."""


class Tool(WireModel):
    """A tool on offer."""

    rules: ClassVar[Rules] = Rules(handed_on=True)

    type: Literal["function"]
    """OpenAI: There are functions only."""
    function: FunctionDefinition
    """OpenAI: The function on offer."""


class PromptEnd(WireModel):
    """The end of a conversation's prompt: the beginning of an answer, or inside the last message."""

    add_generation_prompt: bool | None = None
    """vLLM: Whether the prompt ends with the beginning of an answer. Default: true, unless continue_final_message."""
    continue_final_message: bool | None = None
    """vLLM: Go on with the last message instead of answering it. Default: false."""

    @property
    def begins_answer(self) -> bool:
        """True if an answer begins: the default, unless the last message is continued."""
        return (
            not self.continue_final_message
            if self.add_generation_prompt is None
            else self.add_generation_prompt
        )


class TemplateVariables(WireModel):
    """Variables for the chat template. Two of OpenAI's parameters are passed to a template that reads them, which is their
    meaning for an open model."""

    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM: Variables for the model's chat template, such as `enable_thinking`; those it does not read are told."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """OpenAI: Handed to the chat template; where it does not read it, the answer's header says so. Default: the template's."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """OpenAI: Likewise. Default: the template's."""

    def variables(self, read: Container[str]) -> tuple[dict[str, Any], list[str]]:
        """The variables for a template that reads the names in `read`, and the paths of those it does not read. A parameter
        takes precedence over the same name in `chat_template_kwargs`."""
        named = {name: getattr(self, name) for name in _NAMED}
        given = {name: value for name, value in named.items() if value is not None}
        kwargs = self.chat_template_kwargs or {}
        unread = [name for name in given if name not in read]
        unread += [f"chat_template_kwargs.{name}" for name in kwargs if name not in read]
        return kwargs | {name: value for name, value in given.items() if name in read}, unread


_NAMED = ("reasoning_effort", "verbosity")


class ChatPromptFields(PromptEnd, TemplateVariables):
    """The fields that the chat template sees."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """OpenAI: The conversation so far."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """OpenAI: Functions the model may call."""


class ChatRequest(PromptSideFields, StructuredFields, GenerationFields, ChatPromptFields):
    """A chat completion call."""

    rules: ClassVar[Rules] = Rules(
        refused={
            "prompt": "'prompt' belongs to /v1/completions; a chat has 'messages'.",
            "best_of": "'best_of' belongs to /v1/completions.",
        }
    )

    logprobs: bool | None = None
    """OpenAI: Whether tokens come with their log probabilities. Default: false."""
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """OpenAI: Alternatives per token; needs logprobs. Default: 0."""
    tool_choice: Annotated[str | dict[str, Any] | None, WithJsonSchema(TOOL_CHOICE)] = None
    """OpenAI: auto, none, required, or one function by name; forced calls are held to by a grammar. Default: auto."""
    parallel_tool_calls: bool | None = None
    """OpenAI: Whether one answer may hold several calls. Default: true."""
    add_special_tokens: bool | None = None
    """vLLM: Whether the tokenizer adds its own to what the template wrote, which has them already. Default: false."""
    include_reasoning: bool | None = None
    """vLLM: Whether the answer shows the reasoning apart from the content. Default: true."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None if no logprobs were requested."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def choice(self) -> ToolChoice:
        """The request's choice of tools. Raises InvalidRequest naming the field."""
        functions = []
        for place, tool in enumerate(self.tools or ()):
            asked = tool.function
            functions.append(Function(place, asked.name, asked.parameters, bool(asked.strict)))
        return tool_choice(functions, self.tool_choice, self.parallel_tool_calls is not False)

    def offered_tools(self, choice: ToolChoice) -> list[dict[str, Any]]:
        """The tools that the model sees. With tool_choice "none" it sees none, and otherwise only those that are allowed, which
        is the surest way to comply; a named tool is shown among all others."""
        if choice.mode == "none":
            return []
        shown = {one.place for one in choice.functions}
        return [
            tool.model_dump(exclude_unset=True)
            for place, tool in enumerate(self.tools or ())
            if choice.mode == "named" or place in shown
        ]

    def check(self) -> None:
        """Check the rules that types alone do not express. Raises InvalidRequest naming the field."""
        self.check_generation()
        self.check_prompt_side(bool(self.stream))
        if self.top_logprobs and not self.logprobs:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
        self.check_logprobs(self.n or 1, self.num_logprobs, "top_logprobs")
        self._check_tools()

    def _check_tools(self) -> None:
        names = set[str]()
        for place, tool in enumerate(self.tools or ()):
            name = tool.function.name
            if name in names:
                param = f"tools.{place}.function.name"
                message = f"Invalid value for '{param}': there is another function '{name}' before it."
                raise InvalidRequest(message, param=param, code="invalid_value")
            names.add(name)
