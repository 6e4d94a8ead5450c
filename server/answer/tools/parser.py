"""The base of the parsers of all notations.

A parser is written as if all text were present: it reads characters, and when there are no more it waits (`yield`) until
`push` brings some. So its result cannot depend on how the text is cut into pieces. Text is held back only while it may still
turn out to be notation; the arguments of a call are handed on as they are written.

    text  "Well. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>"
           shown|held until the call is certain .......|handed on |dropped

A call is certain once its name has been read and its arguments have begun. Text that turns out not to be a call is shown. If a
limit cuts the text off where it may still become notation, what is held back is dropped: it is no text that the model meant.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from server.answer.cut_off import cut_tag
from server.answer.tools.events import CallArguments, CallBegun, Event

Result = TypeVar("Result")
Wait = Generator[None, None, Result]
"""Type of a part of a parser: a generator that yields whenever it needs more text."""
Sink = Callable[[str], None]
Functions = Mapping[str, Mapping[str, Any] | None]
"""Type of the functions on offer: the JSON schema of each one's arguments by its name, None if it takes none."""

MAX_UNCERTAIN = 16384
"""Number of characters held back while they may be a call; no model writes longer names, or longer keys before a name."""

NAME = re.compile(r"[\w.:/-]+")
"""Names of functions."""

_BLANKS = " \t\r\n"
_IN_STRING = re.compile(r'["\\]')
_IN_NAME = re.compile(r'["\\\x00-\x1f]')
"""Signs in a string, with those that no string may contain."""
_STRUCTURE = re.compile(r'["{}\[\]]')
_SCALAR_END = re.compile(r"[\s,\]}]")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ARGUMENTS = ("arguments", "parameters")


class CallParser(Protocol):
    """What reads the calls of one choice. One writer: the caller of `push` and `finish`."""

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""

    @property
    def num_finished(self) -> int:
        """Number of calls that are complete."""

    def push(self, text: str) -> list[Event]:
        """Take more text; returns the events that are certain by now, in order."""

    def finish(self, cut_before: str | None = None) -> list[Event]:
        """End the choice: as `ToolParser.finish`."""


