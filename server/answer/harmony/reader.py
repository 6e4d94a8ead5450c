"""An answer in Harmony as messages: each is opened with its header, has text, and is closed.

The result is a function of the text alone, not of how it is cut. Text is held back only in headers.

    in a header    until `<|message|>` comes; an end in its place makes what is left of the header the message
    in a message   until one of `<|end|>`, `<|call|>`, `<|return|>`, or the beginning of a header
    outside        text that no header precedes is a message of text, at the beginning of an answer or at its end; stray text
                   between two messages is reasoning
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from server.answer.harmony import header
from server.answer.harmony.header import Header, Kind
from server.answer.harmony.marks import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL,
    LITERAL_OF,
    MARKS,
    MESSAGE,
    RETURN,
    START,
)

MAX_HEADER = 1024
"""Number of characters held back while they may be a header."""

SEGMENTS = re.compile(f"[{''.join(LITERAL_OF)}]|[^{''.join(LITERAL_OF)}]+")
"""Pattern of a mark, or of text between marks."""
_MESSAGE, _START, _CHANNEL, _CONSTRAIN = MARKS[MESSAGE], MARKS[START], MARKS[CHANNEL], MARKS[CONSTRAIN]
_ENDS = frozenset(MARKS[one] for one in (END, CALL, RETURN))
_BEGINS = frozenset((_START, _CHANNEL))
_OUTSIDE = Header(Kind.TEXT)


@dataclass(frozen=True, slots=True)
class Opened:
    """The beginning of a message."""

    header: Header


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a message. `whole`: False if something cut the answer off within it."""

    whole: bool = True


Event = Opened | str | Closed
"""Beginning, piece of text, or end of a message."""


class Reader:
    """Reads one choice's text with marks. One writer: the caller of `push` and `finish`.

    `functions`: names of those on offer. `opened`: the kind of message that the prompt has opened, None if the prompt ends within
    a header.
    """

    def __init__(self, functions: Collection[str], opened: Kind | None) -> None:
        self.kind: Kind | None = None
        """Kind of the message that is being read, None in a header."""
        self.ended = False
        """Whether the answer has ended: by `<|return|>`, by `<|call|>`, or because another role has begun to speak."""
        self._functions = functions
        self._header = ""
        """Header so far."""
        self._has_marks = False
        """Whether the answer has had any notation."""
        self._out: list[Event] = []
        if opened is not None:
            self._has_marks = True
            self._open(Header(opened))
        self._first, self._out = self._out, []

    @property
    def has_notation(self) -> bool:
        """True within a header that has had notation."""
        return self.kind is None and _has_notation(self._header)

    def push(self, text: str) -> list[Event]:
        """Take more text; returns the events that are certain by now."""
        if self.kind is not None and text.isascii():  # no mark: the usual case, for every token
            return [*self._events(), text] if text else []
        for segment in SEGMENTS.findall(text):
            if segment in LITERAL_OF:
                self._has_marks = True
                self._take_mark(segment)
            elif self.kind is None:
                self._header += segment
                self._check_header()
            else:
                self._out.append(segment)
        return self._events()

    def finish(self, is_cut: bool) -> list[Event]:
        """End the choice. A header without an end is dropped if something cut the answer off."""
        if self.kind is not None:
            self._close(whole=not is_cut)
        elif not is_cut or _is_stray(self._header):
            self._end_header(RETURN)
        self._header = ""
        return self._events()

    def _events(self) -> list[Event]:
        out, self._out, self._first = [*self._first, *self._out], [], []
        return out

    def _take_mark(self, mark: str) -> None:
        if self.kind is not None:
            if mark in _ENDS or mark in _BEGINS:
                self._end_message(mark)
            return
        if mark == _MESSAGE:
            self._open(header.parsed(self._header, self._functions))
        elif mark in _ENDS:
            self._end_header(LITERAL_OF[mark])
        elif mark in _BEGINS and (_is_stray(self._header) or (mark == _START and self._header.strip(_START))):
            self._end_header(END)
            self._header = mark
        else:
            self._header += mark

    def _open(self, parts: Header) -> None:
        self.kind, self._header = parts.kind, ""
        self.ended |= parts.kind is Kind.FOREIGN
        self._out.append(Opened(parts))

    def _close(self, whole: bool = True) -> None:
        self.kind = None
        self._out.append(Closed(whole))

    def _end_message(self, mark: str) -> None:
        self.ended |= LITERAL_OF[mark] in (RETURN, CALL)
        self._close()
        self._header = mark if mark in _BEGINS else ""

    def _check_header(self) -> None:
        """Text that can be no header, and a header that is too long, are text."""
        text, parts = self._header, _OUTSIDE
        is_long = len(text) > MAX_HEADER
        if not is_long and (self._has_marks or not _is_stray(text)):
            return
        if _has_notation(text):
            parts = header.parsed(text[: MAX_HEADER + 1], self._functions)
            if parts.kind is Kind.CALL:  # of a name that may go on
                parts = replace(parts, kind=Kind.REASONING)
            text = parts.rest + text[MAX_HEADER + 1 :]
        self._open(parts)
        if text:
            self._out.append(text)

    def _end_header(self, literal: str) -> None:
        """The end of a message, or of the answer, in place of `<|message|>`: what is left of the header is the message."""
        text, self._header = self._header, ""
        if not _has_notation(text):
            # Beside notation, words of a header are a header; a whole answer without notation is text.
            if _is_stray(text) or (text and not self._has_marks and not text.lstrip().startswith("to=")):
                self._open(Header(Kind.REASONING) if literal == END else _OUTSIDE)
                self._out.append(text)
                self._close()
            self.ended |= literal in (RETURN, CALL)
            return
        parts = header.parsed(text, self._functions)
        if parts.channel != FINAL and literal == END and parts.kind is Kind.TEXT:
            # Stray words behind `<|channel|>`, with more messages behind them, are not what the user waits for.
            parts = replace(parts, kind=Kind.REASONING)
        self.ended |= literal in (RETURN, CALL)
        if parts.kind is Kind.CALL and not parts.rest.startswith("{"):
            return  # no arguments, and so no call
        if parts.rest or parts.kind is Kind.FOREIGN:
            self._open(parts)
            if parts.rest:
                self._out.append(parts.rest)
            self._close()


class LineBreaks:
    """Line breaks between messages of a kind, which are joined. One writer: the caller."""

    def __init__(self) -> None:
        self._kinds: set[Kind] = set()
        self._is_first = True

    def begin_message(self) -> None:
        """A message begins."""
        self._is_first = True

    def before(self, kind: Kind) -> str:
        """What comes before the next piece of text, of this kind."""
        is_another, self._is_first = self._is_first and kind in self._kinds, False
        self._kinds.add(kind)
        return "\n" if is_another else ""


def _is_stray(text: str) -> bool:
    """Whether a text between messages can be no header."""
    return not _has_notation(text) and not header.may_begin(text)


def _has_notation(text: str) -> bool:
    """Whether a text has notation that only headers have."""
    return any(mark in text for mark in (_START, _CHANNEL, _CONSTRAIN))
