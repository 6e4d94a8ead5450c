"""Llama 3: `{"name": ..., "parameters": {...}}` as the whole answer, several with "; " between them, sometimes behind
`<|python_tag|>`.

As in the chat templates of meta-llama/Llama-3.1 and 3.2. Only its form marks such a call. So without the tag it must begin
a line and name an offered function: other JSON is an ordinary answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from server.answer.tools.notation import Arguments, NamedCall, ToolNotation, call_object, named_arguments
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.grammar.lark import TEXT, Lark, spelled

TAG = "<|python_tag|>"
_FIRST = re.compile(r"[ \t\r\n]*\{")
_BETWEEN = " \t\r\n;"
_ANOTHER = re.compile(r"[ \t\r\n;]*\{")
_ON_A_LINE = re.compile(r"\n[ \t\r]*\{|" + re.escape(TAG))
_PART = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}:,]', re.DOTALL)
"""A string, which may break off, or one of JSON's other signs."""
_MEMBERS = ("name", "type", "function", "parameters", "arguments")
"""Members of a call; Llama 3 writes the first and the fourth."""
_VALUES = {"type": ("function",)}

_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords of JSON schemas whose values are data, not schemas."""
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values map arbitrary names to schemas."""


class Llama3JsonParser(ToolParser):
    """Parser of this notation. `_fresh`: only blanks have come since the beginning or since a call."""

    opening = (TAG,)
    _fresh = True

    def _parse(self) -> Wait[None]:
        while opening := (yield from self._outside()):
            if opening == TAG:
                is_call = yield from self._call()
            elif opening.endswith("{"):
                self._at -= 1
                is_call = yield from self._call(self._functions)
            else:
                is_call = False
            if is_call:
                self._fresh = True
            else:
                self._no_call()

    def _find(self) -> re.Match[str] | None:
        if self._fresh and (match := (_ANOTHER if self.num_calls else _FIRST).match(self._text, self._at)):
            return match
        return _ON_A_LINE.search(self._text, self._at)

    def _may_be_call(self, text: str) -> bool:
        return text.lstrip(_BETWEEN).startswith(TAG) or _like_a_call(text, self._functions)

    def _trim(self, text: str) -> str:
        between_calls = self._fresh and self.num_calls > 0
        return "" if between_calls and not text.strip(_BETWEEN) else super()._trim(text)

    def _show(self, text: str) -> None:
        super()._show(text)
        self._fresh = self._fresh and not text


class Llama3Json(ToolNotation):
    """The notation described in the module's docstring. The tag is for the model's built-in tools, so a forced call omits it."""

    @property
    def literals(self) -> tuple[str, ...]:
        return (TAG,)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return Llama3JsonParser(functions, hidden)

    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        head, middle = '{"name": ', ', "parameters": '
        choices = named_arguments(lark, arguments, middle)
        call = lark.rule("call", f'{lark.literal(head)} ({choices}) "}}"')
        return f'{call} ("; " {call})*' if several else call

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        # A line that begins as a call would, in whatever order of keys, begins one.
        like_a_call = rf"(?:{TEXT}\n)?\s*\{{\s*\"(?:{'|'.join(_MEMBERS)})\""
        text = lark.text_without("text", like_a_call, TEXT + spelled(TAG))
        return f"{self.calls(lark, arguments, several)} | {text}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        return "; ".join(call_object(call, "parameters") for call in calls)

    def as_schema(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A call as a JSON schema. If the answer may be JSON too, a literal `{"name": ` does not work as an alternative: a lexer
        takes the longest match, and would read every brace as the beginning of the literal."""
        members = {"name": {"const": name}, "parameters": _moved(parameters)}
        return {
            "type": "object",
            "properties": members,
            "required": list(members),
            "additionalProperties": False,
        }


def _like_a_call(text: str, names: Collection[str]) -> bool:
    """Whether an object that breaks off has had the members of a call so far, and no others. An answer in JSON would be lost if
    all its beginnings counted as calls."""
    depth, before, key = 0, "", ""
    for match in _PART.finditer(text):
        part = match[0]
        if depth == 1 and part.startswith('"'):
            expected: Collection[str] | None = _MEMBERS
            if before == ":":
                expected = names if key == "name" else _VALUES.get(key)
            else:
                key = part.strip('"')
            is_whole = len(part) > 1 and part.endswith('"')
            if expected is not None and not _begins_one(part.strip('"'), expected, is_whole):
                return False
        depth += (part in "{[") - (part in "}]")
        before = part
    return True


def _begins_one(text: str, expected: Collection[str], is_whole: bool) -> bool:
    return text in expected if is_whole else any(one.startswith(text) for one in expected)


def _moved(schema: Any) -> Any:
    """The schema with its references adjusted to its place in `as_schema`."""
    if isinstance(schema, list):
        return [_moved(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            moved[key] = {name: _moved(one) for name, one in value.items()}
        elif key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = "#/properties/parameters" + value[1:]
        else:
            moved[key] = value if key in _DATA else _moved(value)
    return moved
