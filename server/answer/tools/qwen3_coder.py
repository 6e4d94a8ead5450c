"""Qwen3-Coder, Qwen3.5 and others: a call as XML, an argument as the text of a tag.

    <tool_call>
    <function=f>
    <parameter=city>
    Rome
    </parameter>
    </function>
    </tool_call>

As in the chat templates of Qwen/Qwen3-Coder. The models sometimes omit `<tool_call>`, so `<function=NAME>` opens a call too if
the function is on offer.
"""

from __future__ import annotations

from server.answer.tools.parser import Functions, ToolParser, Wait
from server.answer.tools.tagged import TaggedNotation, TaggedParser, Tags

TAGS = Tags(
    block=("<tool_call>", "</tool_call>"),
    function="<function=",
    function_name_end=">",
    function_end="</function>",
    parameter="<parameter=",
    parameter_name_end=">",
    parameter_end="</parameter>",
    own_lines=True,
)


class Qwen3CoderParser(TaggedParser):
    """Parser of this notation."""

    opening = (TAGS.block[0], TAGS.function)
    tags = TAGS

    def _parse(self) -> Wait[None]:
        while opening := (yield from self._outside()):
            if opening == TAGS.block[0]:
                is_call = yield from self._block()
            elif opening == TAGS.function and (yield from self._is_offered()):
                is_call = yield from self._rest_of_function()
                if is_call:
                    yield from self._rest_of_block()
            else:
                is_call = False
            if not is_call:
                self._no_call()

    def _is_offered(self) -> Wait[bool]:
        """Whether the name at the cursor is that of a function on offer. Reads nothing."""
        at_mark = self._at - (self._mark or 0)
        name = yield from self._name(">", names=self._functions)
        self._at = (self._mark or 0) + at_mark
        return name in self._functions


class Qwen3Coder(TaggedNotation):
    """The notation described in the module's docstring."""

    tags = TAGS
    other_openings = (TAGS.function,)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return Qwen3CoderParser(functions, hidden)
