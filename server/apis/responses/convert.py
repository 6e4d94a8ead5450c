"""From the body of a response in OpenAI's form to the chat that means the same.

instructions                             a message of role system
message                                  a message of its role; those of the system that come first count as one
reasoning, message, function_call        one assistant message with reasoning, text and calls
function_call_output                     a message of role tool
tools: function, custom, namespace       functions; a custom tool's input is the only argument, `input`
text.format, tool_choice                 response_format, tool_choice
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from engine.errors import ContextLengthExceeded, InvalidRequest
from server.answer.carried_reasoning import decoded_reasoning
from server.apis.responses.encode import CalledTool
from server.apis.responses.schema import (
    CUSTOM,
    FUNCTION,
    MAX_OFFERED,
    NAMESPACE,
    InputItem,
    InputPart,
    ResponsesRequest,
    ResponsesTool,
)
from server.prepare.chat import PreparedChat
from server.prepare.field_names import FieldNames, named
from server.prepare.turns import Turn, folded_turns, naming_arguments
from server.prepare.unread_parts import placeholder
from server.schemas.chat import (
    FUNCTION_NAME,
    THOUGHTS,
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    Tool,
    ToolCall,
)
from server.schemas.structured import JsonSchemaFormat, ResponseFormat

Result = TypeVar("Result")
Prepare = Callable[[ChatRequest], Awaitable[PreparedChat]]
Placed = tuple[str, InputItem]
"""An item with its place in the body, for errors."""

_TEMPLATE_REFUSAL = "chat_template_error"
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "priority", "deadline_ms",
    "cache_salt", "parallel_tool_calls",
)  # fmt: skip
"""Fields with the same name and meaning in a chat."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_OF_SERVERS = (
    "web_search_call", "file_search_call", "code_interpreter_call", "computer_call", "computer_call_output",
    "image_generation_call", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
    "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request",
    "mcp_approval_response", "tool_search_call", "tool_search_output", "compaction", "compaction_summary",
    "ghost_snapshot", "additional_tools", "program", "program_output",
)  # fmt: skip
"""Types of items that only OpenAI's servers and models understand."""
_INPUT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_SEPARATORS = ("__", ".")
"""Texts between a namespace and a name."""

FIELD_NAMES = FieldNames(
    {
        "prompt": "input",
        "messages.*": "input",  # the chat's are others: one message of the assistant may be several items
        "continue_final_message": "input",
        "tools.#.function.*": "{tool}.*",
        "tool_choice.*": "tool_choice",
        "response_format": "text.format",
        "response_format.*": "text.format.schema",
        "max_tokens": "max_output_tokens",
    }
)
"""Names of a response's fields by their roles. `tool`: a tool's place in the body."""


