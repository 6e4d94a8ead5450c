"""Cache points: positions where a later prompt is likely to part from this one, or to go on from.

Layers with a window need the blocks just before the position where a sequence begins, layers with a state need the state there.
A window slides on and a state is overwritten, so these are kept for a few positions only:

    prompt    system <end> question <end> answer <end> question <end> | output ............
    points                ^              ^            ^          ^             ^ every 256 tokens, the latest one

Requests name others: `server/prepare/cache_points.py` finds where system prompt and tools end in a template without an end there,
and where the blocks end that a client has marked.
"""

from __future__ import annotations

import numpy as np

from engine.sequence import Sequence

ROLLING = 256
"""Tokens of output between two cache points."""
_LAST_TURNS = 4


def cache_points(seq: Sequence, block_size: int, parted: int, interval: int) -> tuple[int, ...]:
    """The cache points of a prompt in blocks, rising: the last place below its end, those that the request names, and the end of
    its first turn and of the last four, by the ids that end an output, each rounded down to a multiple of `interval` tokens.
    `parted`: blocks after which an earlier prompt with the same beginning went on differently, or 0."""
    request = seq.request
    positions = [seq.prompt_len - 1, parted * block_size]
    positions += [point for point in request.cache_points if 0 < point < seq.prompt_len]
    if request.stop_token_ids:
        ends = np.flatnonzero(np.isin(request.prompt_token_ids, list(request.stop_token_ids))) + 1
        positions += [int(end) for end in (*ends[:1], *ends[-_LAST_TURNS:])]
    points = {position // interval * interval // block_size for position in positions}
    return tuple(sorted(points - {0}))


def rolling_point(seq: Sequence, position: int, block_size: int) -> int:
    """The latest cache point in the output before `position`, in blocks; 0 if there is none."""
    point = position // ROLLING * ROLLING
    return point // block_size if point > seq.prompt_len else 0


def rolling_interval(interval: int) -> int:
    """Tokens between two rolling snapshots of states, which are taken at multiples of `interval` tokens."""
    return -(-ROLLING // interval) * interval


def next_rolling(position: int) -> int:
    """The end of the positions behind `position` that have the same `rolling_point`, at least."""
    return (position // ROLLING + 1) * ROLLING
