"""Hermes and Qwen: `<tool_call>` newline `{"name": ..., "arguments": {...}}` newline `</tool_call>`, any number of them.

As in the chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen2.5 and Qwen3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.answer.tools.notation import Arguments, NamedCall, OpenedNotation, call_object, named_arguments
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.grammar.lark import Lark

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """Parser of this notation. A missing closing tag is tolerated; a closing tag after a call is never shown."""

    opening = (OPEN, CLOSE)
    closing = (CLOSE,)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if opening == OPEN and (yield from self._call()):
                unclosed = True
            elif opening == CLOSE and unclosed:
                unclosed, self._mark = False, None
            else:
                self._no_call()


class Hermes(OpenedNotation):
    """The notation described in the module's docstring."""

    opening = OPEN
    between = "\n"

    @property
    def literals(self) -> tuple[str, ...]:
        return (OPEN, CLOSE)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return HermesParser(functions, hidden)

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        head, middle, end = '\n{"name": ', ', "arguments": ', "}\n" + CLOSE
        choices = named_arguments(lark, arguments, middle)
        return f"{lark.literal(head)} ({choices}) {lark.literal(end)}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        return "\n".join(f"{OPEN}\n{call_object(call)}\n{CLOSE}" for call in calls)
