"""Blocks behind a window belong to other sequences: what they hold, and which blocks a table names there, changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executors.kernels.compiler import usable_isas
from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.memory.kv_cache import KvCache
from tests.executors.kernels.steps import Sequences, spec

LENGTHS = [1, 40, 700, 640, 90, 560, 333]
ITEMS = {
    "decode": [(0, 0, 1), (1, 39, 1), (2, 699, 1), (3, 599, 1), (4, 60, 1)],
    "mixed": [(5, 555, 3), (1, 0, 40), (3, 400, 200), (2, 650, 1), (4, 80, 5), (6, 200, 133)],
}
BOTH = [(name, kv) for name in (isa.name for isa in usable_isas()) for kv in (None, torch.int8)]
KINDS = [*BOTH, ("torch", None)]
MARK = pytest.mark.long(every=6)
CASES = [
    pytest.param(*one, window, kind, marks=[] if quick else [MARK])
    for one in KINDS for window in (7, 100, 530) for kind in ITEMS
    for quick in [window == 100 and kind == "mixed" and one in (*BOTH[:2], KINDS[-1])]
]  # fmt: skip


def backend(name: str) -> Any:
    return TorchAttention() if name == "torch" else CpuAttention(name, 2)


def computed(seqs: Sequences, past: list[int], name: str) -> KvCache:
    """KV of the first `past` tokens of each sequence; other cells hold no number."""
    cache = KvCache(seqs.spec, seqs.num_blocks, seqs.block_size)
    nothing(cache, slice(None))
    items = [(i, 0, count) for i, count in enumerate(past) if count]
    seqs.run(items, backend(name), cache)
    return cache


def nothing(cache: KvCache, blocks: Any) -> None:
    """Of int8 the codes and scales of -1: as a scale, not a number."""
    cache.layers[0][:, blocks] = -1 if cache.spec.kv_dtype is torch.int8 else torch.nan


@pytest.mark.parametrize(("name", "kv_dtype", "window", "kind"), CASES)
def test_nothing_behind_the_window_is_read(
    name: str, kv_dtype: torch.dtype | None, window: int, kind: str
) -> None:
    of_one = spec(4, 2, 48, torch.bfloat16, windows=(window,), kv_dtype=kv_dtype)
    seqs, items = Sequences(of_one, LENGTHS), ITEMS[kind]
    past = [0] * len(LENGTHS)
    for i, begin, _ in items:
        past[i] = begin
    expected = seqs.run(items, backend(name), computed(seqs, past, name))
    cache, freed = computed(seqs, past, name), 0
    unused = int(seqs.tables[0, -1])
    for i, begin in enumerate(past):
        behind = max(0, begin + 1 - window) // seqs.block_size
        nothing(cache, seqs.tables[i, :behind].astype(np.int64))
        seqs.tables[i, :behind] = unused
        freed += behind
    nothing(cache, unused)
    assert freed > 7, "there is something to read"
    found = seqs.run(items, backend(name), cache)
    assert found.isfinite().all() and torch.equal(found, expected)