class ToolParser(ABC):
    """Reads one choice's text. One writer: the caller of `push` and `finish`.

    `functions` are those on offer; names alone mean that their schemas are unknown. `hidden` is notation that consists of special
    tokens of the model: it is never shown, even where it did not begin a call.
    """

    opening: ClassVar[tuple[str, ...]]
    """Literals that may open a call in the text, and those of `closing`."""
    closing: ClassVar[tuple[str, ...]] = ()
    """Literals that are notation only behind a call."""

    def __init__(
        self, functions: Functions | Collection[str] = (), hidden: frozenset[str] = frozenset()
    ) -> None:
        self.num_calls = 0
        self.num_finished = 0
        """Number of calls whose last brace has come."""
        self._functions: Functions = functions if isinstance(functions, Mapping) else dict.fromkeys(functions)
        self._hidden = hidden
        literals = self._all_literals = (*self.opening, *sorted(hidden - set(self.opening)))
        self._literals = re.compile("|".join(map(re.escape, literals)) or "(?!)")
        self._beginnings = frozenset(one[:n] for one in literals for n in range(1, len(one)))
        self._firsts = frozenset(one[0] for one in literals)
        self._longest = max(map(len, literals), default=1) - 1
        self._text = ""
        self._at = 0
        """Cursor: the text before it is processed, unless there is a mark."""
        self._mark: int | None = None
        """Mark: index where the text begins that may be a call, including blanks before it."""
        self._after_opening = 0
        """Index up to which text is shown, and where parsing continues, if it is not a call."""
        self._ended = False
        self._in_text = False
        """Whether the parser waits in text, outside of anything that may be a call."""
        self._has_begun = False
        self._complete = False
        """Whether the arguments of the call that begun last are complete, and only its own end is missing."""
        self._out: list[Event] = []
        self._pieces: list[str] = []
        """Pieces of arguments that are not in `_out` yet: one push makes one event of them."""
        self._run = self._parse()

    def push(self, text: str) -> list[Event]:
        """Take more text; returns the events that are certain by now, in order."""
        if not text:
            return []
        self._drop_read()
        self._text += text
        return self._advance()

    def finish(self, cut_before: str | None = None) -> list[Event]:
        """End the choice. Text that has not become a call is shown, if the model itself ended its answer. If something else cut
        it off, text that could still have become notation is dropped: `cut_before` is the text that is known to follow, such as
        a stop string, "" if none is known."""
        self._ended = True
        if cut_before is None:
            return self._advance()
        if self._in_text:
            num_pending = self._held_at_end()
            closing = () if self.num_calls else self.closing
            literals = [one for one in self._all_literals if one not in closing]
            if num_pending and cut_tag(self._text[-num_pending:], cut_before, *literals):
                visible = self._trim(self._text[self._at : len(self._text) - num_pending])
                self._text = self._text[: self._at] + visible
            return self._advance()
        if self._mark is not None and not self._may_be_call(self._text[self._mark :] + cut_before):
            return self._advance()
        self.num_finished += self._complete
        return []

    def _advance(self) -> list[Event]:
        next(self._run, None)
        self._join_pieces()
        out, self._out = self._out, []
        return out

    def _drop_read(self) -> None:
        read = self._at if self._mark is None else self._mark
        self._text = self._text[read:]
        self._at -= read
        self._after_opening -= read
        if self._mark is not None:
            self._mark = 0

    # Notations differ in these.

    @abstractmethod
    def _parse(self) -> Wait[None]:
        """Parse the whole text."""

    def _trim(self, text: str) -> str:
        """The text before a call, without the notation at its end: blanks, here."""
        return text.rstrip(_BLANKS)

    def _may_be_call(self, text: str) -> bool:
        """Whether text that was held back, and breaks off, is so much like a call that it is not shown."""
        return bool(text.strip())

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def _find(self) -> re.Match[str] | None:
        """The next opening at or after the cursor."""
        return self._literals.search(self._text, self._at)

    # Waiting, text, and what may be a call.

    def _more(self) -> Wait[bool]:
        """Wait for more text; False if the text has ended, or if too much is held back already."""
        if self._ended or (self._mark is not None and self._at - self._mark > MAX_UNCERTAIN):
            return False
        yield
        return True

    def _outside(self) -> Wait[str]:
        """Show text up to the next opening and put the mark there; returns the opening, "" at the end of the text."""
        while True:
            num_pending = self._held_at_end()
            # A literal within what may become a longer one has to wait.
            if (match := self._find()) and (self._ended or match.start() <= len(self._text) - num_pending):
                before = self._trim(self._text[self._at : match.start()])
                self._show(before)
                self._mark = self._at + len(before)
                self._at = self._after_opening = match.end()
                return match[0]
            ready = self._trim(self._text[self._at : len(self._text) - num_pending])
            self._show(ready)
            self._at += len(ready)
            self._in_text = True
            more = yield from self._more()
            self._in_text = False
            if not more:
                rest = self._text[self._at :]
                if not self.num_calls or self._trim(rest):
                    self._show(rest)
                self._at = len(self._text)
                return ""

    def _held_at_end(self) -> int:
        """Number of characters at the end that may begin an opening."""
        longest = min(self._longest, len(self._text) - self._at)
        tail = self._text[len(self._text) - longest :]
        if not any(first in tail for first in self._firsts):
            return 0
        for length in range(longest, 0, -1):
            if self._text[-length:] in self._beginnings:
                return length
        return 0

    def _show(self, text: str) -> None:
        if text:
            self._join_pieces()
            self._out.append(text)

    def _no_call(self) -> None:
        """Treat the text from the mark as text: show its opening, and search for another opening after it."""
        assert self._mark is not None
        visible = self._text[self._mark : self._after_opening]
        for notation in self._hidden:
            visible = visible.replace(notation, "")
        self._show(visible)
        self._mark, self._at = None, self._after_opening

    # A call.

    def _begin(self, name: str, call_id: str | None = None) -> None:
        self._join_pieces()
        self._out.append(CallBegun(self.num_calls, call_id or self._new_id(), name))
        self.num_calls += 1
        self._has_begun, self._mark = True, None

    def _argue(self, text: str) -> None:
        self._pieces.append(text)

    def _join_pieces(self) -> None:
        if text := "".join(self._pieces):
            self._out.append(CallArguments(self.num_calls - 1, text))
        self._pieces.clear()

    def _call(self, functions: Functions | None = None) -> Wait[bool]:
        """Read an object with a name and arguments, starting at its brace. With `functions`, other names are not calls.

        True if it was a call, even one without an end; False leaves the mark where it was.
        """
        self._has_begun = self._complete = False
        name, early = None, list[str]()
        if (yield from self._next()) != "{":
            return False
        while (char := (yield from self._next())) != "}":
            if char == ",":
                continue
            key = (yield from self._string()) if char == '"' else None
            if key is None or (yield from self._next()) != ":":
                return self._broken(char)
            if key == "name" and name is None:
                name = (yield from self._string()) if (yield from self._next()) == '"' else None
                if not name or (functions is not None and name not in functions):
                    return False
            elif key in _ARGUMENTS and not self._has_begun and not early:
                if not (yield from self._arguments(name, early.append)):
                    return self._has_begun
                self._complete = self._has_begun
            elif not (yield from self._value(_ignore)):
                return self._has_begun
        if not self._has_begun:
            if name is None:
                return False
            self._begin(name)
            self._argue("".join(early) or "{}")
        self.num_finished += 1
        self._complete = False
        return True

    def _list(self) -> Wait[bool]:
        """Read the objects of a list, after its opening bracket. True if the first one was a call."""
        if not (yield from self._call()):
            return False
        while True:
            self._stay()
            char = yield from self._next()
            if char == "]":
                break
            if char != "," or not (yield from self._call()):
                self._go_back()
                break
        self._mark = None
        return True

    def _named(self, name: str, call_id: str | None = None) -> Wait[None]:
        """Begin a call of which the name is known, and read its arguments: the object at the cursor."""
        self._begin(name, call_id)
        if (yield from self._balanced(self._argue)):
            self.num_finished += 1

    def _stay(self) -> None:
        """After a call: hold text back from the cursor on, until it is clear whether it is notation."""
        self._mark = self._after_opening = self._at

    def _go_back(self) -> None:
        """The text held back by `_stay` is no notation: read it again as text."""
        if self._mark is not None:
            self._at, self._mark = self._mark, None

    def _broken(self, char: str) -> bool:
        """Handle a character that cannot continue the object: the text after the call remains to be read."""
        if self._has_begun:
            self._at -= len(char)
            self.num_finished += 1
        self._complete = False
        return self._has_begun

    def _arguments(self, name: str | None, early: Sink) -> Wait[bool]:
        """Hand on the arguments: an object, an object in a string, or null. Before the name is known they go to `early`."""

        def emit(text: str) -> None:
            if name is None:
                early(text)
            else:
                if not self._has_begun:
                    self._begin(name)
                self._argue(text)

        char = yield from self._next()
        if char == "{":
            self._at -= 1
            return (yield from self._balanced(emit))
        if char == '"':
            return (yield from self._quoted_object(emit))
        if char == "n" and (yield from self._literal("ull")):
            emit("{}")
            return True
        return False

    # Characters and values.

    def _char(self) -> Wait[str]:
        """The next character, "" at the end of the text."""
        while self._at >= len(self._text):
            if not (yield from self._more()):
                return ""
        self._at += 1
        return self._text[self._at - 1]

    def _next(self) -> Wait[str]:
        """The next character that is not blank."""
        while True:
            char = yield from self._char()
            if not char or char not in _BLANKS:
                return char

    def _literal(self, literal: str) -> Wait[bool]:
        """Whether exactly this text follows; the matching characters are read."""
        for expected in literal:
            char = yield from self._char()
            if char != expected:
                self._at -= len(char)
                return False
        return True

    def _one_of(self, *literals: str) -> Wait[str]:
        """The one of these literals that follows, which is read; "" if none does, and then nothing is read."""
        unheld = self._mark is None
        if unheld:
            self._mark = self._at
        literal = ""
        while literal not in literals:
            char = yield from self._char()
            literal += char
            if not char or not any(one.startswith(literal) for one in literals):
                self._at -= len(literal)
                literal = ""
                break
        if unheld:
            self._mark = None
        return literal

    def _word(self, ends: str) -> Wait[str]:
        """The characters up to one of `ends`, which is not read, or up to the end of the text."""
        word: list[str] = []
        while (char := (yield from self._char())) and char not in ends:
            word.append(char)
        self._at -= len(char)
        return "".join(word)

    def _name(
        self, ends: str, characters: re.Pattern[str] = NAME, names: Collection[str] | None = None
    ) -> Wait[str]:
        """The name of a function up to one of `ends`, which is not read; blanks may surround it. "" as soon as the text cannot
        be a name of these characters, or the beginning of one of `names`: it is not held back any longer then."""
        name, over = "", False
        while (char := (yield from self._char())) and char not in ends:
            if char in _BLANKS:
                over = bool(name)
                continue
            name += char
            if over or not characters.fullmatch(char):
                return ""
            if names is not None and not any(one.startswith(name) for one in names):
                return ""
        self._at -= len(char)
        return name

    def _until(self, closing: str, sink: Sink) -> Wait[bool]:
        """Hand on the text up to `closing`, which is read and not handed on. False if the text ends before it."""
        beginnings = frozenset(closing[:n] for n in range(1, len(closing)))
        while True:
            if (end := self._text.find(closing, self._at)) >= 0:
                sink(self._text[self._at : end])
                self._at = end + len(closing)
                return True
            num_pending = min(len(closing) - 1, len(self._text) - self._at)
            while num_pending and self._text[-num_pending:] not in beginnings:
                num_pending -= 1
            ready = len(self._text) - num_pending
            sink(self._text[self._at : ready])
            self._at = ready
            if not (yield from self._more()):
                sink(self._text[self._at :])
                self._at = len(self._text)
                return False

    def _value(self, sink: Sink) -> Wait[bool]:
        """Read any JSON value. False if there is none."""
        char = yield from self._next()
        if char in ("{", "["):
            self._at -= 1
            return (yield from self._balanced(sink))
        if char == '"':
            return (yield from self._string()) is not None
        while char and not _SCALAR_END.match(char):
            char = yield from self._char()
        self._at -= len(char)
        return bool(char)

    def _string(self) -> Wait[str | None]:
        """The string whose opening quote has been read. None if it is not valid."""
        pieces = ['"']
        while True:
            match = _IN_NAME.search(self._text, self._at)
            end = match.end() if match else len(self._text)
            pieces.append(self._text[self._at : end])
            self._at = end
            if match is None:
                if not (yield from self._more()):
                    return None
            elif match[0] == '"':
                try:
                    return msgspec.json.decode("".join(pieces), type=str)
                except (msgspec.DecodeError, UnicodeEncodeError):
                    return None
            elif match[0] == "\\":
                pieces.append((yield from self._char()))
            else:
                return None

    def _balanced(self, sink: Sink) -> Wait[bool]:
        """Hand on everything up to the bracket that closes the one at the cursor. False if the text ends before it."""
        depth, quoted = 0, False
        while True:
            at = start = self._at
            while match := (_IN_STRING if quoted else _STRUCTURE).search(self._text, at):
                at = match.end()
                match match[0]:
                    case '"':
                        quoted = not quoted
                    case "\\":
                        if at == len(self._text) and not self._ended:
                            at -= 1  # what it escapes has not come yet
                            break
                        at += 1
                    case "{" | "[":
                        depth += 1
                    case _:
                        depth -= 1
                        if not depth:
                            break
            else:
                at = len(self._text)
            self._at = min(at, len(self._text))
            sink(self._text[start : self._at])
            if not depth:
                return True
            if not (yield from self._more()):
                return False

    def _quoted_object(self, sink: Sink) -> Wait[bool]:
        """Hand on the text of a string, after its opening quote, if it holds an object; "" counts as an empty object."""
        blanks = True
        while (char := (yield from self._string_char())) is not None:
            if blanks and char in _BLANKS:
                continue
            if blanks and char != "{":
                return False
            blanks = False
            sink(char)
        if self._text[self._at - 1 : self._at] != '"':
            return False
        if blanks:
            sink("{}")
        return True

    def _string_char(self) -> Wait[str | None]:
        """The next character of a string, with escapes decoded. None at the end of the string or of the text."""
        char = yield from self._char()
        if char in ("", '"'):
            return None
        if char != "\\":
            return char
        char = yield from self._char()
        if char != "u":
            return _ESCAPES.get(char, char) or None
        unit = yield from self._code_unit()
        if unit is None:
            return None
        if 0xD800 <= unit < 0xDC00 and (yield from self._literal("\\u")):
            low = yield from self._code_unit()
            if low is None:
                return None
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
            return "\ufffd" + ("\ufffd" if 0xD800 <= low < 0xDC00 else chr(low))
        return "\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)

    def _code_unit(self) -> Wait[int | None]:
        digits = ""
        while len(digits) < 4:
            char = yield from self._char()
            if not char or char not in "0123456789abcdefABCDEF":
                return None
            digits += char
        return int(digits, 16)


class NoCalls(ToolParser):
    """Removes hidden notation from a text, and parses no calls."""

    opening = ()

    def finish(self, cut_before: str | None = None) -> list[Event]:
        return super().finish()  # special tokens come whole: what looks like a part of one is text

    def _parse(self) -> Wait[None]:
        while (yield from self._outside()):
            self._no_call()


def _ignore(text: str) -> None:
    """Discard a value that is not part of a call."""
