"""Cache points: positions where a later prompt is likely to part from this one, or to go on from.

Layers with a window need the blocks just before the position where a sequence begins. A window slides on, so these blocks are
kept for a few positions only:

    prompt    system <end> question <end> answer <end> question <end> | output ............
    points                ^              ^            ^          ^             ^ every 256 tokens, the latest one
"""

from __future__ import annotations

import numpy as np

from engine.sequence import Sequence

ROLLING = 256
"""Tokens of output between two cache points."""
_LAST_TURNS = 4


def cache_points(seq: Sequence, block_size: int, parted: int) -> tuple[int, ...]:
    """The cache points of a prompt in blocks, rising: its last full block below its end, and the end of its first turn and of the
    last four, by the ids that end an output. `parted`: blocks after which an earlier prompt with the same beginning went on
    differently, or 0."""
    prompt = seq.request.prompt_token_ids
    points = {(seq.prompt_len - 1) // block_size, parted}
    if seq.request.stop_token_ids:
        ends = np.flatnonzero(np.isin(prompt, list(seq.request.stop_token_ids))) + 1
        points.update((int(end) // block_size) for end in (*ends[:1], *ends[-_LAST_TURNS:]))
    return tuple(sorted(points - {0}))


def rolling_point(seq: Sequence, position: int, block_size: int) -> int:
    """The latest cache point in the output before `position`, in blocks; 0 if there is none."""
    point = position // ROLLING * ROLLING
    return point // block_size if point > seq.prompt_len else 0


def next_rolling(position: int) -> int:
    """The end of the positions behind `position` that have the same `rolling_point`, at least."""
    return (position // ROLLING + 1) * ROLLING
