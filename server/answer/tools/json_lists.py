"""Lists of `{"name": ..., "arguments": {...}}` behind a tag, with a closing tag or without.

    granite          <|tool_call|>[{...}, {...}]
    phi4_mini_json   <|tool_call|>[{...}]<|/tool_call|>
    jamba            <tool_calls>[{...}]</tool_calls>
    nemotron_json    <TOOLCALL>[{...}]</TOOLCALL>

As in the chat templates of ibm-granite/granite-3.x, ai21labs/Jamba, ServiceNow-AI/Apriel and nvidia/Nemotron-Nano-v2, and in
the model card of microsoft/Phi-4-mini-instruct, whose template shows tools and writes no calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.answer.tools.notation import Arguments, NamedCall, OpenedNotation, call_object, named_arguments
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.grammar.lark import Lark

TAGS: Mapping[str, tuple[str, str]] = {
    "granite": ("<|tool_call|>", ""),
    "phi4_mini_json": ("<|tool_call|>", "<|/tool_call|>"),
    "jamba": ("<tool_calls>", "</tool_calls>"),
    "nemotron_json": ("<TOOLCALL>", "</TOOLCALL>"),
}
"""Opening and closing tags; an empty one is none."""


class JsonListParser(ToolParser):
    """Parser of one of them. A single object without a list is a call too. A closing tag after calls is never shown."""

    def __init__(
        self, tags: tuple[str, str], functions: Functions, hidden: frozenset[str] = frozenset()
    ) -> None:
        self._opening, self._closing = tags
        self.opening = tuple(filter(None, tags))  # type: ignore[misc]
        self.closing = self.opening[1:]  # type: ignore[misc]
        super().__init__(functions, hidden)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if opening == self._opening and (yield from self._calls()):
                unclosed = True
            elif opening == self._closing and unclosed:
                unclosed, self._mark = False, None
            else:
                self._no_call()

    def _calls(self) -> Wait[bool]:
        char = yield from self._next()
        if char == "[":
            return (yield from self._list())
        self._at -= len(char)
        return (yield from self._call())


class JsonList(OpenedNotation):
    """The notation described in the module's docstring, with one pair of tags."""

    @property
    def tags(self) -> tuple[str, str]:
        """The opening and the closing tag."""
        return TAGS[self.name]

    @property
    def opening(self) -> str:
        return self.tags[0]

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(filter(None, self.tags))

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return JsonListParser(self.tags, functions, hidden)

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        head, middle = '{"name": ', ', "arguments": '
        one = lark.rule("one", f'{lark.literal(head)} ({named_arguments(lark, arguments, middle)}) "}}"')
        more = f'(", " {one})*' if several else ""
        return f'"[" {one} {more} {lark.literal("]" + self.tags[1])}'

    def written(self, calls: Sequence[NamedCall]) -> str:
        opening, closing = self.tags
        return f"{opening}[{', '.join(map(call_object, calls))}]{closing}"