@dataclass(slots=True)
class OfferedTools:
    """The tools of a body as the functions of a chat. `places` are theirs in the body."""

    functions: list[Tool] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    called: dict[str, CalledTool] = field(default_factory=dict)
    """The tools as the client names them, by the names of the functions."""
    ignored: dict[str, None] = field(default_factory=dict)

    def function_name(self, kind: str, name: str, namespace: str | None) -> str | None:
        """The name of the function that is this tool."""
        tool_wanted = CalledTool("custom" if kind == CUSTOM else "function", name, namespace)
        return next((own for own, tool in self.called.items() if tool == tool_wanted), None)

    def add(self, place: str, tool: ResponsesTool, group: ResponsesTool | None = None) -> None:
        """Add a tool, or those of a namespace. Raises InvalidRequest naming the field."""
        if tool.type == NAMESPACE and group is None:
            _required(place, "name", tool.name)
            for number, one in enumerate(tool.tools or ()):
                self.add(f"{place}.tools.{number}", one, tool)
            return
        if tool.type not in (FUNCTION, CUSTOM):
            self.ignored[f"tools[].{tool.type}" if group is None else f"tools[].tools[].{tool.type}"] = None
            return
        if len(self.functions) == MAX_OFFERED:
            message = f"'tools' should have at most {MAX_OFFERED} tools, those of namespaces included."
            raise InvalidRequest(message, "tools", "invalid_value")
        name = _required(place, "name", tool.name)
        own = self._unused(place, name, None if group is None else group.name)
        kind = "custom" if tool.type == CUSTOM else "function"
        self.called[own] = CalledTool(kind, name, None if group is None else group.name)  # type: ignore[arg-type]
        self.places.append(place)
        self.functions.append(Tool.model_construct(type="function", function=self._function(own, tool)))

    def _unused(self, place: str, name: str, namespace: str | None) -> str:
        names = [name] if namespace is None else [f"{namespace}{between}{name}" for between in _SEPARATORS]
        if not re.match(FUNCTION_NAME, names[0]):
            message = f"Invalid value for '{place}.name': '{names[0][:200]}' should match {FUNCTION_NAME}."
            raise InvalidRequest(message, f"{place}.name", "invalid_value")
        for own in names:
            if own not in self.called:
                return own
        message = f"Invalid value for '{place}.name': there is another tool '{name[:128]}' before it."
        raise InvalidRequest(message, f"{place}.name", "invalid_value")

    def _function(self, own: str, tool: ResponsesTool) -> FunctionDefinition:
        members: dict[str, Any] = {"name": own, "description": tool.description}
        if tool.type == CUSTOM:
            members |= {"description": self._description(tool), "parameters": _INPUT_SCHEMA}
        else:
            members |= {"parameters": tool.parameters, "strict": tool.strict}
        fields = {key: value for key, value in members.items() if value is not None}
        return FunctionDefinition.model_construct(**fields)

    def _description(self, tool: ResponsesTool) -> str | None:
        """The description of a custom tool, with the grammar of its input."""
        match tool.format:
            case {"type": "grammar", "definition": str(definition), "syntax": str(syntax)}:
                self.ignored["tools[].format"] = None
                text = f"'input' follows this {syntax} grammar:\n{definition}"
                return f"{tool.description}\n\n{text}" if tool.description else text
        return tool.description


