"""Checksums of KV blocks: 64 bits over a range of bytes, by Cohort's CPU kernels or, where there are none, by NumPy.

The definition is in checksum.h. It is no signature: it finds stray writes, not an attacker who can write to the memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executors.kernels.cpu import CpuKernels

Uint64Array = NDArray[np.uint64]
_LANES, _STRIPES = 8, 16
_LOAF_BYTES = 8 * _LANES * _STRIPES
_PRIME = np.uint64(0x9E3779B185EBCA87)
_LOW = np.uint64(0xFFFFFFFF)


def checksums(
    kernels: CpuKernels | None, blocks: NDArray[np.uint8], at: NDArray[np.int32], seed: int, threads: int
) -> Uint64Array:
    """Compute uint64 [n], the checksums of the blocks `at` int32 [n] of `blocks` uint8 [num_blocks, bytes], whose rows are
    contiguous. `seed`: 64 bits. Raises IndexError for a block that does not exist."""
    at = np.ascontiguousarray(at, np.int32)
    if len(at) and (at.min() < 0 or at.max() >= len(blocks)):
        raise IndexError(f"a block outside 0..{len(blocks) - 1}")
    if kernels is None:
        return checksums_plain(blocks, at, seed)
    out = np.empty(len(at), np.uint64)
    kernels.checksums(
        blocks.ctypes.data, blocks.strides[0], blocks.shape[1], at.ctypes.data, len(at), seed, out.ctypes.data,
        threads,
    )  # fmt: skip
    return out


def checksums_plain(blocks: NDArray[np.uint8], at: NDArray[np.int32], seed: int) -> Uint64Array:
    """Do the same as `checksums` without kernels, one block after the other."""
    return np.array([_checksum(blocks[block], seed) for block in at.tolist()], np.uint64)


def _mixed(x: Uint64Array) -> Uint64Array:
    """The end of splitmix64 (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


with np.errstate(over="ignore"):
    _KEYS = _mixed(np.arange(1, _STRIPES * _LANES + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
_NEIGHBOURS = np.arange(_LANES) ^ 1


def _checksum(data: NDArray[np.uint8], seed: int) -> int:
    loaves = -(-len(data) // _LOAF_BYTES)
    padded = np.zeros(loaves * _LOAF_BYTES, np.uint8)
    padded[: len(data)] = data
    words = padded.view(np.uint64).reshape(loaves, _STRIPES, _LANES)
    keyed = words ^ _KEYS.reshape(_STRIPES, _LANES)
    terms = (keyed & _LOW) * (keyed >> np.uint64(32)) + words[..., _NEIGHBOURS]
    # Of a last loaf that is not full, stripes behind the data do not count.
    stripes = -(-(len(data) - (loaves - 1) * _LOAF_BYTES) // (8 * _LANES))
    sums = terms.sum(axis=1, dtype=np.uint64)
    if loaves and stripes < _STRIPES:
        sums[-1] = terms[-1, :stripes].sum(axis=0, dtype=np.uint64)
    with np.errstate(over="ignore"):
        seeds = np.full(1, seed, np.uint64)
        total = _mixed(seeds + _KEYS[:_LANES])
        for loaf in sums:
            total = total + loaf
            total = (total ^ (total >> np.uint64(47)) ^ _KEYS[:_LANES]) * _PRIME
        result = _mixed(seeds ^ np.full(1, len(data), np.uint64) * _PRIME)
        for lane in range(_LANES):
            result = _mixed(result ^ total[lane : lane + 1])
    return int(result[0])
