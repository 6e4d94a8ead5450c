"""DeepSeek V3.2 and V4: calls as XML, which says of each argument whether it is a string.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="f">
    <｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 writes `tool_calls` in place of `function_calls`. As in the chat templates of deepseek-ai/DeepSeek-V3.2 and V4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from server.answer.tools.minimax_m2 import MinimaxM2
from server.answer.tools.notation import Arguments, Schema
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.answer.tools.tagged import (
    ObjectWriter,
    TaggedParser,
    Tags,
    bare,
    listed_values,
    most_characters,
    standing_alone,
)
from server.answer.tools.typed import ALL, TEXT_ONLY, kinds
from server.grammar.lark import Lark

_MARK = "｜DSML｜"
_IS_STRING, _IS_JSON = 'true">', 'false">'
TAGS = Tags(
    block=(f"<{_MARK}function_calls>", f"</{_MARK}function_calls>"),
    function=f'<{_MARK}invoke name="',
    function_name_end='">',
    function_end=f"</{_MARK}invoke>",
    parameter=f'<{_MARK}parameter name="',
    parameter_name_end='" string="',
    parameter_end=f"</{_MARK}parameter>",
)
TAGS_V4 = replace(TAGS, block=(f"<{_MARK}tool_calls>", f"</{_MARK}tool_calls>"))


class DeepSeekV32Parser(TaggedParser):
    """Parser of this notation."""

    opening = (TAGS.block[0],)
    tags = TAGS

    def _argument(self, writer: ObjectWriter, key: str, schema: Schema | None) -> Wait[bool]:
        attribute = yield from self._one_of(_IS_STRING, _IS_JSON)
        if not attribute:
            return False
        return (
            yield from self._typed_value(
                writer, key, TEXT_ONLY if attribute == _IS_STRING else ALL - TEXT_ONLY
            )
        )


class DeepSeekV4Parser(DeepSeekV32Parser):
    """Parser of V4's form."""

    opening = (TAGS_V4.block[0],)
    tags = TAGS_V4


class DeepSeekV32(MinimaxM2):
    """The notation described in the module's docstring."""

    tags = TAGS

    @property
    def literals(self) -> tuple[str, ...]:
        return (*super().literals, _MARK)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return DeepSeekV32Parser(functions, hidden)

    def _key(self, key: str, value: Any) -> str:
        kind = _IS_STRING if isinstance(value, str) else _IS_JSON
        return f"{TAGS.parameter}{key}{TAGS.parameter_name_end}{kind}"

    def _parameter(self, lark: Lark, place: str, key: str, schema: Any, arguments: Arguments) -> str:
        end = lark.literal(TAGS.parameter_end + TAGS.after_parameter)
        if (values := listed_values(schema, arguments.schema)) is not None:
            texts = " | ".join(lark.literal(self._key(key, value) + bare(value)) for value in values)
            return f"({texts}) {end}"
        rules, allowed = [], kinds(schema, arguments.schema)
        if "string" in allowed:
            most = most_characters(schema, arguments)
            rules.append(f"{lark.literal(self._key(key, ''))} {self._text_value(lark, place, most)}")
        if allowed - TEXT_ONLY:
            part = arguments.part(standing_alone(schema, arguments.schema))
            rules.append(f"{lark.literal(self._key(key, None))} {part} {end}")
        return " | ".join(rules)

    def _any_parameter(self, lark: Lark, number: int, arguments: Arguments) -> str:
        begin = f'{lark.literal(TAGS.parameter)} /[^"<\\s]+/ {lark.literal(TAGS.parameter_name_end)}'
        text = f"{lark.literal(_IS_STRING)} {self._text_value(lark, f'any_{number}')}"
        end = lark.literal(TAGS.parameter_end + TAGS.after_parameter)
        return f"{begin} ({text} | {lark.literal(_IS_JSON)} {arguments.part({})} {end})"


class DeepSeekV4(DeepSeekV32):
    """V4's form."""

    tags = TAGS_V4

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return DeepSeekV4Parser(functions, hidden)
