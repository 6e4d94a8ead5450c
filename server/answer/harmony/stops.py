"""Where an answer in Harmony ends, and where stop strings count in it: in what a client sees, and not in headers."""

from __future__ import annotations

from collections.abc import Callable, Collection

from server.answer.harmony.header import Kind
from server.answer.harmony.marks import LITERAL_OF
from server.answer.harmony.reader import SEGMENTS, Reader


def end_of_answer(opened: Kind | None) -> Callable[[str], bool]:
    """A function of one choice that takes its text with marks in pieces, and returns whether the answer ends there, as
    `Reader.ended`. `opened`: as for `Reader`."""
    reader = Reader((), opened)

    def ends(text: str) -> bool:
        if reader.kind is None or not text.isascii():  # else it is text of a message, which ends nothing
            reader.push(text)
        return reader.ended

    return ends


def stop_scope(
    functions: Collection[str], opened: Kind | None, include_reasoning: bool
) -> Callable[[str], list[tuple[str, bool]]]:
    """A function of one choice that takes its text with marks in pieces, and divides it into pieces in which stop strings count
    and others. The pieces add up to the text. `functions`, `opened`: as for `Reader`."""
    reader = Reader(functions, opened)
    counted = {Kind.TEXT, Kind.CALL} | ({Kind.REASONING} if include_reasoning else set())

    def divided(text: str) -> list[tuple[str, bool]]:
        pieces = []
        for segment in SEGMENTS.findall(text):
            reader.push(segment)
            pieces.append((segment, segment not in LITERAL_OF and reader.kind in counted))
        return pieces

    return divided
