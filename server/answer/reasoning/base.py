"""The interface of a notation of reasoning: where an answer begins, how it is split, and what its grammar begins with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from server.grammar.lark import Lark

TAIL = 64
"""Number of tokens at the end of a prompt that may hold a tag; with a byte per token a tag has eight, besides blanks."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


class Place(Enum):
    """Where an answer begins."""

    UNDECIDED = "undecided"
    """The answer may begin with a block."""
    INSIDE = "inside"
    """The block is open already."""
    AFTER = "after"
    """There is no block, or it is closed already."""


class Splitter(Protocol):
    """Splits one choice's text. One writer: the caller of `push` and `finish`."""

    @property
    def is_over(self) -> bool:
        """True if all further text belongs to the answer."""

    def push(self, text: str) -> list[Thought | str]:
        """Take more text; returns the pieces that are certain by now, in order."""

    def finish(self, cut_before: str | None) -> list[Thought | str]:
        """End the choice; returns the held-back text. `cut_before`: as for `ReasoningParser.finish`."""


class Counter(Protocol):
    """Counts the reasoning tokens of one choice."""

    count: int

    def push(self, token_ids: Sequence[int]) -> None:
        """Take more tokens of the choice."""


@dataclass(frozen=True)
class ReasoningNotation(ABC):
    """One notation. Stateless. `decode` gives the text of ids with special tokens; `raw` the bytes of a text token, and none
    for other tokens."""

    name: str

    @property
    @abstractmethod
    def literals(self) -> tuple[str, ...]:
        """The notation, which may be special tokens of a model."""

    @abstractmethod
    def place(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], continued: str | None
    ) -> Place:
        """The place where an answer to this prompt begins. `continued` is the text of the message that the answer continues, None
        for a new message."""

    @abstractmethod
    def lark(self, lark: Lark, place: Place, answer: str) -> str:
        """A Lark expression for the reasoning that is still to come, followed by `answer`."""

    def answer(self, lark: Lark, place: Place, answer: str) -> str:
        """A Lark expression for an answer that is not a call, with the notation that introduces it."""
        return answer

    @abstractmethod
    def splitter(self, place: Place) -> Splitter:
        """The splitter of one choice."""

    @abstractmethod
    def counter(self, place: Place, raw: Callable[[int], bytes]) -> Counter:
        """The counter of one choice."""


class ReasoningParser:
    """Splits one choice's text as its notation does. One writer: the caller of `push` and `finish`."""

    def __init__(self, notation: ReasoningNotation, place: Place) -> None:
        self._splitter = notation.splitter(place)

    @property
    def is_over(self) -> bool:
        """True if all further text belongs to the answer."""
        return self._splitter.is_over

    def push(self, text: str) -> list[Thought | str]:
        """Take more text; returns the pieces that are certain by now, in order."""
        return self._splitter.push(text)

    def finish(self, cut_before: str | None = None) -> list[Thought | str]:
        """End the choice; returns the held-back text, which is not notation. If the answer was cut off, text that could still
        have become notation is dropped: `cut_before` is the text that is known to follow, "" if none is known, None if the model
        itself ended the answer."""
        return self._splitter.finish(cut_before)


class ReasoningTokens:
    """Counts the reasoning tokens of one choice as its notation does, notation included. It works on tokens, not on text, so a
    character or a tag may be spread over several tokens."""

    def __init__(self, notation: ReasoningNotation, place: Place, raw: Callable[[int], bytes]) -> None:
        self._counter = notation.counter(place, raw)

    @property
    def count(self) -> int:
        """Number of reasoning tokens so far."""
        return self._counter.count

    def push(self, token_ids: Sequence[int]) -> None:
        """Take more tokens of the choice."""
        self._counter.push(token_ids)


def partial(text: str, tag: str) -> int:
    """Number of characters at the end of the text that may begin the tag."""
    if tag[0] not in text[-len(tag) :]:
        return 0
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0


def continued_text(content: object) -> str:
    """The text of a message's content, in either form."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(getattr(part, "text", None) or "") for part in content)
    return ""
