"""From a body in Ollama's form to the chat, completion or embedding that means the same.

chat: messages                     the same messages; results get the ids of their calls
generate: system, prompt           a message of role system, a message of role user
generate with raw or suffix        a completion
options, format, think             sampling fields, response_format, variables of the template
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from engine.errors import InvalidRequest
from server.apis.ollama.schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaGenerationFields,
    OllamaMessage,
)
from server.prepare.field_names import FieldNames
from server.prepare.turns import Turn
from server.prepare.unread_parts import placeholder
from server.schemas.chat import ChatRequest, ContentPart, FunctionCall, Tool, ToolCall
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.structured import JsonSchemaFormat, ResponseFormat

LATEST = ":latest"
"""Tag that clients add to names without one."""
_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn reasoning on and off."""
_EFFORT = "reasoning_effort"
_SAME = ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed")
"""Options with the same name and meaning in a chat."""
_REQUEST = ("model", "priority", "deadline_ms", "cache_salt")

CHAT_NAMES = FieldNames(
    {
        "prompt": "messages",
        "continue_final_message": "messages",
        "response_format.*": "format",
        "structured_outputs.*": "format",
        "max_tokens": "options.num_predict",
        "stop.*": "options.stop.*",
        "repetition_penalty": "options.repeat_penalty",
        **{name: f"options.{name}" for name in (*_SAME, "presence_penalty", "frequency_penalty")},
    }
)
"""Names of the fields of /api/chat by their roles."""
PROMPT_NAMES = FieldNames(
    {**CHAT_NAMES.rows, "prompt": "prompt", "continue_final_message": "prompt", "messages.*": "prompt"}
)
"""Those of /api/generate, whose prompt is the chat's only message."""
VECTOR_NAMES = FieldNames({"prompt": "{text}", "input": "{text}"})
"""Those of /api/embed and /api/embeddings. `text`: the text at fault."""


@dataclass(frozen=True, slots=True)
class ConvertedOllama:
    """The chat that a body means. `names`: of the body's fields. `ignored`: names of what has no effect."""

    chat: ChatRequest
    names: FieldNames
    ignored: tuple[str, ...]


def chat_of_messages(body: OllamaChatRequest, unread_parts: str) -> ConvertedOllama:
    """The chat of a body with messages. `unread_parts`: the value of `--unread-parts`. Raises InvalidRequest naming the field."""
    reader = _Reader(unread_parts)
    turns = [reader.turn(f"messages.{index}", one) for index, one in enumerate(body.messages or ())]
    fields = _fields(body)
    if continues := turns[-1].role == "assistant":
        if turns[-1].calls:
            message = "The last message calls tools: their results must follow, as messages of role 'tool'."
            raise InvalidRequest(message, "messages", "invalid_value")
        fields["continue_final_message"] = continues
    fields["tools"] = [
        Tool.model_construct(type="function", function=tool.function) for tool in body.tools or ()
    ] or None
    fields["tool_choice"] = _tool_choice(fields["tools"], body.tool_choice)
    if fields["tool_choice"] is None and body.tool_choice is not None:
        reader.ignored["tool_choice"] = None
    return _converted(turns, fields, CHAT_NAMES, reader, body)


def _tool_choice(tools: list[Tool] | None, choice: Any) -> Any:
    """The chat's `tool_choice`; None if there is nothing to choose from, or for a form that a chat does not have."""
    match choice:
        case {"type": "function", "name": str(name)}:  # as in the Responses API
            choice = {"type": "function", "function": {"name": name}}
    try:
        ChatRequest.model_construct(messages=[], tools=tools, tool_choice=choice).choice  # noqa: B018  # it checks
    except InvalidRequest:
        return None
    return choice


def chat_of_prompt(body: OllamaGenerateRequest, unread_parts: str) -> ConvertedOllama:
    """The chat of a body with a prompt for the model to answer. Raises InvalidRequest naming the field."""
    reader = _Reader(unread_parts)
    turns = [Turn("system", [_text(body.system)])] if body.system else []
    turns.append(Turn("user", [*reader.images("images", "images", body.images), _text(body.prompt or "")]))
    return _converted(turns, _fields(body), PROMPT_NAMES, reader, body)


def completion_of(body: OllamaGenerateRequest) -> CompletionRequest:
    """The completion of a body with a text to continue."""
    fields = _fields(body)
    fields["logprobs"] = (body.top_logprobs or 0) if fields.pop("logprobs") else None
    del fields["top_logprobs"]
    return CompletionRequest.model_construct(prompt=body.prompt or "", suffix=body.suffix or None, **fields)


def embedding_of(body: OllamaEmbedRequest | OllamaEmbeddingsRequest, width: int) -> EmbeddingRequest:
    """The embeddings of a body, for a model with vectors of `width` numbers. Ollama's older endpoint does not normalise them."""
    fields: dict[str, Any] = {name: getattr(body, name) for name in _REQUEST}
    if isinstance(body, OllamaEmbeddingsRequest):
        fields |= {"input": body.prompt, "use_activation": False}
    else:
        dimensions = body.dimensions if 0 < (body.dimensions or 0) < width else None
        fields |= {"input": body.input, "dimensions": dimensions}
    if isinstance(body, OllamaEmbeddingsRequest) or body.truncate is not False:
        fields |= {"truncate_prompt_tokens": -1, "truncation_side": "right"}
    return EmbeddingRequest.model_construct(**fields)


