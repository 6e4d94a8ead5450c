"""Tools for a chat template that does not show them: a prompt in the system message, and calls and results as text.

    system       ... # Tools ... {"name": "look_up", ...} ... <tool_call> ... </tool_call>
    assistant    <tool_call> ... </tool_call>                           from `tool_calls`
    user         <tool_response> ... </tool_response>                   from messages of role `tool`

Calls and results stay as they are if the template writes calls itself, as DeepSeek V3's does. A result and the user's message
after it become one, because some templates require that roles alternate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.templates.message_forms import Message, arguments_object

Written = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
"""Type of what writes calls, functions' names with their arguments, in a format of tool calls."""

_PROMPT = """\
# Tools

You may call functions. Each line below describes one, as JSON:
{tools}

To call a function, write a call in exactly this form, with the function's name and its arguments:
{example}

Write nothing after a call.{results} If no function is needed, answer without a call."""
_RESULTS = " The next message holds the results, each within <tool_response> and </tool_response>."
_EXAMPLE = ("function_name", {"argument_name": "value"})


@dataclass(frozen=True, slots=True)
class GenericTools:
    """The generic prompt of one chat template. `writes_calls`: the template shows calls and results by itself."""

    written: Written
    writes_calls: bool

    def applied(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, reads_system: bool
    ) -> list[Message]:
        """The conversation with the prompt for these tools. It is in the system message, or in the user's first one if the
        template reads no system message. Does not modify the messages."""
        plain = list(messages) if self.writes_calls else self._as_text(messages)
        return _introduced(plain, self.prompt(tools), reads_system) if tools else plain

    def prompt(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """The text that describes tools and the form of a call."""
        lines = (json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        results = "" if self.writes_calls else _RESULTS
        return _PROMPT.format(tools="\n".join(lines), example=self.written([_EXAMPLE]), results=results)

    def _as_text(self, messages: Sequence[Message]) -> list[Message]:
        out: list[dict[str, Any]] = []
        after_result = False
        for one in map(dict, calls_as_text(messages, self.written)):
            if is_result := one["role"] == "tool":
                text = f"<tool_response>\n{_text(one.get('content'))}\n</tool_response>"
                one = {"role": "user", "content": text}
            if one["role"] == "user" and out and out[-1]["role"] == "user" and (after_result or is_result):
                out[-1] = {**out[-1], "content": _appended(out[-1].get("content"), one.get("content"))}
            else:
                out.append(one)
            after_result = is_result or (after_result and one["role"] == "user")
        return list(out)


def calls_as_text(messages: Sequence[Message], written: Written) -> list[Message]:
    """The messages with the calls of each as the end of its text. Does not modify the messages."""
    return [_with_text(message, written) if message.get("tool_calls") else message for message in messages]


def _with_text(message: Message, written: Written) -> Message:
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {
        **rest,
        "content": _appended(message.get("content"), written(list(map(_call, message["tool_calls"])))),
    }


def _introduced(messages: list[Message], prompt: str, reads_system: bool) -> list[Message]:
    first = messages[0] if messages else None
    if first is not None and first["role"] in ("system", "developer"):
        return [{**first, "content": _appended(first.get("content"), prompt, "\n\n")}, *messages[1:]]
    if reads_system:
        return [{"role": "system", "content": prompt}, *messages]
    for place, message in enumerate(messages):
        if message["role"] == "user":
            content = _appended(prompt, message.get("content"), "\n\n")
            return [*messages[:place], {**message, "content": content}, *messages[place + 1 :]]
    return [{"role": "user", "content": prompt}, *messages]


def _call(call: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    function = call["function"]
    arguments = arguments_object(function["arguments"] or {})
    return function["name"], arguments if isinstance(arguments, Mapping) else {"arguments": arguments}


def _appended(content: Any, more: Any, between: str = "\n") -> Any:
    """A content with another one after it: text if both are text, else parts."""
    if not content or not more:
        return content or more
    if isinstance(content, str) and isinstance(more, str):
        return content + between + more
    return [*_parts(content), *_parts(more)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text") or "") for part in content)
