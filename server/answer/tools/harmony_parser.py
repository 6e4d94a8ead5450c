"""Reads reasoning, text and calls of an answer in Harmony in one pass (server/answer/harmony/).

    analysis                          reasoning
    a recipient that is a function    a call, on whatever channel: gpt-oss makes many of its calls on "analysis"
    commentary without a recipient    text: words for the user before a call
    final, another channel, none      text
    another role                      the model goes on with the conversation by itself: nothing of it is shown

Messages of one kind are joined with a line break. If the request wants no calls, a call's arguments are reasoning: they are
neither an answer nor to be carried out.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection

from server.answer.harmony.header import Kind
from server.answer.harmony.marks import LITERALS, MARKS, Spelled
from server.answer.harmony.reader import Closed, LineBreaks, Opened, Reader
from server.answer.harmony.reader import Event as ReaderEvent
from server.answer.reasoning.base import Thought
from server.answer.tools.events import CallArguments, CallBegun, Event

_BLANKS = " \t\r\n"
_EMPTY = "{}"
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class HarmonyParser:
    """Parser of one choice. One writer: the caller of `push`.

    `functions`: names of those on offer. `opened`: as for `Reader`. `exact`: the text has marks for literals; else they
    are searched for. `calls`: False if no calls are wanted. `one_call`: the answer ends with its first call. `apart`: False
    if reasoning is not separated from the text.
    """

    def __init__(
        self,
        functions: Collection[str] = (),
        opened: Kind | None = None,
        *,
        exact: bool = False,
        calls: bool = True,
        one_call: bool = False,
        apart: bool = True,
    ) -> None:
        self.num_calls = 0
        self.num_finished = 0
        """Number of calls that are complete."""
        self._reader = Reader(functions, opened)
        self._spelled = None if exact else Spelled()
        self._has_calls, self._one_call, self._has_thoughts = calls, one_call, apart
        self._kind: Kind | None = None
        self._name = ""
        self._breaks = LineBreaks()
        self._has_begun = False
        """Whether the call of this message has begun."""
        self._arguments = _Arguments()

    plain = False

    @property
    def all_finished(self) -> bool:
        """True if there is at least one call and every call is complete."""
        return 0 < self.num_calls == self.num_finished

    @property
    def done(self) -> bool:
        """True if no further text is shown: only one call is allowed, and it is complete, or another role speaks."""
        return self._kind is Kind.FOREIGN or (self._one_call and self.num_finished > 0)

    @property
    def ended(self) -> bool:
        """True if the model has ended its answer, or no further text is shown."""
        return self._reader.ended or self.done

    def push(self, text: str, last: bool = False, cut_before: str | None = None) -> list[Thought | Event]:
        """Take more text; `last` marks the end of the choice. Returns the pieces that are certain by now, in order. `cut_before`:
        as for `server.answer.choice.Parsers.push`."""
        pieces = self._pieces(self._reader.push(text if self._spelled is None else self._spelled.push(text)))
        return pieces + self._finish(cut_before) if last else pieces

    def _finish(self, cut_before: str | None) -> list[Thought | Event]:
        pieces: list[Thought | Event] = []
        end = "" if self._spelled is None else self._spelled.finish(cut_before)
        if self._reader.has_notation:  # a literal that breaks off in a header
            end = ""
        if cut_before in LITERALS:  # a client's stop token: the model has ended its message
            end, cut_before = end + MARKS[cut_before], None
        pieces += self._pieces(self._reader.push(end))
        return pieces + self._pieces(self._reader.finish(is_cut=cut_before is not None))

    def _pieces(self, events: list[ReaderEvent]) -> list[Thought | Event]:
        out: list[Thought | Event] = []
        for event in events:
            if self.done:
                break
            match event:
                case Opened(header):
                    self._begin(header.kind, header.name)
                case Closed(whole):
                    if self._kind is Kind.CALL:
                        was_complete = self._arguments.complete
                        self._argue(self._arguments.end() if whole else "", out)
                        self.num_finished += self._arguments.complete and not was_complete
                    self._kind = None
                case str(text):
                    self._show(text, out)
        return out

    def _begin(self, kind: Kind, name: str) -> None:
        if kind is Kind.CALL and not self._has_calls:
            kind = Kind.REASONING
        if kind is Kind.REASONING and not self._has_thoughts:
            kind = Kind.TEXT
        self._kind, self._name, self._has_begun = kind, name, False
        self._breaks.begin_message()
        self._arguments = _Arguments()

    def _show(self, text: str, out: list[Thought | Event]) -> None:
        if self._kind is Kind.CALL:
            was_complete = self._arguments.complete
            self._argue(self._arguments.push(text), out)
            self.num_finished += self._arguments.complete and not was_complete
        elif self._kind is not None and self._kind is not Kind.FOREIGN:
            text = self._breaks.before(self._kind) + text
            out.append(Thought(text) if self._kind is Kind.REASONING else text)

    def _argue(self, text: str, out: list[Thought | Event]) -> None:
        if not text:
            return
        if not self._has_begun:
            out.append(CallBegun(self.num_calls, f"call_{secrets.token_hex(12)}", self._name))
            self.num_calls += 1
            self._has_begun = True
        out.append(CallArguments(self.num_calls - 1, text))


class _Arguments:
    """The text of a call's message: an object, without what surrounds it; any other text as it is. One writer: the parser."""

    def __init__(self) -> None:
        self.complete = False
        """Whether the object's last brace has come, or the message has ended without an object."""
        self._pending = ""
        """Beginning of the text that may be blank, or null."""
        self._has_begun = self._is_object = False
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> str:
        """Take more text; returns the arguments in it."""
        if not self._has_begun:
            text = self._pending = (self._pending + text).lstrip(_BLANKS)
            if "null".startswith(text.rstrip(_BLANKS)):
                return ""
            self._has_begun, self._is_object = True, text[0] == "{"
        return self._object(text) if self._is_object else text

    def end(self) -> str:
        """The arguments that are left at the end of the message; an empty object for a message without any."""
        self.complete |= not self._is_object
        if self._has_begun:
            return ""
        self._has_begun = True
        text = self._pending.strip(_BLANKS)
        return _EMPTY if text in ("", "null") else text

    def _object(self, text: str) -> str:
        """The part of the text that belongs to the object."""
        if self.complete:
            return ""
        at = 0
        if self._escaped and text:
            self._escaped, at = False, 1
        while match := (_IN_STRING if self._quoted else _STRUCTURE).search(text, at):
            at = match.end()
            match match[0]:
                case '"':
                    self._quoted = not self._quoted
                case "\\":
                    self._escaped = at == len(text)
                    at += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        self.complete = True
                        return text[:at]
        return text
