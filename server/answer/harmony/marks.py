"""The literals of Harmony, and marks: one character in place of each.

A mark is a lone surrogate. Text that is decoded from UTF-8 has none, so a mark cannot be confused with a text in which the model
spells the literal with ordinary tokens, and no cut divides it. The detokenizer writes marks where the literals are tokens of the
model. Else the literals are searched for in the text (`Spelled`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from server.answer.cut_off import cut_tag

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
LITERALS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
"""Names of channels."""
ASSISTANT = "assistant"
NEXT = START + ASSISTANT
"""Text between two messages of an answer."""

_FIRST = 0xDB80
"""First of Unicode's high surrogates for private use."""
MARKS: Mapping[str, str] = {one: chr(_FIRST + number) for number, one in enumerate(LITERALS)}
"""The mark of each literal."""
LITERAL_OF: Mapping[str, str] = {mark: one for one, mark in MARKS.items()}
"""The literal of each mark."""

_SPELLED = str.maketrans(dict(LITERAL_OF))
_LITERAL = re.compile("|".join(map(re.escape, LITERALS)))
_BEGINNINGS = frozenset(one[:length] for one in LITERALS for length in range(1, len(one)))
_LONGEST = max(map(len, LITERALS)) - 1


def marked(text: str) -> str:
    """The text with marks in place of literals."""
    return _LITERAL.sub(lambda match: MARKS[match[0]], text) if "<|" in text else text


def spelled_out(text: str) -> str:
    """The text with literals in place of marks."""
    return text if text.isascii() else text.translate(_SPELLED)


class Spelled:
    """Puts marks into a text in which the literals are spelled out. One writer: the caller of `push` and `finish`."""

    def __init__(self) -> None:
        self._pending = ""
        """End of the text that may begin a literal."""

    def push(self, text: str) -> str:
        """Take more text; returns the text that is certain by now."""
        text = self._pending + text
        length = _num_pending(text)
        self._pending = text[len(text) - length :]
        return marked(text[: len(text) - length])

    def finish(self, cut_before: str | None) -> str:
        """End the text; returns the held-back end, unless a literal was cut off in it. `cut_before`: the text that is known to
        follow, "" if none is known, None if the model itself ended the answer."""
        pending, self._pending = self._pending, ""
        return "" if cut_tag(pending, cut_before, *LITERALS) else pending


def _num_pending(text: str) -> int:
    """Number of characters at the end that may begin a literal."""
    at = text.rfind("<", max(0, len(text) - _LONGEST))
    return len(text) - at if at >= 0 and text[at:] in _BEGINNINGS else 0
