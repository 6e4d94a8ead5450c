"""Which drafts a step verifies where it has room for fewer than are worth it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf


def within_room(lengths: SequenceOf[int], chances: SequenceOf[float], room: int) -> list[int]:
    """Return how many drafts of each sequence remain of `lengths`, at most `room` in all.

    A draft counts only if those before it do, so the last ones of the longest proposals are the least likely to: one length
    limits all sequences, and what is left of the room goes to those whose drafts have the best `chances`. A sequence with a short
    proposal loses nothing to one with a long one.
    """
    if sum(lengths) <= room:
        return list(lengths)
    most = 0
    while sum(min(length, most + 1) for length in lengths) <= room:
        most += 1
    cut = [min(length, most) for length in lengths]
    longer = [i for i, length in enumerate(lengths) if length > most]
    longer.sort(key=lambda i: -chances[i])
    for i in longer[: room - sum(cut)]:
        cut[i] += 1
    return cut