@dataclass(frozen=True, slots=True)
class ConvertedResponse:
    """The chat that a body means. `fields`: those of the chat besides its messages. `ignored`: names of what has no effect.
    `auto`: whether the oldest turns may be dropped to fit the context of `max_model_len` tokens."""

    turns: Sequence[Turn]
    fields: Mapping[str, Any]
    tools: OfferedTools
    ignored: tuple[str, ...]
    auto: bool
    limit: int | None
    max_model_len: int

    async def prepared(self, prepare: Prepare) -> PreparedChat:
        """The prepared chat, whose limit on output tokens fits the context. Raises InvalidRequest with the names of the body's
        fields."""

        async def fitting(turns: Sequence[Turn]) -> PreparedChat:
            prepared = await self._taken(prepare, turns)
            tokens = len(prepared.request.prompts[0])
            self._check_room(tokens)
            limit = None if self.limit is None else min(self.limit, self.max_model_len - tokens)
            request = replace(prepared.request, max_tokens=limit)
            return replace(prepared, request=request)

        return await self._fitted(fitting)

    async def num_tokens(self, prompt: Callable[[ChatRequest], Awaitable[Sequence[int]]]) -> int:
        """The number of tokens of the prompt, whose ids `prompt` gives. It may exceed the context, unless the oldest turns are to
        be dropped. Raises InvalidRequest with the names of the body's fields."""

        async def counted(turns: Sequence[Turn]) -> int:
            tokens = len(await self._taken(prompt, turns))
            if self.auto:
                self._check_room(tokens)
            return tokens

        return await self._fitted(counted)

    async def _fitted(self, fitting: Callable[[Sequence[Turn]], Awaitable[Result]]) -> Result:
        with named(self.names):
            try:
                return await fitting(self.turns)
            except ContextLengthExceeded as error:
                return await self._shortened(fitting, error)

    async def _shortened(
        self, fitting: Callable[[Sequence[Turn]], Awaitable[Result]], error: ContextLengthExceeded
    ) -> Result:
        """What `fitting` makes of the chat without as few of its oldest turns as possible. Raises the error if that is not asked
        for or not enough."""
        first = next((at for at, turn in enumerate(self.turns) if not _of_system(turn)), 0)
        head, rest = list(self.turns[:first]), list(self.turns[first:])
        # A call's result does not stand without the call before it.
        cuts = [at for at in range(1, len(rest)) if self.auto and rest[at].role != "tool"]
        result: Result | None = None
        low, high = 0, len(cuts)
        while low < high:
            middle = (low + high) // 2
            turns_left = [*head, *filter(_of_system, rest[: cuts[middle]]), *rest[cuts[middle] :]]
            try:
                result, high = await fitting(turns_left), middle
            except ContextLengthExceeded:
                low = middle + 1
        if result is None:
            raise error
        return result

    async def _taken(
        self, prepare: Callable[[ChatRequest], Awaitable[Result]], turns: Sequence[Turn]
    ) -> Result:
        """What `prepare` makes of these turns. If the template refuses them, the same for templates that want users and
        assistants to take turns and the system to speak first."""
        try:
            with naming_arguments(turns):
                return await prepare(self._chat(turns))
        except InvalidRequest as refusal:
            folded = folded_turns(turns) if refusal.code == _TEMPLATE_REFUSAL else None
            if folded is None:
                raise
            with naming_arguments(folded):
                return await prepare(self._chat(folded))

    def _check_room(self, tokens: int) -> None:
        """Raises ContextLengthExceeded if a prompt of so many tokens leaves no room for an answer."""
        if tokens >= self.max_model_len:
            message = (
                f"This model's maximum context length is {self.max_model_len} tokens, which must hold the answer too, and "
                f"'input' has {tokens}."
            )
            raise ContextLengthExceeded(message, "input")

    def _chat(self, turns: Sequence[Turn]) -> ChatRequest:
        return ChatRequest.model_construct(messages=[turn.message() for turn in turns], **self.fields)

    @property
    def names(self) -> FieldNames:
        """The names of the body's fields."""
        return FIELD_NAMES.of_body(tool=self.tools.places.__getitem__)


def _of_system(turn: Turn) -> bool:
    return turn.role in ("system", "developer")


def converted(
    body: ResponsesRequest, items: Sequence[Placed], unread_parts: str, max_model_len: int
) -> ConvertedResponse:
    """Convert a body, whose `items` are those of earlier responses and its own. `unread_parts`: the value of `--unread-parts`.
    Raises InvalidRequest naming the field."""
    tools = OfferedTools()
    for number, tool in enumerate(body.tools or ()):
        tools.add(f"tools.{number}", tool)
    reader = _Reader(tools, unread_parts)
    turns = reader.turns(body.instructions, items)
    fields: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    fields |= {"tools": tools.functions or None, "tool_choice": _choice(body.tool_choice, tools)}
    if body.num_logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": body.num_logprobs}
    format_ = None if body.text is None else body.text.format
    if format_ is not None:
        schema = JsonSchemaFormat.model_construct(name=format_.name or "answer", schema_=format_.schema_)
        whole = schema if format_.type == "json_schema" else None
        fields["response_format"] = ResponseFormat.model_construct(type=format_.type, json_schema=whole)
    return ConvertedResponse(
        turns,
        fields,
        tools,
        (*tools.ignored, *reader.ignored),
        body.truncation == "auto",
        body.max_output_tokens,
        max_model_len,
    )


