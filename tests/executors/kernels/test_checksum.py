"""Checksums of blocks: the same on every instruction set, and different for every kind of damage that is known of memory."""

from __future__ import annotations

import numpy as np
import pytest

from executors.kernels.checksum import checksums, checksums_plain
from executors.kernels.cpu import cpu_kernels
from tests.executors.llm.attention.test_cpu_attention import every_isa

LENGTHS = (0, 1, 63, 64, 65, 1000, 1024, 1088, 4096, 5001)


def counting(size: int) -> np.ndarray:
    return (np.arange(size) * 7 % 251).astype(np.uint8)


def one(data: np.ndarray, seed: int = 3) -> int:
    return int(checksums_plain(data[None], np.zeros(1, np.int32), seed)[0])


@pytest.mark.parametrize(
    ("length", "seed", "checksum"),
    [
        (0, 0, 0x0D0C3BF3287D2152),
        (1, 0, 0x69198A482E87FAD0),
        (64, 1, 0xD4D7BA3FB766F7E1),
        (1000, 2**64 - 1, 0xA22B936BFE4D5A53),
        (4096, 7, 0xCE0BB37CE45C7C16),
    ],
)
def test_vectors(length: int, seed: int, checksum: int) -> None:
    """A seal of one life is compared in another, which may run the code of a later version: then this must change, too."""
    assert one(counting(length), seed) == checksum


@every_isa
@pytest.mark.parametrize("threads", [1, 2])
def test_every_instruction_set_has_the_same_result(isa: str, threads: int) -> None:
    rng = np.random.default_rng(1)
    for length in LENGTHS:
        # Blocks lie at odd addresses, with something in between.
        memory = rng.integers(0, 256, (3, length + 3), np.uint8)[:, 1 : length + 1]
        at = np.array([2, 0, 1, 0], np.int32)
        for seed in (0, 2**64 - 1):
            fast = checksums(cpu_kernels(isa), memory, at, seed, threads)
            assert fast.tolist() == checksums_plain(memory, at, seed).tolist()
            assert fast[1] == fast[3] and (length < 8 or len(set(fast.tolist())) == 3)


def test_every_flipped_bit_counts() -> None:
    data = counting(1088)
    results = {one(data)}
    for at in range(0, len(data), 5):
        flipped = data.copy()
        flipped[at] ^= 1 << at % 8
        results.add(one(flipped))
    assert len(results) == 1 + -(-len(data) // 5)


def test_order_length_and_zeros_count() -> None:
    data = np.random.default_rng(2).integers(0, 256, 4096, np.uint8)
    words, loaves = data.view(np.uint64), data.reshape(4, 1024)
    swapped = words.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    next_stripe = words.copy()
    next_stripe[[0, 8]] = next_stripe[[8, 0]]
    zeros = np.zeros(4096, np.uint8)
    kinds = [
        data, swapped.view(np.uint8), next_stripe.view(np.uint8), loaves[[1, 0, 2, 3]].ravel(), np.roll(data, 1),
        np.roll(data, 64), np.roll(data, 1024), data[:-1], np.append(data, np.uint8(0)), zeros, zeros[:-64], zeros[:1024],
        ~zeros,
    ]  # fmt: skip
    assert len({one(kind) for kind in kinds} | {one(data, seed=4), one(zeros, seed=4)}) == len(kinds) + 2


def test_blocks_outside_the_memory_are_refused() -> None:
    memory = np.zeros((10, 64), np.uint8)
    for wrong in (-1, 10):
        with pytest.raises(IndexError, match=r"outside 0\.\.9"):
            checksums(None, memory, np.array([wrong], np.int32), 0, 1)
