"""When two servers agree on a text: bounds of logprobs at all positions, and greedy ids that are equal up to near ties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def logprobs(logits: np.ndarray) -> np.ndarray:
    """float64 [T, V] of float32 [T, V]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def differences(mine: np.ndarray, theirs: np.ndarray, most: int = 0) -> np.ndarray:
    """Return the largest difference of a logprob at each position, float64 [T], of logits [T, V] of the same ids: over the whole
    vocabulary, or over the `most` ids that are the most likely ones here."""
    one, other = logprobs(mine), logprobs(theirs)
    apart = np.abs(one - other)
    if most:
        apart = np.take_along_axis(apart, np.argpartition(-one, most, -1)[:, :most], -1)
    return apart.max(-1)


def equal_ids(mine: Sequence[int], theirs: Sequence[int], logits: np.ndarray, bound: float) -> int:
    """Return how many greedy ids are the same before the first near tie that parts them.

    `logits`, float32 [n, V]: what `mine` was taken from. Logprobs that differ by at most `bound` can change places only if they
    are at most twice that apart, which is what a near tie is. Raises AssertionError for ids that part anywhere else.
    """
    for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if one != other:
            apart = float(logits[i, one] - logits[i, other])
            assert apart <= 2 * bound, f"id {i} is {one} here and {other} there, {apart:.3g} apart"
            return i
    return len(mine)