class _Reader:
    """Reads the items of one conversation. `ignored` collects names, in order."""

    def __init__(self, tools: OfferedTools, unread_parts: str) -> None:
        self.ignored: dict[str, None] = {}
        self._tools = tools
        self._unread_parts = unread_parts
        self._open: dict[str, str] = {}
        """Names of the called functions without a result so far, by the ids of the calls."""
        self._turns: list[Turn] = []

    def turns(self, instructions: str | None, items: Sequence[Placed]) -> list[Turn]:
        """The messages of the chat. Raises InvalidRequest naming the field."""
        if instructions:
            self._turns.append(Turn("system", [_text(instructions)]))
        for place, item in items:
            self._item(place, item)
        if self._open:
            message = f"No tool output found for function call {next(iter(self._open))[:100]}."
            raise InvalidRequest(message, "input", "invalid_value")
        return self._turns

    def _item(self, place: str, item: InputItem) -> None:
        match item.type:
            case None | "message":
                self._message(place, item)
            case "reasoning":
                if reasoning := self._thought(item):
                    part = ContentPart.model_construct(type="thinking", thinking=reasoning)
                    self._assistant().parts.append(part)
            case "function_call" | "custom_tool_call":
                self._call(place, item)
            case "function_call_output" | "custom_tool_call_output":
                id_ = _required(place, "call_id", item.call_id)
                if id_ not in self._open:
                    message = f"No tool call found for function call output with call_id {id_[:100]}."
                    raise InvalidRequest(message, f"{place}.call_id", "invalid_value")
                output = _contents(place, "output", item.output)
                text = "\n".join(self._texts(f"{place}.output", "input[].output[]", output))
                self._turns.append(Turn("tool", [_text(text)], tool_call_id=id_, name=self._open.pop(id_)))
            case str(kind) if kind in _OF_SERVERS:
                self.ignored[f"input[].{kind}"] = None
            case kind:
                message = f"'{place}': items of type '{kind[:50]}' are not supported here."
                raise InvalidRequest(message, f"{place}.type", "unsupported_value")

    def _message(self, place: str, item: InputItem) -> None:
        role = _required(place, "role", item.role)
        content = _contents(place, "content", item.content)
        parts = [_text(text) for text in self._texts(f"{place}.content", "input[].content[]", content)]
        if role == "assistant":
            self._assistant().parts.extend(parts)
        elif role in ("system", "developer") and self._turns and all(map(_of_system, self._turns)):
            self._turns[-1].parts.extend(parts)
        else:
            self._turns.append(Turn(role, parts or [_text("")]))

    def _assistant(self) -> Turn:
        """The message to add to: the last one, if the assistant goes on."""
        if not self._turns or self._turns[-1].role != "assistant":
            self._turns.append(Turn("assistant"))
        return self._turns[-1]

    def _thought(self, item: InputItem) -> str:
        """The text of a reasoning item, "" if there is none that can be read."""
        content = (
            [item.content] if isinstance(item.content, str) else [one.text for one in item.content or ()]
        )
        if text := "\n".join(filter(None, content)):
            return text
        if item.encrypted_content:
            if text := decoded_reasoning(item.encrypted_content) or "":
                return text
            self.ignored["input[].encrypted_content"] = None
        return "\n".join(one.text for one in item.summary or () if one.text)

    def _call(self, place: str, item: InputItem) -> None:
        id_, name = _required(place, "call_id", item.call_id), _required(place, "name", item.name)
        arguments: str | dict[str, Any] | None
        if item.type == "custom_tool_call":
            kind, text = CUSTOM, _required(place, "input", item.input)
            arguments = msgspec.json.encode({"input": text}).decode()
        else:
            kind, arguments = FUNCTION, item.arguments
            if not isinstance(arguments, dict):
                arguments = _required(place, "arguments", arguments)
        if id_ in self._open:
            message = f"Invalid value for '{place}.call_id': there is another call with this id before it."
            raise InvalidRequest(message, f"{place}.call_id", "invalid_value")
        own = self._tools.function_name(kind, name, item.namespace)
        if own is None:  # a tool that is no longer offered
            own = name if item.namespace is None else f"{item.namespace}{_SEPARATORS[0]}{name}"
        self._open[id_] = own
        function = FunctionCall.model_construct(name=own, arguments=arguments)
        call = ToolCall.model_construct(id=id_, type="function", function=function)
        turn = self._assistant()
        turn.calls.append(call)
        turn.places.append(f"{place}.{'input' if kind == CUSTOM else 'arguments'}")

    def _texts(self, place: str, path: str, content: str | Sequence[InputPart]) -> list[str]:
        """The texts of a content. Raises InvalidRequest for a part that the model cannot read."""
        if isinstance(content, str):
            return [content]
        texts = []
        for number, part in enumerate(content):
            where = f"{place}.{number}"
            if part.type in _TEXTS:
                texts.append(_required(where, "text", part.text))
            elif part.type == "refusal":
                texts.append(_required(where, "refusal", part.refusal))
            elif (unread := placeholder(part.type, self._unread_parts)) is not None:
                self.ignored[f"{path}.{part.type}"] = None
                texts.append(unread)
            elif part.type not in THOUGHTS:
                message = f"'{where}': parts of type '{part.type[:50]}' are not supported here: this model reads text only."
                raise InvalidRequest(message, f"{where}.type", "unsupported_value")
        return texts


