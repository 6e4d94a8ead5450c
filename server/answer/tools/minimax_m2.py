"""MiniMax-M2: calls as XML with attributes, all calls in one block.

    <minimax:tool_call>
    <invoke name="f">
    <parameter name="city">Rome</parameter>
    </invoke>
    </minimax:tool_call>

As in the chat template of MiniMaxAI/MiniMax-M2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.answer.tools.notation import Arguments, NamedCall
from server.answer.tools.parser import Functions, ToolParser
from server.answer.tools.tagged import TaggedNotation, TaggedParser, Tags
from server.grammar.lark import Lark

TAGS = Tags(
    block=("<minimax:tool_call>", "</minimax:tool_call>"),
    function='<invoke name="',
    function_name_end='">',
    function_end="</invoke>",
    parameter='<parameter name="',
    parameter_name_end='">',
    parameter_end="</parameter>",
)


class MinimaxM2Parser(TaggedParser):
    """Parser of this notation."""

    opening = (TAGS.block[0],)
    tags = TAGS


class MinimaxM2(TaggedNotation):
    """The notation described in the module's docstring."""

    tags = TAGS
    between = None

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return MinimaxM2Parser(functions, hidden)

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        calls = self._functions(lark, arguments)
        call = lark.rule("invocation", f"{lark.literal(self.tags.before_function)} ({calls})")
        end = self._end_of_block(lark)
        return f"{call}+ {end}" if several else f"{call} {end}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        tags = self.tags
        inner = "".join(tags.before_function + self._written(call) for call in calls)
        return f"{tags.block[0]}{inner}{self.after_function}{tags.block[1]}"
