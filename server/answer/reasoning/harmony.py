"""gpt-oss: reasoning is messages on the channel "analysis" of Harmony (server/answer/harmony/).

Answers of a model whose calls are in Harmony too are read in one pass by server/answer/tools/harmony_parser.py. The splitter here
is for a server that names another format of calls: messages that are no reasoning are text, calls included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from server.answer.harmony import header
from server.answer.harmony.header import Kind
from server.answer.harmony.marks import (
    ANALYSIS,
    CHANNEL,
    COMMENTARY,
    END,
    FINAL,
    LITERALS,
    MESSAGE,
    NEXT,
    START,
    Spelled,
    marked,
)
from server.answer.harmony.reader import Event, LineBreaks, Opened, Reader
from server.answer.harmony.tokens import ThoughtTokens
from server.answer.reasoning.base import TAIL, Counter, Place, ReasoningNotation, Splitter, Thought
from server.grammar.lark import TEXT, Lark

OPENED: Mapping[Place, Kind | None] = {
    Place.UNDECIDED: None,
    Place.INSIDE: Kind.REASONING,
    Place.AFTER: Kind.TEXT,
}
"""The kind of message that is open where an answer begins, None in a header."""


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
        text = marked(end.removesuffix(MESSAGE)[max(end.rfind(START), end.rfind(END), 0) :])
        return Place.INSIDE if header.parsed(text, ()).kind is Kind.REASONING else Place.AFTER

    def lark(self, lark: Lark, place: Place, answer: str) -> str:
        """Any number of messages with reasoning, then the answer."""
        if place is Place.AFTER:
            return answer
        body, following = message_text(lark, "thought"), lark.literal(NEXT)
        more = f"({lark.literal(CHANNEL + ANALYSIS + MESSAGE)} {body} {following})* ({answer})"
        return f"{body} {following} {more}" if place is Place.INSIDE else more

    def answer(self, lark: Lark, place: Place, answer: str) -> str:
        return answer if place is Place.AFTER else f"{lark.literal(CHANNEL + FINAL + MESSAGE)} {answer}"

    def splitter(self, place: Place) -> Splitter:
        return ChannelSplitter(place)

    def counter(self, place: Place, raw: Callable[[int], bytes]) -> Counter:
        return ThoughtTokens(OPENED[place], raw, {})


class ChannelSplitter:
    """The splitter of this notation, for text in which the literals are spelled out. One writer: the caller of `push`."""

    is_over = False

    def __init__(self, place: Place) -> None:
        self._spelled = Spelled()
        self._reader = Reader((), OPENED[place])
        self._kind: Kind | None = None
        self._breaks = LineBreaks()

    def push(self, text: str) -> list[Thought | str]:
        return self._pieces(self._reader.push(self._spelled.push(text)))

    def finish(self, cut_before: str | None) -> list[Thought | str]:
        pieces = self._pieces(self._reader.push(self._spelled.finish(cut_before)))
        return pieces + self._pieces(self._reader.finish(is_cut=cut_before is not None))

    def _pieces(self, events: list[Event]) -> list[Thought | str]:
        out: list[Thought | str] = []
        for event in events:
            if isinstance(event, Opened):
                self._kind = event.header.kind
                self._breaks.begin_message()
            elif isinstance(event, str) and self._kind is Kind.REASONING:
                out.append(Thought(self._breaks.before(Kind.REASONING) + event))
            elif isinstance(event, str) and self._kind is not Kind.FOREIGN:
                out.append(self._breaks.before(Kind.TEXT) + event)
        return out


def message_text(lark: Lark, name: str) -> str:
    """A rule `name` for the text of a message with its end. Where the end is a token, the same signs spelled out are text."""
    if not lark.is_token(END):
        return lark.text_before(name, END)
    return lark.rule(name, f"{lark.rule(name.upper(), f'/{TEXT}/')} {lark.literal(END)}")


def preamble(lark: Lark) -> str:
    """A rule for a message of text before a call, and the beginning of the next message."""
    opening = lark.literal(CHANNEL + COMMENTARY + MESSAGE)
    return lark.rule("preamble", f"{opening} {message_text(lark, 'before')} {lark.literal(NEXT)}")
