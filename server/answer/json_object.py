"""The arguments of a call as one JSON object, piece by piece, whatever the model wrote.

Valid JSON passes unchanged. What is common in models' JSON and invalid is mended: raw line breaks in strings, unknown escapes,
halves of surrogate pairs, `True`, `False` and `None`. At anything else the object ends: the rest is left out, and what is open is
closed.

    {"a": "x<line break>y"}     {"a": "x\\ny"}
    {"a": 'x', "b": 1}          {"a": null}
"""

from __future__ import annotations

import re
from enum import Enum

_BLANKS = " \t\r\n"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_CLOSING = {"{": "}", "[": "]"}
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HEX = frozenset("0123456789abcdefABCDEF")
_REPLACEMENT = "\\ufffd"
_MAX_DEPTH = 64
_MAX_SCALAR = 64
"""Most characters of a number; readers fail on numbers of thousands of digits."""


class _Mode(Enum):
    """What may come next."""

    START = "the object"
    FIRST_KEY = "a key or the end"
    KEY = "a key"
    COLON = "a colon"
    VALUE = "a value"
    FIRST_ITEM = "a value or the end"
    AFTER = "a comma or the end"
    IN_KEY = "the rest of a key"
    IN_STRING = "the rest of a string"
    SCALAR = "the rest of a number or word"
    DONE = "nothing"
    BROKEN = "nothing that counts"


