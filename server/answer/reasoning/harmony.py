"""gpt-oss: an answer is a sequence of messages, each on a channel (OpenAI's Harmony format).

    prompt: ...<|start|>assistant
    <|channel|>analysis<|message|>Hm.<|end|>                                              reasoning
    <|start|>assistant<|channel|>commentary<|message|>I look.<|end|>                      text before calls
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{  a call: server/answer/tools/harmony.py
    <|start|>assistant<|channel|>final<|message|>Yes.<|return|>                           text

A message to a recipient is handed on with its header, for the parser of calls. Text without the header of a message is text.
Messages that are joined get a line break between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.answer.reasoning.base import TAIL, Counter, Place, ReasoningNotation, Splitter, Thought, cut_tag
from server.grammar.lark import Lark

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
LITERALS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
NEXT = START + "assistant"
"""What comes between two messages of an answer."""

_MAX_HEADER = 1024
"""Number of characters held back while they may be a header."""
_ANY = re.compile("|".join(map(re.escape, LITERALS)))
_ENDS = re.compile("|".join(map(re.escape, (END, CALL, RETURN, START, CHANNEL))))
_HEADER_ENDS = re.compile("|".join(map(re.escape, (MESSAGE, END, CALL, RETURN))))
_BEGINNINGS = frozenset(one[:n] for one in LITERALS for n in range(1, len(one)))
_LONGEST = max(map(len, LITERALS)) - 1
_HEADERS = (START, CHANNEL, "to=")
"""Beginnings of a header; blanks may come before it."""
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_TO = re.compile(r"to=[^\s<]*\s*(?:<|$)")
"""A recipient as far as it has come; a special token follows it."""
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


@dataclass(frozen=True)
class Channels(ReasoningNotation):
    """The notation described in the module's docstring."""

    @property
    def literals(self) -> tuple[str, ...]:
        return LITERALS

    def place(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], continued: str | None
    ) -> Place:
        if continued is not None:
            return Place.AFTER
        end = decode(list(prompt[-TAIL:]))
        if not end.endswith(MESSAGE):
            return Place.UNDECIDED
        header = end[max(end.rfind(START), end.rfind(END), 0) :]
        return Place.INSIDE if _kind(header) == ANALYSIS else Place.AFTER

    def lark(self, lark: Lark, place: Place, answer: str) -> str:
        if place is Place.AFTER:
            return answer
        body = lark.text_before("thought", END)
        rest = f"{body} {lark.literal(NEXT)} ({answer})"
        if place is Place.INSIDE:
            return rest
        opening = lark.literal(f"{CHANNEL}{ANALYSIS}{MESSAGE}")
        return f"({opening} {body} {lark.literal(NEXT)})? ({answer})"

    def answer(self, lark: Lark, place: Place, answer: str) -> str:
        return answer if place is Place.AFTER else f"{lark.literal(CHANNEL + FINAL + MESSAGE)} {answer}"

    def splitter(self, place: Place) -> Splitter:
        return ChannelSplitter(place)

    def counter(self, place: Place, raw: Callable[[int], bytes]) -> Counter:
        return ChannelTokens(place, raw)


