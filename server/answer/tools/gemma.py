"""FunctionGemma and Gemma 4: `call:NAME{...}` between tags, with bare keys and marked strings.

    functiongemma   <start_function_call>call:f{city:<escape>Rome<escape>,days:3}<end_function_call>
    gemma4          <|tool_call>call:f{city:<|"|>Rome<|"|>,days:3}<tool_call|>

As in the chat templates of google/functiongemma-270m-it and google/gemma-4-31B-it. Gemma 1 to 3 have no format of their own: for
them there is the generic tool prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.answer.tools.notation import Arguments, NamedCall, OpenedNotation, json_string_piece, json_text
from server.answer.tools.parser import NAME, Functions, Sink, ToolParser, Wait
from server.answer.tools.tagged import most_characters
from server.answer.tools.values_grammar import ValuesGrammar
from server.grammar.lark import Lark, text_of

_MAX_DEPTH = 64
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Form:
    """The tags of a variant."""

    opening: str
    closing: str
    quote: str


FORMS: Mapping[str, Form] = {
    "functiongemma": Form("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": Form("<|tool_call>", "<tool_call|>", '<|"|>'),
}


class GemmaParser(ToolParser):
    """Parser of one variant. A closing tag after a call is never shown, and may be missing."""

    def __init__(self, form: Form, functions: Functions, hidden: frozenset[str] = frozenset()) -> None:
        self._form = form
        self.opening = (form.opening, form.closing)  # type: ignore[misc]
        self.closing = (form.closing,)  # type: ignore[misc]
        super().__init__(functions, hidden)

    def _parse(self) -> Wait[None]:
        unclosed = False
        while opening := (yield from self._outside()):
            if opening == self._form.opening and (yield from self._opened()):
                unclosed = True
            elif opening == self._form.closing and unclosed:
                unclosed, self._mark = False, None
            else:
                self._no_call()

    def _opened(self) -> Wait[bool]:
        char = yield from self._next()
        self._at -= len(char)
        if not (yield from self._one_of("call:")):
            return False
        name = yield from self._name("{<\n")
        if not NAME.fullmatch(name) or not (yield from self._one_of("{")):
            return False
        self._begin(name)
        if (yield from self._object(self._argue, 0)):
            self.num_finished += 1
        return True

    def _object(self, sink: Sink, depth: int) -> Wait[bool]:
        """Hand on an object, after its opening brace, as JSON. False if it does not end."""
        sink("{")
        count = 0
        while (char := (yield from self._next())) != "}":
            if char == "," and count:
                continue
            if not char:
                return False
            self._at -= 1
            sink(", " if count else "")
            if (yield from self._one_of(self._form.quote)):
                sink('"')
                if not (yield from self._until(self._form.quote, _escaped(sink))):
                    return False
                sink('"')
            else:
                sink(json_text((yield from self._word(":{}[],")).strip()))
            if (yield from self._next()) != ":":
                return False
            sink(": ")
            if not (yield from self._marked_value(sink, depth)):
                return False
            count += 1
        sink("}")
        return True

    def _marked_list(self, sink: Sink, depth: int) -> Wait[bool]:
        sink("[")
        count = 0
        while (char := (yield from self._next())) != "]":
            if char == "," and count:
                continue
            if not char:
                return False
            self._at -= 1
            sink(", " if count else "")
            if not (yield from self._marked_value(sink, depth)):
                return False
            count += 1
        sink("]")
        return True

    def _marked_value(self, sink: Sink, depth: int) -> Wait[bool]:
        char = yield from self._next()
        if char == "{":
            return depth < _MAX_DEPTH and (yield from self._object(sink, depth + 1))
        if char == "[":
            return depth < _MAX_DEPTH and (yield from self._marked_list(sink, depth + 1))
        self._at -= len(char)
        if (yield from self._one_of(self._form.quote)):
            sink('"')
            if not (yield from self._until(self._form.quote, _escaped(sink))):
                return False
            sink('"')
            return True
        word = (yield from self._word(",{}[]<")).strip()
        if not word or self._at >= len(self._text):
            return False
        sink(_WORDS.get(word) or (word if _NUMBER.fullmatch(word) else json_text(word)))
        return True


class MarkedValues(ValuesGrammar):
    """The grammar of a variant's values."""

    def __init__(self, lark: Lark, form: Form) -> None:
        super().__init__(lark)
        self._quote = lark.literal(form.quote)
        self._form = form

    def listed(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {self._lark.literal(value)} {self._quote}"
        return self._lark.literal(json_text(value))

    def string(self, schema: Any, arguments: Arguments) -> str:
        text = text_of(most_characters(schema, arguments))
        body = self._lark.text_before(f"string_{self._next()}", self._form.quote, text=text)
        return f"{self._quote} {body}"

    def key(self, name: str, arguments: Arguments) -> str:
        if set(":{}[],<\n") & set(name) or name != name.strip():
            arguments.refuse(f"the parameter '{name[:100]}' cannot be written in the model's tool format")
        return self._lark.literal(name + ":")

    def any_key(self, arguments: Arguments) -> str:
        return '/[A-Za-z_][A-Za-z0-9_-]*/ ":"'


@dataclass(frozen=True)
class Gemma(OpenedNotation):
    """The notation described in the module's docstring, in one of its variants."""

    between = ""

    @property
    def form(self) -> Form:
        """The tags."""
        return FORMS[self.name]

    @property
    def opening(self) -> str:
        return self.form.opening

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.form.opening, self.form.closing, self.form.quote)

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return GemmaParser(self.form, functions, hidden)

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        values = MarkedValues(lark, self.form)
        calls = []
        for name, one in arguments.items():
            calls.append(f"{lark.literal('call:' + name)} {values.object(one.schema, one, 0)}")
        return f"({' | '.join(calls)}) {lark.literal(self.form.closing)}"

    def written(self, calls: Sequence[NamedCall]) -> str:
        form = self.form
        return "".join(
            f"{form.opening}call:{name}{self._marked(arguments)}{form.closing}" for name, arguments in calls
        )

    def _marked(self, value: Any) -> str:
        match value:
            case str():
                return f"{self.form.quote}{value}{self.form.quote}"
            case list():
                return f"[{','.join(map(self._marked, value))}]"
            case Mapping():
                return "{" + ",".join(f"{key}:{self._marked(one)}" for key, one in value.items()) + "}"
        return json_text(value)


def _escaped(sink: Sink) -> Sink:
    return lambda text: sink(json_string_piece(text))
