"""Calls as Python writes them: Llama 3.2 and 4, LFM2, Olmo 3.

    pythonic          [f(city="Rome", days=3), g()]
    llama4_pythonic   <|python_start|>[f(city="Rome")]<|python_end|>
    lfm2              <|tool_call_start|>[f(city="Rome")]<|tool_call_end|>
                      <|tool_call_start|>[{"name": "f", "arguments": {"city": "Rome"}}]<|tool_call_end|>
    olmo3             <function_calls>f(city="Rome")\\ng()</function_calls>

As in vLLM's templates for Llama, and the chat templates of LiquidAI/LFM2 and allenai/Olmo-3. Arguments are literals by
keyword, also with JSON's true, false and null. Without tags only the form marks a call: it must begin a line, and name a function
on offer. LFM2 writes objects if its system message asks for JSON, as its model card says; forced calls and history are Python's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.answer.tools.notation import Arguments, NamedCall, ToolNotation, json_text
from server.answer.tools.parser import Functions, ToolParser, Wait
from server.answer.tools.python_literals import PythonValues, python_text
from server.answer.tools.tagged import STRING_KEYWORDS, ObjectWriter
from server.answer.tools.values_grammar import ValuesGrammar
from server.grammar.lark import TEXT, Lark, spelled

_NAME = re.compile(r"[^\W\d][\w.]*")
_IN_NAME = re.compile(r"[\w.]")
_ON_A_LINE = re.compile(r"\n[ \t\r]*\[")
_FIRST = re.compile(r"[ \t\r\n]*\[")


@dataclass(frozen=True)
class Form:
    """What stands around the calls: tags, if there are any, and a list's brackets. `bare`: a list is a call without tags, too.
    `objects`: between the tags there may be JSON objects in place of calls."""

    opening: str = ""
    closing: str = ""
    bare: bool = False
    brackets: bool = True
    between: str = ", "
    objects: bool = False

    @property
    def begin(self) -> str:
        """Text before the first call."""
        return self.opening + "[" * self.brackets

    @property
    def end(self) -> str:
        """Text after the last call."""
        return "]" * self.brackets + self.closing


FORMS: Mapping[str, Form] = {
    "pythonic": Form(bare=True),
    "llama4_pythonic": Form("<|python_start|>", "<|python_end|>", bare=True),
    "lfm2": Form("<|tool_call_start|>", "<|tool_call_end|>", objects=True),
    "olmo3": Form("<function_calls>", "</function_calls>", brackets=False, between="\n"),
}


class PythonicParser(PythonValues):
    """Parser of one form. Brackets may be missing behind an opening tag."""

    def __init__(self, form: Form, functions: Functions, hidden: frozenset[str] = frozenset()) -> None:
        self._form = form
        self._fresh = True
        """Whether nothing but blanks has come since the beginning or since the last call."""
        self.opening = tuple(filter(None, (form.opening, form.closing)))  # type: ignore[misc]
        self.closing = self.opening[1:]  # type: ignore[misc]
        super().__init__(functions, hidden)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if self._form.closing and opening == self._form.closing:
                is_call, unclosed = unclosed, False
                self._mark = None if is_call else self._mark
            else:
                is_call = yield from self._calls(opening)
                unclosed = is_call
            if is_call:
                self._fresh = True
            else:
                self._no_call()

    def _find(self) -> re.Match[str] | None:
        tagged = super()._find() if self._form.opening else None
        if not self._form.bare:
            return tagged
        bare = _FIRST.match(self._text, self._at) if self._fresh else None
        bare = bare or _ON_A_LINE.search(self._text, self._at)
        return min(filter(None, (tagged, bare)), key=lambda match: match.start(), default=None)

    def _show(self, text: str) -> None:
        super()._show(text)
        self._fresh = self._fresh and not text

    def _calls(self, opening: str) -> Wait[bool]:
        """Read calls and what closes them. True if there is one."""
        is_bare = opening.endswith("[")
        bracket = is_bare
        if not is_bare:
            char = yield from self._next()
            bracket = char == "["
            self._at -= 0 if bracket else len(char)
        if self._form.objects and (yield from self._is_object()):
            return (yield from self._list() if bracket else self._call())
        if not (yield from self._one_call(is_bare)):
            return False
        while True:
            self._stay()
            char = yield from self._next()
            if bracket and char == "]":
                break
            self._at -= 0 if char in (",", ";") and char else len(char)
            if not (yield from self._one_call(is_bare)):
                self._go_back()
                break
        self._mark = None
        return True

    def _is_object(self) -> Wait[bool]:
        """Whether an object begins at the cursor. Reads nothing but blanks."""
        char = yield from self._next()
        self._at -= len(char)
        return char == "{"

    def _one_call(self, is_bare: bool) -> Wait[bool]:
        """Read a call. True if it has begun."""
        char = yield from self._next()
        self._at -= len(char)
        name = yield from self._name("(\n", _IN_NAME, self._functions if is_bare else None)
        if not _NAME.fullmatch(name) or not (yield from self._one_of("(")):
            return False
        if is_bare and name not in self._functions:
            return False
        char = yield from self._next()
        self._at -= len(char)
        if char != ")" and not re.match(r"[^\W\d]", char):
            return False
        self._begin(name)
        yield from self._keywords()
        return True

    def _keywords(self) -> Wait[None]:
        """Read the arguments of a call that has begun, to its closing parenthesis."""
        writer = ObjectWriter(self._argue)
        while (char := (yield from self._next())) != ")":
            if char == ",":
                continue
            self._at -= len(char)
            key = (yield from self._word("=)(,\n]<'\"")).strip()
            if not _NAME.fullmatch(key) or not (yield from self._one_of("=")):
                return
            writer.key(key)
            if not (yield from self._python_value(self._argue)):
                return
        writer.close()
        self.num_finished += 1


@dataclass(frozen=True)
class Pythonic(ToolNotation):
    """The notation described in the module's docstring, in one of its forms."""

    @property
    def form(self) -> Form:
        """What stands around the calls."""
        return FORMS[self.name]

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.form.opening, self.form.closing)))

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return PythonicParser(self.form, functions, hidden)

    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        return f"{lark.literal(self.form.begin)} {self._block(lark, arguments, several)}"

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        block = self._block(lark, arguments, several)
        if not self.form.opening:
            # A line that begins as a list of calls would is one.
            text = lark.text_without("text", rf"(?:{TEXT}\n)?\s*\[\s*[A-Za-z_]")
            return f"{lark.literal(self.form.begin)} {block} | {text}"
        # A line that begins as a list of calls would is one.
        forbidden = [rf"(?:{TEXT}\n)?\s*\[\s*[A-Za-z_]"] * self.form.bare
        before = lark.text_before("before", self.form.opening, *forbidden)
        bracket = '"[" ' if self.form.brackets else ""
        call = lark.rule("call", f"{before} {bracket}{block}")
        rest = lark.text_without("rest", TEXT + spelled(self.form.opening), *forbidden)
        return f"{call}* {rest}" if several else f"{call} | {rest}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        written = [
            f"{name}({', '.join(f'{key}={python_text(value)}' for key, value in arguments.items())})"
            for name, arguments in calls
        ]
        return f"{self.form.begin}{self.form.between.join(written)}{self.form.end}"

    def _block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        values = PythonValuesGrammar(lark)
        calls = [_call(lark, n, name, one, values) for n, (name, one) in enumerate(arguments.items())]
        one = lark.rule("one", " | ".join(calls))
        more = f"({lark.literal(self.form.between)} {one})*" if several else ""
        return f"{one} {more} {lark.literal(self.form.end)}"