def template_variables_of(
    think: bool | str | None, read: Container[str], reasons: bool
) -> tuple[dict[str, Any], list[str]]:
    """The variables for a chat template that reads the names in `read`, and the names of what has no effect. `reasons`: the model
    reasons whether or not it is asked to."""
    if think is None:
        return {}, []
    variables: dict[str, Any] = {name: bool(think) for name in _SWITCHES if name in read}
    if isinstance(think, str) and _EFFORT in read:
        return {**variables, _EFFORT: think}, []
    served = bool(variables) or (think is True and reasons)
    return variables, [] if served and not isinstance(think, str) else ["think"]


class _Reader:
    """Reads the messages of one body. `ignored` collects names, in order."""

    def __init__(self, unread_parts: str) -> None:
        self.ignored: dict[str, None] = {}
        self._unread_parts = unread_parts
        self._open: list[_OpenCall] = []
        """Calls so far that no result has answered."""
        self._count = 0

    def turn(self, place: str, message: OllamaMessage) -> Turn:
        """A message of the chat. Raises InvalidRequest naming the field."""
        turn = Turn(message.role)
        if message.thinking and message.role == "assistant":
            turn.parts.append(ContentPart.model_construct(type="thinking", thinking=message.thinking))
        turn.parts += self.images(f"{place}.images", "messages[].images", message.images)
        if message.content:
            turn.parts.append(_text(message.content))
        if message.role == "assistant":
            turn.calls = [
                self._call(call.id, call.function.name, call.function.arguments or {})
                for call in message.tool_calls or ()
            ]
        elif message.role == "tool":
            answered = self._answered(message)
            turn.tool_call_id, turn.name = message.tool_call_id, message.tool_name
            if answered is not None:
                turn.tool_call_id, turn.name = turn.tool_call_id or answered.id, turn.name or answered.name
        return turn

    def images(self, place: str, path: str, images: Sequence[str] | None) -> list[ContentPart]:
        """Texts in place of images. Raises InvalidRequest naming the field."""
        if not images:
            return []
        unread = placeholder("image", self._unread_parts)
        if unread is None:
            message = f"'{place}' is not supported here: this model reads text only."
            raise InvalidRequest(message, place, "unsupported_value")
        self.ignored[path] = None
        return [_text(unread) for _ in images]

    def _call(self, id_: str | None, name: str, arguments: dict[str, Any]) -> ToolCall:
        self._count += 1
        # Ids that depend on nothing but the conversation: a prompt that comes back is found in the prefix cache.
        call_id = id_ or f"call_{self._count:08d}"
        self._open.append(_OpenCall(call_id, name))
        function = FunctionCall.model_construct(name=name, arguments=arguments)
        return ToolCall.model_construct(id=call_id, type="function", function=function)

    def _answered(self, message: OllamaMessage) -> _OpenCall | None:
        """The call that a result answers, which is no longer open; None if there is none."""
        call = (
            next((one for one in self._open if one.id == message.tool_call_id), None)
            or next((one for one in self._open if one.name == message.tool_name), None)
            or next(
                iter(self._open if message.tool_call_id is None and message.tool_name is None else ()), None
            )
        )
        if call is not None:
            self._open.remove(call)
        return call


@dataclass(frozen=True, slots=True)
class _OpenCall:
    id: str
    name: str


def _text(text: str) -> ContentPart:
    return ContentPart.model_construct(type="text", text=text)


def _converted(
    turns: Sequence[Turn],
    fields: dict[str, Any],
    names: FieldNames,
    reader: _Reader,
    body: OllamaGenerationFields,
) -> ConvertedOllama:
    chat = ChatRequest.model_construct(messages=[turn.message() for turn in turns], **fields)
    chat.check()
    return ConvertedOllama(chat, names, (*reader.ignored, *without_effect(body)))


def _fields(body: OllamaGenerationFields) -> dict[str, Any]:
    """The fields of a chat or completion besides its prompt. Raises InvalidRequest naming the field."""
    options = body.settings
    fields: dict[str, Any] = {name: getattr(body, name) for name in _REQUEST}
    fields |= {name: getattr(options, name) for name in _SAME} | options.penalties()
    fields |= {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs if body.logprobs else None}
    fields["stop"] = options.stops or None
    if options.num_predict is not None and options.num_predict > 0:
        fields["max_tokens"] = options.num_predict
    fields["response_format"] = _format(body)
    return fields


def _format(body: OllamaGenerationFields) -> ResponseFormat | None:
    """The format of the answer, from `format` or else from `response_format`."""
    if isinstance(body.format, dict):
        schema = JsonSchemaFormat.model_construct(name="answer", schema_=body.format)
        return ResponseFormat.model_construct(type="json_schema", json_schema=schema)
    if body.format:
        return ResponseFormat.model_construct(type="json_object")
    try:
        return ResponseFormat.model_validate(body.response_format)
    except ValidationError:
        return None


def without_effect(body: OllamaGenerationFields) -> list[str]:
    """Names of fields that are given and change nothing."""
    unread = body.response_format is not None and (bool(body.format) or _format(body) is None)
    return body.without_effect() + ["response_format"] * unread
