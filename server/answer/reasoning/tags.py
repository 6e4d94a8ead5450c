"""Reasoning before an answer: `<think>` ... `</think>`, separated from the answer as it is generated.

    prompt: ...assistant\n            answer: <think>\nHm.\n</think>\n\nYes.    reasoning "Hm.", text "Yes."
    prompt: ...assistant\n<think>\n   answer: Hm.\n</think>\n\nYes.             the prompt has opened the block
    prompt: ...<think>\n\n</think>\n\n  answer: Yes.                          the prompt has closed it: text only

The tags and the blanks beside them are notation and are not shown. A block that is never closed is reasoning to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.answer.cut_off import cut_tag
from server.answer.reasoning.base import (
    TAIL,
    Counter,
    Place,
    ReasoningNotation,
    Splitter,
    Thought,
    partial,
)
from server.grammar.lark import Lark

_BLANKS = " \t\n\r\v\f"
_BLANKS_AFTER = "/[ \\n]{0,4}/"


@dataclass(frozen=True)
class Tags(ReasoningNotation):
    """The reasoning tags of a kind of model. `assumed`: an answer is reasoning until the closing tag even without an opening
    tag; such models sometimes omit it. `tokens`: parts of the tags that are tokens by themselves."""

    opening: str = "<think>"
    closing: str = "</think>"
    assumed: bool = False
    tokens: tuple[str, ...] = ()

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.opening, self.closing, *self.tokens)

    def place(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], continued: str | None
    ) -> Place:
        if continued is not None:
            opened = continued.rfind(self.opening) > continued.rfind(self.closing)
            return Place.INSIDE if opened else Place.AFTER
        end = decode(list(prompt[-TAIL:])).rstrip(_BLANKS)
        if end.endswith(self.opening):
            return Place.INSIDE
        if end.endswith(self.closing):
            return Place.AFTER
        return Place.INSIDE if self.assumed else Place.UNDECIDED

    def lark(self, lark: Lark, place: Place, answer: str) -> str:
        if place is Place.AFTER:
            return answer
        body = lark.text_before("thought", self.closing)
        blanks = lark.rule("after_thought", _BLANKS_AFTER)
        if place is Place.INSIDE:
            return f"{body} {blanks} ({answer})"
        return f"({lark.literal(self.opening)} {body} {blanks})? ({answer})"

    def splitter(self, place: Place) -> Splitter:
        return TagSplitter(self, place)

    def counter(self, place: Place, raw: Callable[[int], bytes]) -> Counter:
        return TagTokens(self, place, raw)


class TagSplitter:
    """The splitter of this notation: a block, then the answer."""

    def __init__(self, notation: Tags, place: Place) -> None:
        self.place = place
        self._notation = notation
        self._pending = ""
        """Text that may be a tag, or blanks beside one."""
        self._leading = True
        """Whether only blanks have come since the answer began, or since the block began or ended."""
        self._may_open = place is Place.INSIDE
        self._answered = place is Place.AFTER
        """Whether blanks at the beginning of the answer belong to it, because no block precedes them."""

    @property
    def is_over(self) -> bool:
        """True if all further text belongs to the answer."""
        return self._answered

    def push(self, text: str) -> list[Thought | str]:
        """Take more text; returns the pieces that are certain by now, in order."""
        if self._answered:
            return [text] if text else []
        self._pending += text
        pieces: list[Thought | str] = []
        if self.place is Place.UNDECIDED:
            self._decide(pieces)
        if self.place is Place.INSIDE:
            self._think(pieces)
        if self.place is Place.AFTER and not self._answered:
            self._answer(pieces)
        return pieces

    def finish(self, cut_before: str | None) -> list[Thought | str]:
        """End the choice; returns the held-back text, which is not a tag."""
        pending, self._pending = self._pending, ""
        if not pending or self._answered or self.place is Place.AFTER:
            return []
        beginning, inside = pending.lstrip(_BLANKS), self.place is Place.INSIDE
        if cut_tag(beginning, cut_before, self._notation.closing if inside else self._notation.opening):
            return []
        if inside and self._may_open and cut_tag(beginning, cut_before, self._notation.opening):
            return []
        return [Thought(pending)] if inside else [pending]

    def _decide(self, pieces: list[Thought | str]) -> None:
        opening, beginning = self._notation.opening, self._pending.lstrip(_BLANKS)
        if beginning.startswith(opening):
            self.place, self._pending = Place.INSIDE, beginning[len(opening) :]
        elif not opening.startswith(beginning):
            self.place, self._answered = Place.AFTER, True
            pieces.append(self._pending)
            self._pending = ""

    def _think(self, pieces: list[Thought | str]) -> None:
        if self._leading:
            self._pending = self._pending.lstrip(_BLANKS)
            if self._may_open:  # the prompt has opened the block, and the model may do so again
                opening = self._notation.opening
                if len(self._pending) < len(opening) and opening.startswith(self._pending):
                    return
                self._may_open = False
                self._pending = self._pending.removeprefix(opening).lstrip(_BLANKS)
            if not self._pending:
                return
            self._leading = False
        before, closed, rest = self._pending.partition(self._notation.closing)
        if closed:
            if reasoning := before.rstrip(_BLANKS):
                pieces.append(Thought(reasoning))
            self.place, self._pending = Place.AFTER, rest
            return
        ready = before[: len(before) - partial(before, self._notation.closing)].rstrip(_BLANKS)
        if ready:
            pieces.append(Thought(ready))
        self._pending = before[len(ready) :]

    def _answer(self, pieces: list[Thought | str]) -> None:
        if text := self._pending.lstrip(_BLANKS):
            pieces.append(text)
            self._answered = True
        self._pending = ""


class TagTokens:
    """Counts the reasoning tokens of one choice: from the first token to the one that completes the closing tag, tags
    included; 0 without a block. `raw` gives the bytes of a text token, and none for other tokens.

    It works on tokens, not on text, so a character or a tag may be spread over several tokens.
    """

    def __init__(self, notation: Tags, place: Place, raw: Callable[[int], bytes]) -> None:
        self.count = 0
        self._place = place
        self._raw = raw
        self._opening = notation.opening.encode()
        self._closing = notation.closing.encode()
        self._recent = b""
        self._waiting = 0
        """Number of tokens that may or may not open a block."""

    def push(self, token_ids: Sequence[int]) -> None:
        """Take more tokens of the choice."""
        for token_id in token_ids:
            if self._place is Place.AFTER:
                return
            self._recent += self._raw(token_id)
            if self._place is Place.UNDECIDED:
                self._decide()
            else:
                self.count += 1
            if self._place is Place.INSIDE:
                if self._closing in self._recent:
                    self._place = Place.AFTER
                self._recent = self._recent[-len(self._closing) + 1 :]

    def _decide(self) -> None:
        self._waiting += 1
        beginning = self._recent.lstrip(_BLANKS.encode())
        if beginning.startswith(self._opening):
            self._place, self.count = Place.INSIDE, self._waiting
            self._recent = beginning[len(self._opening) :]
        elif not self._opening.startswith(beginning):
            self._place = Place.AFTER