class PythonValuesGrammar(ValuesGrammar):
    """The grammar of literals. A JSON string is one of Python's, too."""

    comma = ", "
    words = {"true": "True", "false": "False", "null": "None"}

    def listed(self, value: Any) -> str:
        return self._lark.literal(python_text(value))

    def string(self, schema: Any, arguments: Arguments) -> str:
        of_string = {key: value for key, value in schema.items() if key in STRING_KEYWORDS} if schema else {}
        return arguments.part({**of_string, "type": "string"})

    def key(self, name: str, arguments: Arguments) -> str:
        return self._lark.literal(json_text(name) + ": ")

    def any_key(self, arguments: Arguments) -> str:
        return f'{arguments.part({"type": "string"})} ": "'


class KeywordsGrammar(PythonValuesGrammar):
    """The grammar of a call's arguments: `name=value`."""

    def __init__(self, lark: Lark, number: int, values: PythonValuesGrammar) -> None:
        super().__init__(lark)
        self._number = number
        self._values = values

    def key(self, name: str, arguments: Arguments) -> str:
        if not _NAME.fullmatch(name) or "." in name:
            arguments.refuse(f"the parameter '{name[:100]}' cannot be written in the model's tool format")
        return self._lark.literal(name + "=")

    def any_key(self, arguments: Arguments) -> str:
        return '/[A-Za-z_][A-Za-z0-9_]*/ "="'

    def value(self, schema: Any, arguments: Arguments, depth: int) -> str:
        return self._values.value(schema, arguments, depth)

    def free(self, arguments: Arguments) -> str:
        return self._values.free(arguments)

    def _rule(self, expression: str) -> str:
        return self._lark.rule(f"k_{self._number}_{self._next()}", expression)


def _call(lark: Lark, number: int, name: str, arguments: Arguments, values: PythonValuesGrammar) -> str:
    """A call with its parameters in the schema's order."""
    if not _NAME.fullmatch(name):
        arguments.refuse(
            f"the function '{name[:100]}' cannot be called in the model's tool format: it is no Python name"
        )
    keywords = KeywordsGrammar(lark, number, values).members(arguments.schema, arguments, 0)
    return f'{lark.literal(name + "(")} {keywords} ")"'
