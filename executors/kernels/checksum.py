"""Checksums of KV blocks: 64 bits over a range of bytes, by Cohort's CPU kernels or, where there are none, by NumPy.

The definition is in checksum.h. It is no signature: it finds stray writes, not an attacker who can write to the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executors.kernels.cpu import CpuKernels

Uint64Array = NDArray[np.uint64]
_LANES, _STRIPES = 8, 16
_LOAF_BYTES = 8 * _LANES * _STRIPES
_PRIME = np.uint64(0x9E3779B185EBCA87)
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Blocks within uint8 [n] `memory`: block b is `pieces` ranges of `piece_bytes`, at b * `stride` + p * `piece_stride`."""

    memory: NDArray[np.uint8]
    stride: int
    piece_bytes: int
    pieces: int = 1
    piece_stride: int = 0

    @property
    def num_blocks(self) -> int:
        """Number of whole blocks."""
        before = (self.pieces - 1) * self.piece_stride + self.piece_bytes
        return (len(self.memory) - before) // self.stride + 1 if len(self.memory) >= before else 0

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's checksum."""
        return self.pieces * self.piece_bytes


def checksums(
    kernels: CpuKernels | None, blocks: BlockMemory, at: NDArray[np.int32], seed: int, threads: int
) -> Uint64Array:
    """Compute uint64 [n], the checksums of the blocks `at` int32 [n]. `seed`: 64 bits. Raises IndexError for a block outside
    the memory."""
    at = np.ascontiguousarray(at, np.int32)
    if len(at) and (at.min() < 0 or at.max() >= blocks.num_blocks):
        raise IndexError(f"a block outside 0..{blocks.num_blocks - 1}")
    if kernels is None:
        return checksums_plain(blocks, at, seed)
    out = np.empty(len(at), np.uint64)
    kernels.checksums(
        blocks.memory.ctypes.data, blocks.stride, blocks.pieces, blocks.piece_stride, blocks.piece_bytes,
        at.ctypes.data, len(at), seed, out.ctypes.data, threads,
    )  # fmt: skip
    return out


def checksums_plain(blocks: BlockMemory, at: NDArray[np.int32], seed: int) -> Uint64Array:
    """Do the same as `checksums` without kernels, one block after the other."""
    out = np.empty(len(at), np.uint64)
    for i, block in enumerate(at.tolist()):
        total = seed
        for piece in range(blocks.pieces):
            begin = block * blocks.stride + piece * blocks.piece_stride
            total = _checksum(blocks.memory[begin : begin + blocks.piece_bytes], total)
        out[i] = total
    return out


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
