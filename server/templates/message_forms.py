"""The forms of messages that a chat template reads, found by test renders.

In the API a content is text or a list of parts; some templates concatenate strings, some loop over parts, some do the one for
users and the other for tools. Arguments of tool calls: most templates write an object as JSON, some concatenate a string. A
message that only calls tools: some templates show its calls only if the content is none, others fail on none. Reading this
from a template's source is guesswork, with macros and variables in between. Rendering a tiny conversation in each form, and
checking whether its text appears, is reliable.

A message is passed on as it was sent if the template can read it, as transformers does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from engine.errors import InvalidRequest

Message = Mapping[str, Any]
Form = Literal["text", "part", "parts", "both"]
"""Forms of a content: a string; a list of one part, if only the first is read; a list; a string or a list."""
Empty = Literal["none", "text", "absent"]
"""Forms of a content without text: null, "", and no key."""

THINKING = "thinking"
"""Type and key of a part that holds reasoning."""
_PROBE, _SECOND, _VALUE = "cohortprobe", "cohortagain", "cohortvalue"
_REPR = re.compile(rf"""['"](?:text|thinking)['"]\s*:\s*['"]{_PROBE}""")
"""Pattern of a list of parts that was printed instead of read."""
_ARGUMENTS = {_PROBE: _VALUE}
_MEMBER = re.compile(rf"{_PROBE}(?!\\).{{0,80}}?{_VALUE}", re.DOTALL)
_PRINTED = re.compile(rf"""\{{'{_PROBE}'|\\+["']{_PROBE}""")
_ORDERS: Mapping[Empty, tuple[Empty, ...]] = {
    "none": ("none", "text", "absent"),
    "text": ("text", "none", "absent"),
    "absent": ("absent", "text", "none"),
}
"""Forms to try for each form that the caller may send, which comes first."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a city up.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name."}},
            "required": ["city"],
        },
    },
}
"""Function of the calls in the test conversations."""


class TookTooMuch(InvalidRequest):
    """Rendering was stopped because the process grew, perhaps by another request's work: this is no result on the template."""


class MessageForms:
    """The forms that one template reads. Each is tested when it is first needed, and cached: a render is pure.

    `renders` make a prompt of a conversation. There may be several, such as one with tools and one without; a form is accepted
    if one of them shows it. They raise InvalidRequest if the template refuses; any other exception, and TookTooMuch, ends the
    tests.
    """

    def __init__(self, *renders: Callable[[Sequence[Message]], str]) -> None:
        self._renders = renders
        self._contents: dict[str, Form] = {}
        self._empties: dict[tuple[Empty, bool], Empty] = {}
        self._string_arguments: bool | None = None
        self._thinking_parts: bool | None = None

    def adapt(self, messages: Sequence[Message]) -> list[Message]:
        """The same messages in the forms that the template reads. Does not modify the messages."""
        return [self._adapt(message) for message in messages]

    def _adapt(self, message: Message) -> dict[str, Any]:
        adapted = self._with_thoughts(message)
        calls = adapted.get("tool_calls")
        content = adapted.get("content")
        empty = content is None or (bool(calls) and not _text(content))
        if empty and adapted["role"] == "assistant":
            given_form: Empty = (
                "text" if content is not None else "none" if calls or "content" in adapted else "absent"
            )
            adapted = self._with_empty(adapted, self._empty_form(given_form, bool(calls)))
        elif content is not None:
            adapted["content"] = _as(self._content_form(adapted["role"]), content)
        if calls:
            convert = _with_string_arguments if self._wants_string_arguments() else _with_object_arguments
            adapted["tool_calls"] = [convert(call) for call in calls]
        return adapted

    # Contents with text.

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
        user = message if role == "user" else self._user()
        match role:
            case "user":
                conversation = [message]
            case "assistant":
                conversation = [user, message, user]
            case "tool":
                call = self._adapt(
                    {"role": "assistant", "content": None, "tool_calls": [_call({"city": "Rome"})]}
                )
                conversation = [user, call, message | {"name": "look_up", "tool_call_id": "call00001"}]
            case _:
                conversation = [message, user]
        return any(_reads(rendering, also) for rendering in self._try(conversation))

    def _user(self) -> dict[str, Any]:
        return {"role": "user", "content": _as(self._content_form("user"), "Hi")}

    # Reasoning in parts.

    def _with_thoughts(self, message: Message) -> dict[str, Any]:
        """A copy of the message. Parts with reasoning stay if the template shows them; else they become the message's
        reasoning, which the template may or may not read."""
        adapted = dict(message)
        content = message.get("content")
        if not isinstance(content, list):
            return adapted
        thoughts = [part[THINKING] for part in content if part.get("type") == THINKING]
        if thoughts and not self._shows_thinking_parts():
            adapted["content"] = [part for part in content if part.get("type") != THINKING]
            if adapted.get("reasoning_content") is None and any(thoughts):
                adapted["reasoning_content"] = "\n".join(filter(None, thoughts))
        return adapted

    def _shows_thinking_parts(self) -> bool:
        if self._thinking_parts is None:
            content = [{"type": THINKING, THINKING: _PROBE}, *_parts(_SECOND)]
            conversation = [self._user(), {"role": "assistant", "content": content}]
            tried = [*self._try(conversation), *self._try([*conversation, self._user()])]
            self._thinking_parts = any(_reads(rendering, _SECOND) for rendering in tried)
        return self._thinking_parts

    # Contents without text, and calls.

    def _with_empty(self, message: Message, form: Empty) -> dict[str, Any]:
        adapted = {name: value for name, value in message.items() if name != "content"}
        if form != "absent":
            adapted["content"] = None if form == "none" else _as(self._content_form("assistant"), "")
        return adapted

    def _empty_form(self, given_form: Empty, calls: bool) -> Empty:
        if (given_form, calls) not in self._empties:
            self._empties[given_form, calls] = self._ask_empty(given_form, calls)
        return self._empties[given_form, calls]

    def _ask_empty(self, given_form: Empty, calls: bool) -> Empty:
        """The first form that the most renders show without writing "None"; beside calls, the form with which the most renders
        show the calls, if any does. One render is not enough: a template may accept none in the last message only."""
        renderings = {form: self._try_empty(form, calls) for form in _ORDERS[given_form]}
        others = [one for form, texts in renderings.items() if form != "none" for one in texts]
        usual = min((one.count("None") for one in others or self._try([self._user()])), default=0)
        good = {
            form: [one for one in texts if form != "none" or one.count("None") <= usual]
            for form, texts in renderings.items()
        }
        if not any(good.values()):
            return "text"
        return max(good, key=lambda form: (sum(map(_shows_arguments, good[form])), len(good[form])))

    def _try_empty(self, form: Empty, calls: bool) -> list[str]:
        message = self._with_empty({"role": "assistant"}, form)
        if not calls:
            return self._try([self._user(), message, self._user()])
        arguments = json.dumps(_ARGUMENTS) if self._wants_string_arguments() else _ARGUMENTS
        return self._try_called(message | {"tool_calls": [_call(arguments)]})

    def _wants_string_arguments(self) -> bool:
        if self._string_arguments is None:
            as_object = self._come_out(_ARGUMENTS)
            self._string_arguments = not as_object and self._come_out(json.dumps(_ARGUMENTS))
        return self._string_arguments

    def _come_out(self, arguments: Any) -> bool:
        """Whether arguments of this form appear in the prompt, beside a content of any form."""
        text = _as(self._content_form("assistant"), "Well.")
        for content in ({"content": None}, {"content": ""}, {}, {"content": text}):
            message = {"role": "assistant", **content, "tool_calls": [_call(arguments)]}
            if any(map(_shows_arguments, self._try_called(message))):
                return True
        return False

    def _try_called(self, message: Message) -> list[str]:
        """The renders of a call at the end of a conversation, followed by its result (some templates show no call at the end),
        and followed by the next question (some templates omit earlier parts from there on)."""
        user = self._user()
        result = {"role": "tool", "content": "Sunny.", "name": "look_up", "tool_call_id": "call00001"}
        return [
            *self._try([user, message]),
            *self._try([user, message, result]),
            *self._try([user, message, result, user]),
        ]

    def _try(self, conversation: Sequence[Message]) -> list[str]:
        """The conversation as text, by each render that the template does not refuse."""
        renderings = []
        for render in self._renders:
            try:
                renderings.append(render(conversation))
            except TookTooMuch:
                raise  # says nothing about the form, which is remembered
            except InvalidRequest:
                continue
        return renderings


def _reads(rendering: str, also: str) -> bool:
    return _PROBE in rendering and also in rendering and not _REPR.search(rendering)


def _shows_arguments(rendering: str) -> bool:
    """Whether the text has the call's arguments: not as Python prints an object, nor as JSON in a JSON string."""
    return _MEMBER.search(rendering) is not None and not _PRINTED.search(rendering)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get(THINKING) or "") for part in content)


def _as(form: Form, content: Any) -> Any:
    if isinstance(content, str):
        return _parts(content) if form in ("part", "parts") else content
    if form in ("text", "part") and all("text" in part for part in content):
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
    """The call with its arguments as exactly the text that was sent."""
    arguments = call["function"]["arguments"] or {}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object. Text that is not a JSON object, such as arguments that were cut off, stays text:
    a conversation with such a call can continue if the template can show it."""
    arguments = arguments_object(call["function"]["arguments"] or {})
    return {**call, "function": {**call["function"], "arguments": arguments}}


def arguments_object(arguments: Any) -> Any:
    """A call's arguments as an object if they are one or its JSON, else unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments
