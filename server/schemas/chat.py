"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.errors import InvalidRequest
from server.schemas import extras
from server.schemas.base import WireModel
from server.schemas.sampling import MAX_LOGPROBS, MAX_OUTPUT_TOKENS, GenerationFields, Integer

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
MAX_NAME_LENGTH = 1024


class ContentPart(WireModel):
    """One part of a message's content. Only text is served; nothing is ever fetched from a URL."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(WireModel):
    """What the assistant called; `arguments` is JSON in a string, as it was generated."""

    name: Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
    arguments: str | None = None


class ToolCall(WireModel):
    """A call in an earlier assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(WireModel):
    """One message. Extra keys are tolerated: evaluation tools send some."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(WireModel):
    """A function the model may call; `parameters` is a JSON schema, handed to the template as it is."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    """A tool on offer."""

    type: Literal["function"]
    function: FunctionDefinition


class PromptEnd(WireModel):
    """Where the prompt of a conversation ends: with the beginning of an answer, or inside the last message."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def begins_answer(self) -> bool:
        """True if an answer begins: by default, unless the last message goes on."""
        return (
            not self.continue_final_message
            if self.add_generation_prompt is None
            else self.add_generation_prompt
        )


class ChatPromptFields(PromptEnd):
    """What the chat template sees."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(GenerationFields, ChatPromptFields):
    """A chat completion call."""

    max_completion_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None

    @property
    def output_limit(self) -> int | None:
        """The newer name wins where both are sent."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None when no logprobs were asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools the model may see. With tool_choice "none" it sees none, which is the surest way to obey."""
        if not self.tools or self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]

    def check(self) -> None:
        """Everything that types alone do not say. Raises InvalidRequest naming the field."""
        extras.judge(self.model_extra, type(self).model_fields, also_refused=_REFUSED)
        self.check_generation()
        if self.top_logprobs and not self.logprobs:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
        self.check_logprobs(self.n or 1, self.num_logprobs, "top_logprobs")
        self._check_tool_choice()

    def _check_tool_choice(self) -> None:
        if self.tool_choice in (None, "none", "auto"):
            return
        if isinstance(self.tool_choice, dict) or self.tool_choice == "required":
            message = '\'tool_choice\' can be "auto" or "none" here; forcing a call is not supported.'
            raise InvalidRequest(message, param="tool_choice", code="unsupported_value")
        message = 'Invalid value for \'tool_choice\': it should be "none" or "auto".'
        raise InvalidRequest(message, param="tool_choice", code="invalid_value")


_REFUSED = {
    "prompt": "'prompt' belongs to /v1/completions; a chat has 'messages'.",
    "best_of": "'best_of' is not supported by this server.",
}
