"""Seed-OSS: Qwen3-Coder's tags in a block of its own, values without line breaks of their own.

    <seed:tool_call>
    <function=f>
    <parameter=city>Rome</parameter>
    </function>
    </seed:tool_call>

As in the chat template of ByteDance-Seed/Seed-OSS-36B-Instruct.
"""

from __future__ import annotations

from dataclasses import replace

from server.answer.tools import qwen3_coder
from server.answer.tools.parser import Functions, ToolParser
from server.answer.tools.tagged import TaggedNotation, TaggedParser

TAGS = replace(qwen3_coder.TAGS, block=("<seed:tool_call>", "</seed:tool_call>"), own_lines=False)


class SeedOssParser(TaggedParser):
    """Parser of this notation."""

    opening = (TAGS.block[0],)
    tags = TAGS


class SeedOss(TaggedNotation):
    """The notation described in the module's docstring."""

    tags = TAGS

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return SeedOssParser(functions, hidden)
