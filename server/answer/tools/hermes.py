"""Hermes and Qwen: `<tool_call>` newline `{"name": ..., "arguments": {...}}` newline `</tool_call>`, any number of them.

As in the chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen2.5 and Qwen3.
"""

from __future__ import annotations

from collections.abc import Mapping

from server.answer.tools.notation import ToolNotation, named_arguments
from server.answer.tools.parser import ToolParser, Wait
from server.grammar.lark import TEXT, Lark, spelled

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """Parser of this notation. A missing closing tag is tolerated; a closing tag after a call is never shown."""

    opening = (OPEN, CLOSE)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if opening == OPEN and (yield from self._call()):
                unclosed = True
            elif opening == CLOSE and unclosed:
                unclosed, self._mark = False, None
            else:
                self._no_call()


class Hermes(ToolNotation):
    """The notation described in the module's docstring."""

    @property
    def literals(self) -> tuple[str, ...]:
        return (OPEN, CLOSE)

    def parser(self, names: frozenset[str], hidden: frozenset[str]) -> ToolParser:
        return HermesParser(names, hidden)

    def calls(self, lark: Lark, arguments: Mapping[str, str], several: bool) -> str:
        call = lark.rule("call", f"{lark.literal(OPEN)} {_body(lark, arguments)}")
        return f'{call} ("\\n" {call})*' if several else call

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, str], several: bool) -> str:
        before = lark.text_before("before", OPEN)
        call = lark.rule("call", f"{before} {_body(lark, arguments)}")
        rest = lark.text_without("rest", TEXT + spelled(OPEN))
        return f"{call}* {rest}" if several else f"{call} | {rest}"


def _body(lark: Lark, arguments: Mapping[str, str]) -> str:
    """A call after its opening tag."""
    head, middle, end = '\n{"name": ', ', "arguments": ', "}\n" + CLOSE
    choices = named_arguments(lark, arguments, middle)
    return f"{lark.literal(head)} ({choices}) {lark.literal(end)}"
