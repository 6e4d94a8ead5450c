"""Counter-based noise for sampling: a uniform number that depends on (seed, choice, position) and nothing else.

The mixing function is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
2014), applied once per key word so that neighbouring positions, choices and seeds are independent for our purposes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def keys(
    seeds: Sequence[int] | NDArray[np.uint64], choices: Sequence[int] | NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """uint64 [n]: the part that all positions of a choice share, for `at`. Both arguments have length n."""
    x = _mix(np.asarray(seeds, np.uint64) + _GOLDEN)
    return _mix(x + _GOLDEN * (np.asarray(choices, np.uint64) + np.uint64(1)))


def at(mixed: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """`uniform` of the choices with these `keys`, both uint64 [n]."""
    x = _mix(mixed + _GOLDEN * (positions + np.uint64(1)))
    return ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def uniform(
    seeds: Sequence[int] | NDArray[np.uint64],
    choices: Sequence[int] | NDArray[np.uint64],
    positions: Sequence[int] | NDArray[np.uint64],
) -> NDArray[np.float64]:
    """float64 [n], each strictly between 0 and 1: the noise for sampling the token at `positions[i]`.

    `positions` are absolute token positions in the sequence (prompt included). All three arguments have length n.
    """
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64 on purpose
        return at(keys(seeds, choices), np.asarray(positions, np.uint64))
