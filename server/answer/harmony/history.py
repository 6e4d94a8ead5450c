"""Conversations and tools in the form that the chat template of gpt-oss reads.

The template was made for one call a message and one system message at the beginning. It leaves out second calls and later system
messages without a word, and refuses a text beside reasoning and a call, a tool without a description, and texts with notation.
None of these is an error of the client. Which of them a template can show is found by rendering.

    assistant: reasoning, text, calls f and g     assistant: reasoning with the text, call f
    tool: result of f                             tool: result of f
    tool: result of g                      ->     assistant: call g
    system: be brief                              tool: result of g
                                                  user: be brief
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest
from server.answer.harmony.marks import LITERALS
from server.templates.message_forms import THINKING, TOOL, Message, TookTooMuch, arguments_object
from server.templates.template import ChatTemplate

EFFORT = "reasoning_effort"
"""Variable of the template."""
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Levels of OpenAI's API that the model was not trained on, and the closest ones that it was."""
_SYSTEM = ("system", "developer")
_LITERAL = re.compile("|".join(map(re.escape, LITERALS)))
_PROBES = ("cohortfirst", "cohortsecond")


@dataclass(frozen=True, slots=True)
class HarmonyHistory:
    """What a template can show. `several_calls`: more than one call a message. `text_beside_call`: text and reasoning beside a
    call. `late_system`: a second system message."""

    several_calls: bool
    text_beside_call: bool
    late_system: bool

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation in the template's form. Does not modify the messages."""
        out: list[Message] = [_spelled_apart(message) for message in messages]
        if not self.late_system:
            out = _one_system_message(out)
        if not self.text_beside_call:
            out = [_text_as_reasoning(message) if message.get("tool_calls") else message for message in out]
        return out if self.several_calls else _one_call_each(out)

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The tools with a text wherever the template concatenates one."""
        return [_described(tool) for tool in _spelled_apart(tools)]

    def variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The variables with a level of reasoning that the model knows."""
        level = variables.get(EFFORT)
        return {**variables, EFFORT: _EFFORTS[level]} if level in _EFFORTS else dict(variables)


def history_of(template: ChatTemplate) -> HarmonyHistory:
    """What this template can show. Rendering may take long: call it on a fenced thread."""
    first, second = _PROBES
    user, call = {"role": "user", "content": "Hi"}, _call(first)
    result = {"role": "tool", "content": "Sunny.", "name": first, "tool_call_id": first}
    several = {"role": "assistant", "content": None, "tool_calls": [call, _call(second)]}
    beside = {"role": "assistant", "content": first, "reasoning_content": second, "tool_calls": [call]}
    system = [{"role": "system", "content": first}, {"role": "system", "content": second}]
    return HarmonyHistory(
        _shows(template, [user, several, result]),
        _shows(template, [user, beside, result]),
        _shows(template, [*system, user]),
    )


def _shows(template: ChatTemplate, messages: Sequence[Message]) -> bool:
    try:
        text = template.prompt(messages, [TOOL])
    except TookTooMuch:
        raise
    except InvalidRequest:
        return False
    return all(probe in text for probe in _PROBES)


def _call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}


def _spelled_apart(value: Any) -> Any:
    """A value of JSON in which no text holds a literal, which the tokenizer would take for notation: the end of a message, in the
    middle of a user's text."""
    if isinstance(value, str):
        return _LITERAL.sub(lambda match: f"{match[0][:-2]} |>", value) if "<|" in value else value
    if isinstance(value, Mapping):
        return {name: _spelled_apart(_decoded(name, member)) for name, member in value.items()}
    return [_spelled_apart(member) for member in value] if isinstance(value, list | tuple) else value


def _decoded(name: str, value: Any) -> Any:
    """A value of a message. Arguments with escapes are decoded: a literal may be among the escaped signs."""
    escaped = name == "arguments" and isinstance(value, str) and "\\u" in value
    return arguments_object(value) if escaped else value


def _one_system_message(messages: Sequence[Message]) -> list[Message]:
    """The system messages at the beginning as one, and later ones as the user's."""
    leading = next((place for place, one in enumerate(messages) if one["role"] not in _SYSTEM), len(messages))
    out = list(messages[leading:])
    if leading == 1:
        out.insert(0, messages[0])
    elif leading:
        texts = [text for one in messages[:leading] if (text := _text(one.get("content")))]
        out.insert(0, {**messages[0], "content": "\n\n".join(texts)})
    return out[:1] + [{**one, "role": "user"} if one["role"] in _SYSTEM else one for one in out[1:]]


def _text_as_reasoning(message: Message) -> Message:
    """A message with calls, with its text behind its reasoning."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    thoughts = [message.get("reasoning_content"), *(part.get(THINKING) for part in parts)]
    texts = [text for text in (*thoughts, _text(content)) if text]
    rest = {name: value for name, value in message.items() if name not in ("content", "reasoning_content")}
    return {**rest, "content": None, "reasoning_content": "\n".join(texts)} if texts else message


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Each call in a message of its own, with its result behind it. Results that name no call keep their order."""
    out: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            out.append(message)
            continue
        results: list[Message] = []
        while place < len(messages) and messages[place]["role"] == "tool":
            results.append(messages[place])
            place += 1
        for number, call in enumerate(calls):
            head = message if number == 0 else {"role": message["role"], "content": None}
            out.append({**head, "tool_calls": [call]})
            if (result := _result(results, call.get("id"))) is not None:
                out.append(result)
        out += results
    return out


def _result(results: list[Message], call_id: str | None) -> Message | None:
    """The result of the call, which is taken out: the one with its id, else the first one without an id."""
    for place, one in enumerate(results):
        if one.get("tool_call_id") in (None, call_id):
            return results.pop(place)
    return None


def _described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool["function"]
    parameters = function.get("parameters")
    described = {**function, "description": function.get("description") or ""}
    if isinstance(parameters, Mapping) and isinstance(parameters.get("properties"), Mapping):
        properties = {name: _with_default(schema) for name, schema in parameters["properties"].items()}
        described["parameters"] = {**parameters, "properties": properties}
    return {**tool, "function": described}


def _with_default(schema: Any) -> Any:
    """The schema of a parameter, with its default as text where the template writes it as it is."""
    if not isinstance(schema, Mapping) or not (schema.get("enum") or schema.get("oneOf")):
        return schema
    if "default" not in schema or isinstance(schema["default"], str):
        return schema
    return {**schema, "default": json.dumps(schema["default"], ensure_ascii=False)}


def _text(content: Any) -> str:
    """The text of a content, in either form."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if part.get("text"))
