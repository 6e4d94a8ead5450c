"""From the body of a message in Anthropic's form to the chat that means the same.

system, system messages              messages of role system
user: text, tool_result, text        user, tool, user
assistant: thinking, text, tool_use  one assistant message with reasoning, text and calls
tools, tool_choice, output format    tools, tool_choice and parallel_tool_calls, response_format
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engine.errors import ContextLengthExceeded, InvalidRequest
from server.answer.carried_reasoning import decoded_reasoning
from server.apis.anthropic import marks as marks_of
from server.apis.anthropic.encode import call_id
from server.apis.anthropic.schema import (
    CUSTOM,
    REDACTED,
    TEXT,
    THINKING,
    TOOL_RESULT,
    TOOL_USE,
    ContentBlock,
    InputMessage,
    MessagesPrompt,
    MessagesRequest,
    OfferedTool,
    OutputFormat,
    ResultBlock,
)
from server.prepare.billing_header import without_billing_header
from server.prepare.field_names import FieldNames, named
from server.prepare.turns import Turn, folded_turns
from server.prepare.unread_parts import placeholder
from server.schemas.chat import (
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    Tool,
    ToolCall,
)
from server.schemas.structured import JsonSchemaFormat, ResponseFormat

Result = TypeVar("Result")

_TEMPLATE_REFUSAL = "chat_template_error"
_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn reasoning on and off."""
_BUDGET = "thinking_budget"
"""Variable of templates (Seed-OSS) whose models know how many tokens they may reason; 0 turns reasoning off."""
_SAMPLING = ("temperature", "top_p", "top_k", "seed", "max_tokens", "priority", "deadline_ms", "cache_salt")
"""Fields with the same name and meaning in a chat."""
_CONTENT = "messages[].content[]"
"""Path of the blocks of messages."""
_ERROR_SIGNS = ("error", "<error", "<tool_use_error")
"""Beginnings of a result that says itself that it is an error."""

FIELD_NAMES = FieldNames(
    {
        "prompt": "messages",
        "messages.*": "messages",  # the chat's are others: the system's, results of tools
        "continue_final_message": "messages",
        "tools.#.function.parameters.*": "{tool}.input_schema.*",
        "tools.#.function.*": "{tool}.*",
        "tool_choice.function.name": "tool_choice.name",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "response_format": "{format}",
        "response_format.*": "{format}.schema",
        "stop.*": "stop_sequences.*",
    }
)
"""Names of a message's fields by their roles. `tool`: a tool's place in the body. `format`: the path of the answer's format."""


@dataclass(frozen=True, slots=True)
class MarkedChat:
    """A chat, and for each block that the client has marked the same with a text behind that block."""

    chat: ChatRequest
    marked: tuple[ChatRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvertedMessages:
    """The chat that a body means. `folded`: the same for templates that want users and assistants to take turns and the system
    to speak first; None if that changes nothing. `ignored`: names of what has no effect. `names`: of the body's fields.
    `marked_names`: of `cache_control` where it is set. Each chat comes with those that have a text behind one of these blocks."""

    chat: MarkedChat
    folded: MarkedChat | None
    ignored: tuple[str, ...]
    names: FieldNames
    marked_names: tuple[str, ...] = ()

    async def prepared(self, prepare: Callable[[MarkedChat], Awaitable[Result]]) -> Result:
        """The result of `prepare` for the chat, or for the folded one if the template refuses the other. Raises what it raises,
        with the names of the body's fields."""
        try:
            with named(self.names):
                try:
                    return await prepare(self.chat)
                except InvalidRequest as refusal:
                    if refusal.code != _TEMPLATE_REFUSAL or self.folded is None:
                        raise
                    return await prepare(self.folded)
        except ContextLengthExceeded as error:
            # The words by which Anthropic's clients recognise it.
            raise ContextLengthExceeded(f"prompt is too long: {error.message}", "messages") from None


def chat_of(body: MessagesPrompt, unread_parts: str) -> ConvertedMessages:
    """Convert a body. `unread_parts`: the value of `--unread-parts`. Raises InvalidRequest naming the field."""
    reader = _Reader(unread_parts)
    turns = reader.turns(body)
    if turns and turns[-1].role == "assistant" and not turns[-1].calls and not turns[-1].parts:
        turns.pop()
    fields: dict[str, Any] = {
        name: getattr(body, name) for name in _SAMPLING if name in type(body).model_fields
    }
    if isinstance(body, MessagesRequest):
        fields["stop"] = body.stop_sequences
    if continues := bool(turns) and turns[-1].role == "assistant":
        if turns[-1].calls:
            message = (
                "The last message calls tools: their results must follow, as 'tool_result' blocks of a user."
            )
            raise InvalidRequest(message, "messages", "invalid_value")
        fields["continue_final_message"] = continues
    tools = [(place, tool) for place, tool in enumerate(body.tools or ()) if tool.type in (None, CUSTOM)]
    reader.ignored |= {
        f"tools[].{tool.type}": None for tool in body.tools or () if tool.type not in (None, CUSTOM)
    }
    fields["tools"] = _tools(tools) or None
    fields |= _choice(body, bool(tools))
    format_name, format_ = _format(body)
    if format_ is not None:
        schema = JsonSchemaFormat.model_construct(name="answer", schema_=format_.schema_)
        fields["response_format"] = ResponseFormat.model_construct(type="json_schema", json_schema=schema)
    marks = [*_marked_tools(body, tools), *reader.marks]
    if body.cache_control is not None and (last := marks_of.last_of(turns)) is not None:
        marks.append(last)
    marks_of.check(marks)
    folded = folded_turns(turns)
    return ConvertedMessages(
        _chat(turns, fields, marks),
        None if folded is None else _chat(folded, fields, marks),
        tuple(reader.ignored),
        FIELD_NAMES.of_body(tool=[f"tools.{place}" for place, _ in tools].__getitem__, format=format_name),
        tuple(mark.name for mark in marks),
    )


def _chat(turns: Sequence[Turn], fields: dict[str, Any], marks: Sequence[marks_of.Mark]) -> MarkedChat:
    def chat(turns: Sequence[Turn], tools: list[Tool] | None) -> ChatRequest:
        messages = [turn.message() for turn in turns]
        return ChatRequest.model_construct(messages=messages, **{**fields, "tools": tools})

    tools = fields["tools"]
    marked = tuple(chat(mark.turns(turns), mark.tools(tools)) for mark in marks)
    return MarkedChat(chat(turns, tools), marked)


def _marked_tools(body: MessagesPrompt, tools: Sequence[tuple[int, OfferedTool]]) -> Iterator[marks_of.Mark]:
    """A mark for each marked tool: behind it, or behind the last one before it that can be called here."""
    for place, tool in enumerate(body.tools or ()):
        count = sum(at <= place for at, _ in tools)
        if tool.cache_control is not None and count:
            yield marks_of.Mark(f"tools[].{marks_of.FIELD}", num_tools=count)


def template_variables_of(body: MessagesPrompt, read: Container[str]) -> tuple[dict[str, Any], list[str]]:
    """The variables for a chat template that reads the names in `read`, and the names of what has no effect.

    Without `thinking` the model is not to reason, as with Anthropic. If the template cannot choose, the model does as it does.
    """
    kwargs, thinking, config = body.chat_template_kwargs or {}, body.thinking, body.output_config
    thinks = thinking is not None and thinking.type != "disabled"
    variables: dict[str, Any] = {name: thinks for name in _SWITCHES if name in read}
    budget = 0 if thinking is None or not thinks else thinking.budget_tokens
    if _BUDGET in read and budget is not None:
        variables[_BUDGET] = budget
    ignored = [f"chat_template_kwargs.{name}" for name in kwargs if name not in read]
    if thinking is not None and not (variables or _BUDGET in read):
        ignored.append("thinking")
    elif thinking is not None and thinking.budget_tokens is not None and _BUDGET not in read:
        ignored.append("thinking.budget_tokens")
    if config is not None and config.effort is not None:
        if "reasoning_effort" in read:
            variables["reasoning_effort"] = config.effort
        else:
            ignored.append("output_config.effort")
    return {**variables, **kwargs}, ignored


class _Reader:
    """Reads the conversation of one body. `ignored` collects names, in order."""

    def __init__(self, unread_parts: str) -> None:
        self.ignored: dict[str, None] = {}
        self._unread_parts = unread_parts
        self.marks: list[marks_of.Mark] = []
        """Of the blocks so far, but of tools."""
        self._names: dict[str, str] = {}
        """Names of the tools called so far, by the ids of the calls."""
        self._turns: list[Turn] = []

    def turns(self, body: MessagesPrompt) -> list[Turn]:
        """The messages of the chat. Raises InvalidRequest naming the field."""
        system = (
            [(body.system, None)]
            if isinstance(body.system, str)
            else [(one.text, one.cache_control) for one in body.system or ()]
        )
        blocks = [(text, mark) for block, mark in system if (text := without_billing_header(block))]
        if blocks:
            self._joined(Turn("system"), "system[]", "\n\n", blocks)
        for index, message in enumerate(body.messages):
            self._message(f"messages.{index}", message)
        return self._turns

    def _joined(self, turn: Turn, path: str, between: str, blocks: Sequence[tuple[str, Any]]) -> None:
        """Add a turn whose text is that of these blocks, each with its mark."""
        part = _text(between.join(text for text, _ in blocks))
        self._turns.append(replace(turn, parts=[part]))
        length = -len(between)
        for text, mark in blocks:
            length += len(between) + len(text)
            if mark is not None:
                self.marks.append(marks_of.Mark(f"{path}.{marks_of.FIELD}", part, length))

    def _message(self, where: str, message: InputMessage) -> None:
        content = message.content
        if isinstance(content, str):
            self._turn(message.role).parts.append(_text(content))
            return
        if not content:
            self._turn(message.role)
        for number, block in enumerate(content):
            place = f"{where}.content.{number}"
            if message.role == "user" and block.type == TOOL_RESULT:
                self._result(place, block)
            elif message.role == "assistant" and block.type == TOOL_USE:
                call = self._call(place, block)
                self._turn("assistant").calls.append(call)
                self._mark(block, call=call)
            elif message.role == "assistant" and block.type in (THINKING, REDACTED):
                reasoning = block.thinking or decoded_reasoning(block.signature or "")
                part = ContentPart.model_construct(type=block.type, thinking=reasoning)
                self._turn("assistant").parts.append(part)
                if block.cache_control is not None:
                    self.ignored[f"{_CONTENT}.{marks_of.FIELD}"] = None
            else:
                part = _text(self._read(place, _CONTENT, block))
                self._turn(message.role).parts.append(part)
                self._mark(block, part)

    def _mark(
        self, block: ContentBlock, part: ContentPart | None = None, call: ToolCall | None = None
    ) -> None:
        if block.cache_control is not None:
            length = 0 if part is None else len(part.text or "")
            self.marks.append(marks_of.Mark(f"{_CONTENT}.{marks_of.FIELD}", part, length, call))

    def _turn(self, role: str) -> Turn:
        """The message to add to: the last one, if its author goes on."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(Turn(role))
        return self._turns[-1]

    def _call(self, place: str, block: ContentBlock) -> ToolCall:
        name, id_ = _required(place, "name", block.name), call_id(_required(place, "id", block.id))
        self._names[id_] = name
        function = FunctionCall.model_construct(name=name, arguments=block.input or {})
        return ToolCall.model_construct(id=id_, type="function", function=function)

    def _result(self, place: str, block: ContentBlock) -> None:
        id_ = call_id(_required(place, "tool_use_id", block.tool_use_id))
        content, path = block.content, f"{_CONTENT}.content[]"
        if isinstance(content, str):
            blocks: list[tuple[str, Any]] = [(content, None)]
        else:
            blocks = [
                (self._read(f"{place}.content.{number}", path, one), one.cache_control)
                for number, one in enumerate(content or ())
            ]
        text = "\n".join(one for one, _ in blocks)
        if block.is_error and not text.lstrip().lower().startswith(_ERROR_SIGNS):
            first, mark = blocks[0] if blocks else ("", None)
            blocks[:1] = [(f"Error: {first}", mark)]
        self._joined(Turn("tool", tool_call_id=id_, name=self._names.get(id_)), path, "\n", blocks)
        self._mark(block, self._turns[-1].parts[-1])

    def _read(self, place: str, path: str, block: ContentBlock | ResultBlock) -> str:
        """The text of a block. Raises InvalidRequest if it has none that a model can read."""
        text: str | None = None
        match block.type:
            case "text":
                return _required(place, "text", block.text)
            case "document":
                context = block.context if isinstance(block, ContentBlock) else None
                text = _joined(block.title, context, _document(block.source))
            case "search_result":
                text = _joined(block.title, block.source, _texts(block.content))
            case "tool_reference" if isinstance(block, ResultBlock):
                text = block.tool_name
        if text is not None:
            return text
        unread = placeholder(block.type, self._unread_parts)
        if unread is None:
            message = f"'{place}': content blocks of type '{block.type[:50]}' are not supported here: this model reads text only."
            raise InvalidRequest(message, f"{place}.type", "unsupported_value")
        self.ignored[f"{path}.{block.type}"] = None
        return unread


def _text(text: str) -> ContentPart:
    return ContentPart.model_construct(type=TEXT, text=text)


def _joined(*texts: Any) -> str | None:
    """The texts above each other; None without the last one, which is the contents."""
    if texts[-1] is None:
        return None
    return "\n".join(one for one in texts if isinstance(one, str) and one)


def _document(source: Any) -> str | None:
    """The text of a document; None if it is none."""
    match source:
        case {"type": "text", "data": str(data)}:
            return data
        case {"type": "content", "content": str(text)}:
            return text
        case {"type": "content", "content": [*blocks]}:
            return _texts(blocks)
    return None


def _texts(blocks: Any) -> str | None:
    """The text of text blocks; None if there are others."""
    if isinstance(blocks, str):
        return blocks
    if not isinstance(blocks, list):
        return None
    texts = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case ResultBlock(type="text", text=str(text)):
                texts.append(text)
            case _:
                return None
    return "\n".join(texts)


def _required(place: str, name: str, value: str | None) -> str:
    if value is None:
        message = f"Missing required parameter: '{place}.{name}'."
        raise InvalidRequest(message, f"{place}.{name}", "missing_required_parameter")
    return value


def _tools(offered: Sequence[tuple[int, OfferedTool]]) -> list[Tool]:
    """The tools as functions. Raises InvalidRequest naming the field."""
    tools, names = [], set[str]()
    for place, tool in offered:
        name = _required(f"tools.{place}", "name", tool.name)
        if tool.input_schema is None:
            _required(f"tools.{place}", "input_schema", None)
        if name in names:
            param = f"tools.{place}.name"
            message = f"Invalid value for '{param}': there is another tool '{name}' before it."
            raise InvalidRequest(message, param, "invalid_value")
        names.add(name)
        members: dict[str, Any] = {
            "name": name,
            "description": tool.description,
            "parameters": tool.input_schema,
        }
        members["strict"] = tool.strict
        fields = {key: value for key, value in members.items() if value is not None}
        function = FunctionDefinition.model_construct(**fields)
        tools.append(Tool.model_construct(type="function", function=function))
    return tools


def _choice(body: MessagesPrompt, has_tools: bool) -> dict[str, Any]:
    """The chat's fields for the choice of tools. Raises InvalidRequest naming the field."""
    choice = body.tool_choice
    if choice is None:
        return {}
    if choice.type == "tool" and choice.name is None:
        _required("tool_choice", "name", None)
    if not has_tools:
        if choice.type in ("auto", "none"):
            return {}
        message = "'tool_choice' forces a call, and no tool of the request can be called here."
        raise InvalidRequest(message, "tool_choice", "invalid_value")
    by_name = {"type": "function", "function": {"name": choice.name}}
    chosen: Any = {"auto": "auto", "any": "required", "none": "none", "tool": by_name}[choice.type]
    return {"tool_choice": chosen, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def _format(body: MessagesPrompt) -> tuple[str, OutputFormat | None]:
    """The name and the value of the field that says what form the answer has."""
    if body.output_config is not None and body.output_config.format is not None:
        return "output_config.format", body.output_config.format
    return "output_format", body.output_format
