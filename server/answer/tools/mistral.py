"""Mistral: `[TOOL_CALLS]` and a list of `{"name": ..., "arguments": {...}}`, or, in newer models, for each call
`[TOOL_CALLS]name[ARGS]{...}`, some with `[CALL_ID]` and an id between the two.

As in mistral-common's tokenizers (v1 to v7 write lists, v11 and v13 names) and the models' chat templates. Their templates
require ids of nine letters and digits in earlier calls.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.answer.tools.notation import (
    Arguments,
    NamedCall,
    ToolNotation,
    call_object,
    json_text,
    named_arguments,
)
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.grammar.lark import TEXT, Lark, spelled

OPEN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


class MistralParser(ToolParser):
    """Parser of all three forms."""

    opening = (OPEN,)

    def _parse(self) -> Wait[None]:
        while opening := (yield from self._outside()):
            is_call = opening == OPEN and (yield from self._list_or_name())
            if not is_call:
                self._no_call()

    def _list_or_name(self) -> Wait[bool]:
        char = yield from self._next()
        if char == "[":
            return (yield from self._list())
        self._at -= len(char)
        if char == "{":
            return (yield from self._call())
        return (yield from self._name_first())

    def _name_first(self) -> Wait[bool]:
        if not (name := (yield from self._name("[{"))):
            return False
        if (yield from self._one_of(CALL_ID)) and not (yield from self._name("[")):
            return False
        if (yield from self._one_of(ARGUMENTS)):
            char = yield from self._next()
            self._at -= len(char)
        if (yield from self._char()) != "{":
            return False
        self._at -= 1
        yield from self._named(name)
        return True

    def _new_id(self) -> str:
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


@dataclass(frozen=True)
class Mistral(ToolNotation):
    """The notation described in the module's docstring. A forced call has the form that the model's template shows."""

    has_marks: bool = False
    with_ids: bool = False

    @property
    def literals(self) -> tuple[str, ...]:
        return (OPEN, ARGUMENTS, CALL_ID)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return MistralParser(functions, hidden)

    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        one = lark.rule("one", self._one(lark, arguments))
        opening = lark.literal(OPEN)
        if self.has_marks:
            return f"({opening} {one})+" if several else f"{opening} {one}"
        more = f'(", " {one})*' if several else ""
        return f'{opening} /[ ]?/ "[" {one} {more} "]"'

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        one = lark.rule("one", self._one(lark, arguments))
        before = lark.text_before("before", OPEN)
        rest = lark.text_without("rest", TEXT + spelled(OPEN))
        if self.has_marks:
            return f"({before} {one})* {rest}" if several else f"{before} {one} | {rest}"
        more = f'(", " {one})*' if several else ""
        call = lark.rule("call", f'{before} /[ ]?/ "[" {one} {more} "]"')
        return f"{call}* {rest}" if several else f"{call} | {rest}"

    def _one(self, lark: Lark, arguments: Mapping[str, Arguments]) -> str:
        if not self.has_marks:
            head, middle = '{"name": ', ', "arguments": '
            return f'{lark.literal(head)} ({named_arguments(lark, arguments, middle)}) "}}"'
        call_id = f"{lark.literal(CALL_ID)} /[a-zA-Z0-9]{{{_ID_LENGTH}}}/ " if self.with_ids else ""
        args = lark.literal(ARGUMENTS)
        return " | ".join(
            f"{lark.literal(name)} {call_id}{args} {one.json}" for name, one in arguments.items()
        )

    def written(self, calls: Sequence[NamedCall]) -> str:
        if not self.has_marks:
            return f"{OPEN} [{', '.join(map(call_object, calls))}]"
        call_id = f"{CALL_ID}000000000" if self.with_ids else ""
        return "".join(f"{OPEN}{name}{call_id}{ARGUMENTS}{json_text(arguments)}" for name, arguments in calls)
