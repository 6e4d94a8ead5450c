"""DeepSeek V3 and R1, and V3.1: a block of calls, each with a name and a JSON object.

    V3     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
           ```json
           {"city": "Rome"}
           ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    V3.1   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

As in the chat templates of deepseek-ai/DeepSeek-V3 and V3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.answer.tools.notation import Arguments, NamedCall, OpenedNotation, json_text
from server.answer.tools.parser import NAME, Functions, ToolParser, Wait
from server.grammar.lark import Lark

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE = "```"


class DeepSeekParser(ToolParser):
    """Parser of both forms. Closing tags after a call are never shown."""

    opening = (CALLS, CALL, CALL_END, CALLS_END)
    closing = (CALL_END, CALLS_END)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if opening in (CALLS, CALL) and (yield from self._opened(opening)):
                unclosed = True
            elif opening in (CALL_END, CALLS_END) and unclosed:
                self._mark = None
            else:
                self._no_call()

    def _opened(self, opening: str) -> Wait[bool]:
        if opening == CALLS:
            char = yield from self._next()
            self._at -= len(char)
            if not (yield from self._one_of(CALL)):
                return False
        first = yield from self._name(SEPARATOR[0])
        if not first or not (yield from self._one_of(SEPARATOR)):
            return False
        char = yield from self._next()
        self._at -= len(char)
        if char == "{":
            return (yield from self._object(first))
        if not (name := (yield from self._name("\n{"))):
            return False
        char = yield from self._next()
        self._at -= len(char)
        if (yield from self._one_of(_FENCE)):
            yield from self._word("\n{<")
            char = yield from self._next()
            self._at -= len(char)
        return char == "{" and (yield from self._object(name))

    def _object(self, name: str) -> Wait[bool]:
        if not NAME.fullmatch(name):
            return False
        finished = self.num_finished
        yield from self._named(name)
        if self.num_finished > finished:
            self._stay()
            char = yield from self._next()
            self._at -= len(char)
            if not (yield from self._one_of(_FENCE)):
                self._go_back()
            self._mark = None
        return True


@dataclass(frozen=True)
class DeepSeek(OpenedNotation):
    """The notation described in the module's docstring. `fenced`: V3's form."""

    fenced: bool = False
    opening = CALLS
    other_openings = (CALL,)

    @property
    def literals(self) -> tuple[str, ...]:
        return (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return DeepSeekParser(functions, hidden)

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        calls = []
        for name, one in arguments.items():
            before, after = self._around(name)
            calls.append(f"{lark.literal(before)} {one.json} {lark.literal(after)}")
        call = lark.rule("one", " | ".join(calls))
        more = f'("\\n"? {call})*' if several else ""
        return f"{call} {more} {lark.literal(CALLS_END)}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        written = []
        for name, arguments in calls:
            before, after = self._around(name)
            written.append(before + json_text(arguments) + after)
        return CALLS + ("\n" if self.fenced else "").join(written) + CALLS_END

    def _around(self, name: str) -> tuple[str, str]:
        """Text before and after the arguments of a call."""
        if self.fenced:
            return f"{CALL}function{SEPARATOR}{name}\n{_FENCE}json\n", f"\n{_FENCE}{CALL_END}"
        return f"{CALL}{name}{SEPARATOR}", CALL_END