class ChannelSplitter:
    """The splitter of this notation. `_body` is the kind of message that is being read: the name of its channel, CALL,
    "text" outside of any message, or None in a header."""

    is_over = False

    def __init__(self, place: Place) -> None:
        self._pending = ""
        self._body: str | None = {Place.INSIDE: ANALYSIS, Place.AFTER: FINAL}.get(place)
        self._has_thought = self._text = False
        """Whether a message of the kind has been shown, and another one needs a line break before it."""
        self._fresh = True
        """Whether the message has shown nothing yet."""

    def push(self, text: str) -> list[Thought | str]:
        self._pending += text
        return self._read(last=False)

    def finish(self, cut_before: str | None) -> list[Thought | str]:
        pending = _held_at_end(self._pending) if self._body is not None else 0
        if pending and cut_tag(self._pending[-pending:], cut_before, *LITERALS):
            self._pending = self._pending[:-pending]
        pieces = self._read(last=True)
        if self._pending and self._body is None:  # a header without an end
            if cut_before is not None and _breaks_off(self._pending, cut_before):
                self._pending = ""
            self._body = "text"
            pieces += self._emit(_ANY.sub("", self._pending))
        self._pending = ""
        return pieces

    def _read(self, last: bool) -> list[Thought | str]:
        pieces: list[Thought | str] = []
        while self._pending:
            more = self._header(pieces) if self._body is None else self._message(pieces, last)
            if not more:
                break
        return pieces

    def _header(self, pieces: list[Thought | str]) -> bool:
        """Read a header. False if more text is needed."""
        if not _may_begin_header(self._pending):
            self._body, self._fresh = "text", True
            return True
        match = _HEADER_ENDS.search(self._pending)
        if match is None and len(self._pending) < _MAX_HEADER + len(MESSAGE):
            return False
        if match is None or match.start() > _MAX_HEADER:
            self._body, self._fresh = "text", True
            self._pending = self._pending.lstrip().removeprefix(START).removeprefix(CHANNEL)
            return True
        header, self._pending = self._pending[: match.start()], self._pending[match.end() :]
        self._fresh = True
        if match[0] == MESSAGE:
            self._body = _kind(header)
            if self._body == CALL and (recipient := _RECIPIENT.search(header)):
                pieces.append(f"{CHANNEL}{COMMENTARY} to={recipient[1]}{MESSAGE}")
        else:  # no message: its text is all that there is
            self._body = "text"
            pieces += self._emit(_ANY.sub("", header))
            self._body = None
        return True

    def _message(self, pieces: list[Thought | str], last: bool) -> bool:
        """Read a message's text. False if more text is needed."""
        if match := _ENDS.search(self._pending):
            pieces += self._emit(_ANY.sub("", self._pending[: match.start()]))
            begins_another = match[0] in (START, CHANNEL)
            self._pending = self._pending[match.start() if begins_another else match.end() :]
            self._body = None
            return True
        ready = len(self._pending) - (0 if last else _held_at_end(self._pending))
        text, self._pending = self._pending[:ready], self._pending[ready:]
        pieces += self._emit(_ANY.sub("", text))
        return False

    def _emit(self, text: str) -> list[Thought | str]:
        if not text:
            return []
        joined, self._fresh = self._fresh, False
        if self._body == CALL:
            return [text]
        if self._body == ANALYSIS:
            again, self._has_thought = self._has_thought, True
            return [Thought("\n" * (again and joined) + text)]
        again, self._text = self._text, True
        return ["\n" * (again and joined) + text]


class ChannelTokens:
    """The counter of this notation: tokens of analysis messages, with their headers and ends."""

    def __init__(self, place: Place, raw: Callable[[int], bytes]) -> None:
        self.count = 0
        self._raw = raw
        self._in_header = place is Place.UNDECIDED
        self._counts = place is Place.INSIDE
        self._waiting = 0
        """Number of tokens of a header."""
        self._recent = b""

    def push(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._recent += self._raw(token_id)
            if self._in_header:
                self._waiting += 1
                if MESSAGE.encode() in self._recent:
                    header = self._recent.decode("utf-8", "replace")
                    self._counts, self._in_header = _kind(header) == ANALYSIS, False
                    self.count += self._waiting if self._counts else 0
                    self._recent = b""
                continue
            self.count += self._counts
            if any(one.encode() in self._recent for one in (END, CALL, RETURN)):
                self._in_header, self._waiting, self._recent = True, 0, b""
            self._recent = self._recent[-_LONGEST:]


def _kind(header: str) -> str:
    """The kind of message that a header announces."""
    if (recipient := _RECIPIENT.search(header)) and recipient[1].startswith("functions."):
        return CALL
    channel = _CHANNEL.search(header)
    return ANALYSIS if channel and channel[1] == ANALYSIS else FINAL


def _may_begin_header(text: str) -> bool:
    beginning = text.lstrip()
    return any(one.startswith(beginning[: len(one)]) for one in _HEADERS)


def _breaks_off(text: str, cut_before: str) -> bool:
    """Whether a text that may begin a header still may if this follows."""
    beginning = text.lstrip()
    if beginning.startswith(_HEADERS[:2]):
        return True
    return (
        _TO.match(beginning + cut_before) is not None
        if beginning.startswith("to=")
        else cut_tag(beginning, cut_before, *_HEADERS)
    )


def _held_at_end(text: str) -> int:
    """Number of characters at the end that may begin a literal."""
    for length in range(min(_LONGEST, len(text)), 0, -1):
        if text[-length:] in _BEGINNINGS:
            return length
    return 0