class JSONObject:
    """Takes a text in pieces and gives a JSON object in pieces. One writer: the caller of `push`."""

    def __init__(self) -> None:
        self._mode = _Mode.START
        self._stack: list[str] = []
        self._pending = ""
        """Text that is valid only with what follows: blanks with a comma, an escape, or a number or word."""
        self._before_scalar = ""
        """Text that was held when a number or word began."""
        self._closing = ""
        """Text that closes what is open, once the object has broken off."""
        self._out: list[str] = []

    def push(self, text: str) -> str:
        """Take more text; returns what is certain by now."""
        at = 0
        while at < len(text) and self._mode not in (_Mode.DONE, _Mode.BROKEN):
            if self._mode in (_Mode.IN_KEY, _Mode.IN_STRING):
                at = self._string(text, at)
            else:
                at = self._structure(text[at], at)
        out = "".join(self._out)
        self._out.clear()
        return out

    def finish(self) -> str:
        """End the object, complete or not; returns what is missing of it."""
        if self._mode is _Mode.DONE:
            return ""
        if self._mode is not _Mode.BROKEN:
            self._break()
        out = "".join(self._out) + self._closing
        self._out.clear()
        self._mode, self._closing = _Mode.DONE, ""
        return out

    # Outside strings.

    def _structure(self, char: str, at: int) -> int:
        """Process one character; returns the index of the next, the same one if a scalar has ended before it."""
        if self._mode is _Mode.SCALAR:
            if char.isalnum() or char in "+-.":
                self._pending += char
                if len(self._pending) > _MAX_SCALAR:
                    self._pending = ""
                    self._break()
                return at + 1
            if not self._scalar():
                self._break()
            return at
        if char in _BLANKS:
            if self._mode is _Mode.KEY or (self._mode is _Mode.VALUE and self._pending):
                self._pending += char
            elif self._mode is not _Mode.START:
                self._out.append(char)
            return at + 1
        self._token(char)
        return at + 1

    def _token(self, char: str) -> None:
        match self._mode, char:
            case (_Mode.START, "{"):
                self._open(char)
            case (_Mode.FIRST_KEY | _Mode.KEY, '"'):
                self._emit(char)
                self._mode = _Mode.IN_KEY
            case (_Mode.COLON, ":"):
                self._emit(char)
                self._mode = _Mode.VALUE
            case (_Mode.AFTER, ","):
                self._pending = char
                self._mode = _Mode.KEY if self._stack[-1] == "{" else _Mode.VALUE
            case (_Mode.FIRST_KEY | _Mode.AFTER, "}") if self._stack[-1] == "{":
                self._close(char)
            case (_Mode.FIRST_ITEM | _Mode.AFTER, "]") if self._stack[-1] == "[":
                self._close(char)
            case (_Mode.VALUE | _Mode.FIRST_ITEM, _):
                self._value(char)
            case _:
                self._break()

    def _value(self, char: str) -> None:
        if char in _CLOSING:
            if len(self._stack) == _MAX_DEPTH:
                self._break()
            else:
                self._open(char)
        elif char == '"':
            self._emit(char)
            self._mode = _Mode.IN_STRING
        elif char == "-" or char.isalnum():
            self._before_scalar, self._pending = self._pending, char
            self._mode = _Mode.SCALAR
        else:
            self._break()

    def _scalar(self) -> bool:
        """End a number or word. False if it is neither; then it is not part of the object."""
        text = _WORDS.get(self._pending)
        if text is None and _NUMBER.fullmatch(self._pending):
            text = self._pending
        self._pending = self._before_scalar
        self._mode = _Mode.VALUE
        if text is None:
            return False
        self._emit(text)
        self._mode = _Mode.AFTER
        return True

    def _open(self, char: str) -> None:
        self._emit(char)
        self._stack.append(char)
        self._mode = _Mode.FIRST_KEY if char == "{" else _Mode.FIRST_ITEM

    def _close(self, char: str) -> None:
        self._emit(char)
        self._stack.pop()
        self._mode = _Mode.AFTER if self._stack else _Mode.DONE

    def _emit(self, text: str) -> None:
        self._out.append(self._pending + text)
        self._pending = ""

    # Inside strings.

    def _string(self, text: str, at: int) -> int:
        if self._pending:
            return self._escape(text, at)
        match = _PLAIN.match(text, at)
        end = at if match is None else match.end()
        if end > at:
            self._out.append(text[at:end])
        if end == len(text):
            return end
        char = text[end]
        if char == "\\":
            self._pending = char
        elif char == '"':
            self._emit(char)
            self._mode = _Mode.COLON if self._mode is _Mode.IN_KEY else _Mode.AFTER
        else:
            self._out.append(_CONTROL.get(char, f"\\u{ord(char):04x}"))
        return end + 1

    def _escape(self, text: str, at: int) -> int:
        """Go on with an escape, or with the second one of a surrogate pair; returns the index of the next character."""
        char = text[at]
        pair, escape_so_far = (
            (self._pending[:6], self._pending[6:]) if len(self._pending) >= 6 else ("", self._pending)
        )
        if not escape_so_far:  # a high half has come
            if char == "\\":
                self._pending += char
                return at + 1
            return self._give(_REPLACEMENT, at)
        if escape_so_far == "\\":
            if char == "u":
                self._pending += char
                return at + 1
            if pair:
                self._out.append(_REPLACEMENT)
            if char in '"\\/bfnrt':
                return self._give(escape_so_far + char, at + 1)
            return self._give("\\\\", at)  # a backslash that begins no escape
        if char not in _HEX:
            if pair:
                self._out.append(_REPLACEMENT)
            return self._give("\\" + escape_so_far, at)
        self._pending += char
        if len(escape_so_far) == 5:
            self._code_unit(pair, escape_so_far + char)
        return at + 1

    def _code_unit(self, pair: str, escape: str) -> None:
        unit = int(escape[2:], 16)
        if 0xDC00 <= unit < 0xE000:
            self._give(pair + escape if pair else _REPLACEMENT, 0)
        elif 0xD800 <= unit < 0xDC00:
            if pair:
                self._out.append(_REPLACEMENT)
            self._pending = escape
        else:
            self._give((_REPLACEMENT if pair else "") + escape, 0)

    def _give(self, text: str, at: int) -> int:
        self._pending = ""
        self._out.append(text)
        return at

    # The end.

    def _break(self) -> None:
        """End the object here: what follows does not count."""
        if self._mode is _Mode.SCALAR:
            self._scalar()
        match self._mode:
            case _Mode.START:
                missing = "{}"
            case _Mode.IN_KEY:
                missing = '":null'
            case _Mode.COLON:
                missing = ":null"
            case _Mode.VALUE if not self._pending:  # with a comma held, nothing was promised
                missing = "null"
            case _Mode.IN_STRING:
                missing = '"'
            case _:
                missing = ""
        if self._mode in (_Mode.IN_KEY, _Mode.IN_STRING) and len(self._pending) >= 6:
            missing = _REPLACEMENT + missing
        self._closing = missing + "".join(_CLOSING[one] for one in reversed(self._stack))
        self._pending = ""
        self._mode = _Mode.BROKEN
