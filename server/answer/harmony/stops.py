"""Where stop strings count in an answer in Harmony: in what a client sees, and not in headers."""

from __future__ import annotations

from collections.abc import Callable

from server.answer.harmony.header import Kind
from server.answer.harmony.marks import LITERAL_OF
from server.answer.harmony.reader import SEGMENTS, Reader


def stop_scope(opened: Kind | None, include_reasoning: bool) -> Callable[[str], list[tuple[str, bool]]]:
    """A function of one choice that takes its text with marks in pieces, and divides it into pieces in which stop strings count
    and others. The pieces add up to the text. `opened`: as for `Reader`."""
    reader = Reader((), opened)
    counted = {Kind.TEXT, Kind.CALL} | ({Kind.REASONING} if include_reasoning else set())

    def divided(text: str) -> list[tuple[str, bool]]:
        pieces = []
        for segment in SEGMENTS.findall(text):
            reader.push(segment)
            pieces.append((segment, segment not in LITERAL_OF and reader.kind in counted))
        return pieces

    return divided
