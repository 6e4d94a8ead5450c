"""A stream of `cohort demo` as one line of so many columns: its number, how it fares, and a piece of its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from clients.demo.session import Pass

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Line ends, and what a terminal would take for orders."""

_LEAST = 12
"""Columns of text that a stream gets in the narrowest of terminals."""

Row = list[tuple[str, str]]
"""Pieces of text, each with its style."""


@dataclass(frozen=True, slots=True)
class Marks:
    """One column each. `seam`: where the executor was killed."""

    flows: str
    waits: str
    over: str
    equal: str
    differs: str
    more: str
    seam: str


_FINE = Marks("›", "‖", "✓", "=", "≠", "…", "┃")
_PLAIN = Marks(">", "!", ".", "=", "#", "~", "|")


def marks_for(encoding: str) -> Marks:
    """What a stream of this encoding can show."""
    try:
        "".join(getattr(_FINE, name) for name in Marks.__slots__).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _PLAIN
    return _FINE


def row_of(run: Pass, number: int, width: int, marks: Marks) -> Row:
    """Stream `number` (from 0) in exactly `width` columns: while it runs its newest text, then what is around the last cut.

    Cuts stand in the middle, one under the other, as long as what came after them is seen whole.
    """
    answer = run.answers[number]
    mark, style, dim = _state(run, number, marks)
    digits = len(str(run.count))
    room = max(_LEAST, width - digits - 3)
    text = _UNSEEN.sub(" ", answer.text)
    # Who was over before a kill was not cut by it.
    cuts = [kill.lengths[number] for kill in run.kills if kill.lengths[number] < len(text) or not answer.over]
    last = cuts[-1] if cuts else None
    if last is not None and (answer.over or cell_len(text[last:]) <= room - room // 2 - 1):
        row = _around(text, last, cuts, room, dim, marks)
    else:
        row = _newest(text, cuts, room, dim, marks)
    used = sum(cell_len(piece) for piece, _ in row)
    return [(f"{number + 1:>{digits}} ", "dim"), (f"{mark} ", style), *row, (" " * (room - used), "")]


def _state(run: Pass, number: int, marks: Marks) -> tuple[str, str, bool]:
    answer = run.answers[number]
    if answer.over:
        if run.expected is None:
            return marks.over, "green", False
        if run.difference(number) is None:
            return marks.equal, "bold green", False
        return marks.differs, "bold red", False
    if run.is_waiting(number):
        return marks.waits, "bold yellow", True
    return (marks.flows, "cyan", False) if answer.begun else (" ", "", False)


def _newest(text: str, cuts: Sequence[int], room: int, dim: bool, marks: Marks) -> Row:
    """The end of `text`."""
    begin = _back(text, len(text), room)
    if begin or cuts:
        begin = _back(text, len(text), room - 1 - len(cuts))
    row: Row = [(marks.more, "dim")] if begin else []
    return [*row, *_pieces(text, begin, len(text), cuts, dim, marks)]


def _around(text: str, focus: int, cuts: Sequence[int], room: int, dim: bool, marks: Marks) -> Row:
    """What is on both sides of the cut at `focus`, which comes to stand in the middle. Earlier ones, too, where they are seen."""
    left = room // 2
    begin = _back(text, focus, left)
    if begin or len(cuts) > 1:
        begin = _back(text, focus, left - 1 - (len(cuts) - 1))
    right = room - left - 1
    end = _forward(text, focus, right)
    if end < len(text):
        end = _forward(text, focus, right - 1)
    before: Row = [(marks.more, "dim")] if begin else []
    before += _pieces(text, begin, focus, [cut for cut in cuts if cut < focus], dim, marks)
    pad = left - sum(cell_len(piece) for piece, _ in before)
    after = _pieces(text, focus, end, [focus], dim, marks)
    return [(" " * pad, ""), *before, *after, *([(marks.more, "dim")] if end < len(text) else [])]


def _pieces(text: str, begin: int, end: int, cuts: Sequence[int], dim: bool, marks: Marks) -> Row:
    """`text` from `begin` to `end` with a seam at each of the `cuts` in there; behind one it is green."""
    row: Row = []
    at, style = begin, "green" if any(cut < begin for cut in cuts) else ""
    for cut in sorted({cut for cut in cuts if begin <= cut <= end}):
        row += [(text[at:cut], "dim" if dim else style), (marks.seam, "bold red")]
        at, style = cut, "green"
    return [*row, (text[at:end], "dim" if dim else style)]


def _back(text: str, end: int, room: int) -> int:
    """Where a piece of at most `room` columns begins that ends at `end`."""
    begin, used = end, 0
    while begin > 0 and (used := used + cell_len(text[begin - 1])) <= room:
        begin -= 1
    return begin


def _forward(text: str, begin: int, room: int) -> int:
    """Where a piece of at most `room` columns ends that begins at `begin`."""
    end, used = begin, 0
    while end < len(text) and (used := used + cell_len(text[end])) <= room:
        end += 1
    return end
