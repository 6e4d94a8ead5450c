"""Kimi K2: a section of calls, each with an id that names the function, and a JSON object.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>
    <|tool_calls_section_end|>

As in the chat template of moonshotai/Kimi-K2-Instruct. The model's id is the call's id in the API: the template shows it with the
result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from server.answer.tools.notation import Arguments, NamedCall, OpenedNotation, json_text
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.grammar.lark import Lark

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?([\w.:/-]+?)(:\d+)?")


class KimiK2Parser(ToolParser):
    """Parser of this notation. Closing tags after a call are never shown."""

    opening = (SECTION, CALL, CALL_END, SECTION_END)
    closing = (CALL_END, SECTION_END)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if opening in (SECTION, CALL) and (yield from self._opened(opening)):
                unclosed = True
            elif opening in (CALL_END, SECTION_END) and unclosed:
                self._mark = None
            else:
                self._no_call()

    def _opened(self, opening: str) -> Wait[bool]:
        if opening == SECTION:
            char = yield from self._next()
            self._at -= len(char)
            if not (yield from self._one_of(CALL)):
                return False
        call_id = yield from self._name("<{")
        match = _ID.fullmatch(call_id)
        if match is None or not (yield from self._one_of(ARGUMENTS)):
            return False
        char = yield from self._next()
        self._at -= len(char)
        if char != "{":
            return False
        yield from self._named(match[1], call_id if match[2] else None)
        return True


class KimiK2(OpenedNotation):
    """The notation described in the module's docstring."""

    opening = SECTION
    other_openings = (CALL,)

    @property
    def literals(self) -> tuple[str, ...]:
        return (SECTION, SECTION_END, CALL, CALL_END, ARGUMENTS)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return KimiK2Parser(functions, hidden)

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        begin, middle, end = lark.literal(CALL), lark.literal(ARGUMENTS), lark.literal(CALL_END)
        calls = " | ".join(
            f"{begin} {lark.literal(f'functions.{name}:')} /0|[1-9][0-9]?/ {middle} {one.json} {end}"
            for name, one in arguments.items()
        )
        call = lark.rule("one", calls)
        return f"{call}{'+' if several else ''} {lark.literal(SECTION_END)}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        inner = "".join(
            f"{CALL}functions.{name}:{number}{ARGUMENTS}{json_text(arguments)}{CALL_END}"
            for number, (name, arguments) in enumerate(calls)
        )
        return f"{SECTION}{inner}{SECTION_END}"
