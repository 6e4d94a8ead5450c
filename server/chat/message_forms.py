"""The forms of messages that a chat template reads, found out by asking it.

The API knows a content as text or as a list of parts; some templates add strings, some loop over parts, some do the one
for users and the other for tools. Likewise arguments of tool calls: most templates write an object as JSON, some add a
string. Reading this from a template's source is guesswork, with macros and variables in between. Rendering a tiny
conversation in either form, and looking whether its text comes out, is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from engine.errors import InvalidRequest

Message = Mapping[str, Any]
Form = Literal["text", "part", "parts", "both"]
"""A string; a list of one part, the first being all that is read; a list; a string or a list."""

_PROBE, _SECOND = "cohortprobe", "cohortagain"
_REPR = re.compile(rf"""['"]text['"]\s*:\s*['"]{_PROBE}""")
"""A list of parts that was printed instead of read."""


class TookTooMuch(InvalidRequest):
    """Rendering was ended because the process grew, maybe by another request's work: it says nothing about the template."""


class MessageForms:
    """What one template reads. Asks it when something is needed first, and remembers: `render` is pure.

    `render` raises InvalidRequest for what the template refuses; anything else it raises, and TookTooMuch, ends the asking.
    """

    def __init__(self, render: Callable[[Sequence[Message]], str]) -> None:
        self._render = render
        self._contents: dict[str, Form] = {}
        self._string_arguments: bool | None = None

    def adapt(self, messages: Sequence[Message]) -> list[Message]:
        """The same messages in the forms the template reads. The messages themselves are not changed."""
        return [self._adapt(message) for message in messages]

    def _adapt(self, message: Message) -> Message:
        adapted = dict(message)
        content = message.get("content")
        if content is not None:
            adapted["content"] = _as(self._content_form(message["role"]), content)
        if message.get("tool_calls") and self._wants_string_arguments():
            adapted["tool_calls"] = [_with_string_arguments(call) for call in message["tool_calls"]]
        return adapted

    def _content_form(self, role: str) -> Form:
        if role not in self._contents:
            self._contents[role] = self._ask_content(role)
        return self._contents[role]

    def _ask_content(self, role: str) -> Form:
        text = self._shows(role, _PROBE)
        if self._shows(role, [*_parts(_PROBE), *_parts(_SECOND)], _SECOND):
            return "both" if text else "parts"
        return "part" if not text and self._shows(role, _parts(_PROBE)) else "text"

    def _shows(self, role: str, content: Any, also: str = "") -> bool:
        message = {"role": role, "content": content}
        # Around the message in question stands only what the template is known to read.
        user = (
            message if role == "user" else {"role": "user", "content": _as(self._content_form("user"), "Hi")}
        )
        match role:
            case "user":
                conversation = [message]
            case "assistant":
                conversation = [user, message, user]
            case "tool":
                arguments = '{"city": "Rome"}' if self._wants_string_arguments() else {"city": "Rome"}
                call = {"role": "assistant", "content": "", "tool_calls": [_call(arguments)]}
                conversation = [user, call, message | {"name": "look_up", "tool_call_id": "call00001"}]
            case _:
                conversation = [message, user]
        shown = self._try(conversation)
        return shown is not None and _PROBE in shown and also in shown and not _REPR.search(shown)

    def _wants_string_arguments(self) -> bool:
        if self._string_arguments is None:
            as_object = self._try_call({_PROBE: "Rome"})
            good = as_object is not None and f"{{'{_PROBE}'" not in as_object  # not printed as Python has it
            if good:
                self._string_arguments = False
            else:
                as_string = self._try_call(json.dumps({_PROBE: "Rome"}))
                self._string_arguments = as_string is not None and f'{{"{_PROBE}"' in as_string
        return self._string_arguments

    def _try_call(self, arguments: Any) -> str | None:
        user = {"role": "user", "content": _as(self._content_form("user"), "Hi")}
        return self._try([user, {"role": "assistant", "content": "", "tool_calls": [_call(arguments)]}])

    def _try(self, conversation: Sequence[Message]) -> str | None:
        try:
            return self._render(conversation)
        except TookTooMuch:
            raise  # says nothing about the form, which is remembered
        except InvalidRequest:
            return None


def _as(form: Form, content: Any) -> Any:
    if isinstance(content, str):
        return _parts(content) if form in ("part", "parts") else content
    if form in ("text", "part"):
        text = "\n".join(part["text"] for part in content)
        return text if form == "text" else _parts(text)
    return content


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _call(arguments: Any) -> dict[str, Any]:
    return {
        "id": "call00001",
        "type": "function",
        "function": {"name": "look_up", "arguments": arguments},
    }


def _with_string_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}