def _text(text: str) -> ContentPart:
    return ContentPart.model_construct(type="text", text=text)


def _required(place: str, name: str, value: Result | None) -> Result:
    if value is None:
        message = f"Missing required parameter: '{place}.{name}'."
        raise InvalidRequest(message, f"{place}.{name}", "missing_required_parameter")
    return value


def _contents(place: str, name: str, value: str | Sequence[InputPart] | None) -> str | Sequence[InputPart]:
    _required(place, name, value)
    return value or ""


def _choice(choice: str | Mapping[str, Any] | None, tools: OfferedTools) -> str | dict[str, Any] | None:
    """The chat's choice of tools. Raises InvalidRequest for a forced call that no tool of the request can answer."""
    match choice:
        case None | "auto" | "none":
            return choice if tools.functions else None
        case "required" | "any":  # Mistral's name for it, as in a chat
            if tools.functions:
                return "required"
        case {"type": "function" | "custom" as kind, "name": str(name), **rest}:
            return {"type": "function", "function": {"name": _named(str(kind), name, rest, tools)}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*allowed]}:
            names = [_named(one["type"], one["name"], one, tools) for one in allowed if _is_ours(one)]
            if names:
                chosen = [{"type": "function", "function": {"name": name}} for name in names]
                return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": chosen}}
            if mode == "auto":
                return "none" if tools.functions else None
        case {"type": str(kind)} if kind not in (FUNCTION, CUSTOM, "allowed_tools"):
            message = f"'tool_choice' forces a tool of type '{kind[:50]}', which this server does not run."
            raise InvalidRequest(message, "tool_choice", "unsupported_value")
        case _:
            message = (
                'Invalid value for \'tool_choice\': it should be "none", "auto", "required", {"type": "function" or "custom", '
                '"name": ...} or {"type": "allowed_tools", "mode": "auto" or "required", "tools": [...]}.'
            )
            raise InvalidRequest(message, "tool_choice", "invalid_value")
    message = "'tool_choice' forces a call, and no tool of the request can be called here."
    raise InvalidRequest(message, "tool_choice", "invalid_value")


def _is_ours(tool: Any) -> bool:
    match tool:
        case {"type": "function" | "custom", "name": str()}:
            return True
    return False


def _named(kind: str, name: str, choice: Mapping[Any, Any], tools: OfferedTools) -> str:
    own = tools.function_name(kind, name, choice.get("namespace"))
    if own is None:
        message = f"'tool_choice' names the tool '{name[:100]}', which is not in 'tools'."
        raise InvalidRequest(message, "tool_choice", "invalid_value")
    return own
