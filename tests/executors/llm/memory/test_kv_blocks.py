"""On a CPU a block is one range of bytes: all layers write, copy and give back a block within its own range."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from executors.llm.attention.backend import AttentionBackend
from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import BLOCK_ALIGNMENT, KvSpec
from executors.llm.step_arrays import StepArrays
from tests.executors.kernels.steps import spec

BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = [
    # Blocks of whole pages; of a page and a part; of a part of a page.
    (replace(spec(4, 2, 64, BF16), num_layers=2, windows=(None, None)), 16),
    (replace(spec(3, 3, 20, FP32), num_layers=3, windows=(None, 5, None)), 8),
    (replace(spec(2, 1, 17, BF16), num_layers=2, windows=(None, None)), 16),
    (replace(spec(4, 2, 33, BF16), num_layers=2, windows=(None, None), kv_dtype=torch.int8), 16),
]
shapes = pytest.mark.parametrize(("kind", "size"), SHAPES)


def _pattern(cache: KvCache) -> np.ndarray:
    """Write other bytes to every layer and side of every block; return what the blocks then are."""
    for layer, kv in enumerate(cache.layers):
        for side in range(2):
            for block in range(cache.num_blocks):
                raw = torch.from_numpy(
                    np.full(kv[side, block].nbytes, 1 + 7 * layer + 3 * side + 31 * block, np.uint8)
                )
                kv[side, block].copy_(raw.view(kv.dtype).view(kv[side, block].shape))
    assert cache.blocks is not None
    return cache.blocks.copy()


@shapes
def test_layers_lie_one_after_the_other_in_a_block_and_heads_in_a_layer(kind: KvSpec, size: int) -> None:
    cache = KvCache(kind, 5, size)
    written = _pattern(cache)
    side_bytes = size * kind.bytes_per_cell()
    assert written.shape == (5, kind.bytes_per_block(size)) and written.shape[1] % BLOCK_ALIGNMENT == 0
    assert written.shape[1] - kind.bytes_per_token() * size < BLOCK_ALIGNMENT
    for block in range(5):
        sides = [
            1 + 7 * layer + 3 * side + 31 * block
            for layer in range(kind.num_layers)
            for _ in range(kind.num_kv_heads)
            for side in range(2)
        ]
        expected = np.zeros(written.shape[1], np.uint8)
        expected[: len(sides) * side_bytes] = np.repeat(np.array(sides, np.uint8), side_bytes)
        assert np.array_equal(written[block], expected)
    assert cache.num_bytes == written.nbytes


def _backends(kind: KvSpec) -> list[AttentionBackend]:
    return [CpuAttention(threads=2), *([TorchAttention()] if kind.kv_dtype is None else [])]


@shapes
def test_a_step_writes_the_ranges_of_its_blocks_only(kind: KvSpec, size: int) -> None:
    for backend in _backends(kind):
        _check_ranges(backend, kind, size)


def _check_ranges(backend: AttentionBackend, kind: KvSpec, size: int) -> None:
    cache = KvCache(kind, 6, size)
    before = _pattern(cache)
    tables = np.array([[4, 1]], np.int32)
    tokens = size + 3
    step = StepArrays(np.zeros(tokens, np.int64), np.array([tokens]), np.array([0]), tables)
    attend = backend.begin(step, cache)
    layer_bytes = kind.bytes_per_token() * size // kind.num_layers
    for layer in range(kind.num_layers):
        q, k, v = (
            torch.randn(tokens, heads, kind.head_dim).to(kind.dtype)
            for heads in (kind.num_heads, kind.num_kv_heads, kind.num_kv_heads)
        )
        attend(layer, q, k, v)
        assert cache.blocks is not None
        changed = cache.blocks != before
        assert set(np.flatnonzero(changed.any(1))) == {1, 4}
        places = np.flatnonzero(changed.any(0))
        assert places.min() // layer_bytes == places.max() // layer_bytes == layer
        before = cache.blocks.copy()


@shapes
def test_both_placements_have_the_same_results(kind: KvSpec, size: int) -> None:
    tokens, past = 4, size
    step = StepArrays(
        np.zeros(tokens, np.int64), np.array([tokens]), np.array([past]), np.array([[3, 1]], np.int32)
    )
    first = StepArrays(
        np.zeros(past, np.int64), np.array([past]), np.array([0]), np.array([[3, 1]], np.int32)
    )
    torch.manual_seed(0)
    rows = [
        [
            torch.randn(past, h, kind.head_dim).to(kind.dtype)
            for h in (kind.num_heads, *[kind.num_kv_heads] * 2)
        ]
        for _ in range(kind.num_layers)
    ]
    for backend in _backends(kind):
        results = []
        for by_block in (True, False):
            cache = KvCache(kind, 4, size, by_block=by_block)
            for one in (first, step):
                attend = backend.begin(one, cache)
                count = len(one.token_ids)
                results.append([attend(i, *(x[:count] for x in row)).clone() for i, row in enumerate(rows)])
        for ours, theirs in zip(results[:2], results[2:], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@shapes
def test_a_copied_block_is_the_same_bytes(kind: KvSpec, size: int) -> None:
    cache = KvCache(kind, 5, size)
    before = _pattern(cache)
    cache.copy_blocks(np.array([[1, 3], [3, 4]], np.int32))
    assert cache.blocks is not None
    assert np.array_equal(cache.blocks, before[[0, 1, 2, 1, 3]])


def test_blocks_of_a_file_are_given_back_there_too() -> None:
    kind, size = SHAPES[0]
    length = 8 * kind.bytes_per_block(size)
    fd = os.memfd_create("kv")
    try:
        os.ftruncate(fd, length)
        cache = KvCache(kind, 8, size, np.frombuffer(mmap.mmap(fd, length), np.uint8))
        before = _pattern(cache)
        assert os.pread(fd, length, 0) == before.tobytes(), "the blocks lie in the file"
        held = os.fstat(fd).st_blocks
        cache.give_back(np.array([1, 2, 5], np.int32))
        assert os.fstat(fd).st_blocks == held - 3 * kind.bytes_per_block(size) // 512
        before[[1, 2, 5]] = 0
        assert np.array_equal(cache.blocks, before)
    finally:
        os.close(fd)


def test_memory_that_cannot_hold_the_blocks_is_refused() -> None:
    kind, size = SHAPES[0]
    length = 8 * kind.bytes_per_block(size)
    memory = np.frombuffer(mmap.mmap(-1, length + 4096), np.uint8)
    for part in (memory[: length - 1], memory[64:]):
        with pytest.raises(ValueError, match="from the beginning of a page"):
            KvCache(kind, 8, size, part)
    assert len(KvCache(kind, 8, size, memory).blocks) == 8  # type: ignore[arg-type]
