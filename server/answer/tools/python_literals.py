"""Python's literals, read as they are generated and handed on as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from server.answer.tools.notation import json_string_piece, json_text
from server.answer.tools.parser import Sink, ToolParser, Wait

_MAX_DEPTH = 64
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_DIGITS = {"x": 2, "u": 4, "U": 8}
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MAX_WORD = 512
"""Number of characters of the longest number that is read."""


class PythonValues(ToolParser):
    """A parser that can read these literals."""

    def _python_value(self, sink: Sink, depth: int = 0) -> Wait[bool]:
        """Hand on a literal as JSON. False if there is none, or if it does not end."""
        char = yield from self._next()
        if char in ("'", '"') and char:
            return (yield from self._python_string(char, sink))
        if char and char in "[(":
            return depth < _MAX_DEPTH and (
                yield from self._python_list("]" if char == "[" else ")", sink, depth)
            )
        if char == "{":
            return depth < _MAX_DEPTH and (yield from self._python_dict(sink, depth))
        self._at -= len(char)
        word = yield from self._word(" \t\r\n,:;=()[]{}<>'\"")
        if (json_word := _json_word(word)) is None:
            return False
        sink(json_word)
        return True

    def _python_list(self, closing: str, sink: Sink, depth: int) -> Wait[bool]:
        sink("[")
        count = 0
        while (char := (yield from self._next())) != closing:
            if char == "," and count:
                continue
            if not char:
                return False
            self._at -= 1
            if count:
                sink(", ")
            if not (yield from self._python_value(sink, depth + 1)):
                return False
            count += 1
        sink("]")
        return True

    def _python_dict(self, sink: Sink, depth: int) -> Wait[bool]:
        sink("{")
        count = 0
        while (char := (yield from self._next())) != "}":
            if char == "," and count:
                continue
            if not char:
                return False
            self._at -= 1
            if count:
                sink(", ")
            if not (yield from self._python_key(sink)) or (yield from self._next()) != ":":
                return False
            sink(": ")
            if not (yield from self._python_value(sink, depth + 1)):
                return False
            count += 1
        sink("}")
        return True

    def _python_key(self, sink: Sink) -> Wait[bool]:
        """Hand on a key: a string, or another scalar as a string."""
        char = yield from self._next()
        if char and char in "'\"":
            return (yield from self._python_string(char, sink))
        self._at -= len(char)
        word = yield from self._word(" \t\r\n,:;=()[]{}<>'\"")
        if (json_word := _json_word(word)) is None:
            return False
        sink(json_text(json_word))
        return True

    def _python_string(self, quote: str, sink: Sink) -> Wait[bool]:
        """Hand on a string, after its opening quote, which may be the first of three."""
        sink('"')
        if (yield from self._one_of(quote * 2)):
            end = quote * 3
        elif (yield from self._one_of(quote)):
            sink('"')
            return True
        else:
            end = quote
        stop = re.compile(rf"[{quote}\\]")
        while True:
            if (yield from self._one_of(end)):
                if end != quote or not (yield from self._letter_follows()):
                    break
                sink(json_string_piece(quote))
            match = (
                stop.search(self._text, self._at + 1) if self._text[self._at : self._at + 1] != "\\" else None
            )
            if self._text[self._at : self._at + 1] == "\\":
                self._at += 1
                sink(json_string_piece((yield from self._python_escape())))
                continue
            if self._at >= len(self._text) and self._ended:
                return False
            run_end = match.start() if match else len(self._text)
            sink(json_string_piece(self._text[self._at : run_end]))
            self._at = run_end
        sink('"')
        return True

    def _letter_follows(self) -> Wait[bool]:
        """Whether a letter stands at the cursor. A quote before one ends no string: LFM2.5's template writes what it is given
        between single quotes, 'it's' too, and the model writes what it has seen."""
        char = yield from self._char()
        self._at -= len(char)
        return char.isalpha()

    def _python_escape(self) -> Wait[str]:
        """The character that an escape stands for, after its backslash; "" for a line break, or at the end of the text."""
        char = yield from self._char()
        if char not in _DIGITS:
            return _ESCAPES.get(char, "\\" + char if char else "")
        digits = ""
        while len(digits) < _DIGITS[char]:
            digit = yield from self._char()
            if not digit or digit not in "0123456789abcdefABCDEF":
                self._at -= len(digit)
                return "\\" + char + digits
            digits += digit
        code = int(digits, 16)
        return "\ufffd" if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)


class _Whole(PythonValues):
    """Reads one literal that is the whole text."""

    opening = ()

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_whole = False
        super().__init__()

    def _parse(self) -> Wait[None]:
        is_value = yield from self._python_value(self.pieces.append)
        self.is_whole = is_value and not (yield from self._next())


def python_json(text: str) -> str | None:
    """The JSON of a text that is a Python literal, None if it is none."""
    parser = _Whole()
    parser.push(text)
    parser.finish()
    return "".join(parser.pieces) if parser.is_whole else None


def python_text(value: Any) -> str:
    """A JSON value as a Python literal, with JSON's double quotes."""
    match value:
        case bool() | None:
            return repr(value)
        case list():
            return f"[{', '.join(map(python_text, value))}]"
        case dict():
            return (
                "{" + ", ".join(f"{json_text(key)}: {python_text(one)}" for key, one in value.items()) + "}"
            )
    return json_text(value)


def _json_word(word: str) -> str | None:
    """A number or a name of Python's as JSON, None if it is neither."""
    if word in _WORDS:
        return _WORDS[word]
    if len(word) > _MAX_WORD:
        return None
    if _JSON_NUMBER.fullmatch(word):
        return word
    try:
        return json.dumps(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return None
    return json.dumps(number) if number - number == 0 else None
