"""Answers of the engine without HTTP are raw text."""

from __future__ import annotations

from engine.text.generation import TextDelta
from server.answer.harmony.marks import LITERALS, marked
from server.offline.outputs import Gathered


def test_notation_of_harmony_is_spelled() -> None:
    """Its marks are for parsers."""
    gathered = Gathered(0)
    text = "é ".join(LITERALS)
    for char in marked(text):
        gathered.take(TextDelta(0, char))
    assert gathered.output(with_logprobs=False).text == text
