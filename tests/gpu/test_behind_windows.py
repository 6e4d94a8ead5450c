"""Blocks behind a window belong to other sequences: kernels read none of them, though they read keys by the tile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from executors.llm.attention.library import LibraryAttention, PackedLibraryAttention, PagedMeta
from executors.llm.attention.packed import StepMeta
from executors.llm.attention.tile_pieces import TileRule
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays
from tests.gpu.test_attention import DEVICE, Batch, check, fresh
from tests.gpu.test_shared_extend import Shared

pytestmark = pytest.mark.long

PAGE = 16


class Freed(Batch):
    """Every block before the windows of an item's queries is freed and holds no number; tables name another such block there."""

    def __init__(self, q_lens: list[int], past: list[int], window: int) -> None:
        super().__init__(q_lens, past, (4, 2), 32, PAGE, torch.float32, window)
        empty = int(torch.nonzero(self.kv.isnan().flatten(2).all(2).all(0)).max())
        for table, begin in zip(self.tables, past, strict=True):
            behind = max(0, begin + 1 - window) // PAGE
            self.kv[:, table[:behind]] = torch.nan
            table[:behind] = empty


@pytest.mark.long(every=5)
@pytest.mark.parametrize("window", [5, 16, 23, 70, 200])
@pytest.mark.parametrize("splits", [1, 4])
def test_decode(window: int, splits: int) -> None:
    batch = Freed([1] * 4, [3, 40, 217, 300], window)
    out = fresh(batch)
    batch.decode(np.arange(4), splits, window, None, out)
    check(out, batch.expected(window, None), torch.float32)


@pytest.mark.parametrize("window", [5, 23, 70, 200])
def test_extend(window: int) -> None:
    batch = Freed([60, 9, 33], [250, 100, 37], window)
    out = fresh(batch)
    batch.extend(np.arange(3), window, None, out)
    check(out, batch.expected(window, None), torch.float32)


@pytest.mark.parametrize("window", [5, 23, 70, 200])
def test_shared_extend(window: int) -> None:
    batch = Freed([60, 9, 33], [250, 100, 37], window)
    shared = Shared(batch, np.arange(3))
    out = shared.attend(TileRule(64, 32, least=64).cut(shared.keys), window, None)
    check(out, batch.expected(window, None), torch.float32)


class WholeTiles:
    """A library's kernel that reads tiles of 64 keys from the one in which the first query's window begins, and gives hidden keys
    no weight."""

    name = "whole tiles"

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, meta: PagedMeta, spec: KvSpec, window: int | None
    ) -> torch.Tensor:  # fmt: skip
        assert window is not None
        out = torch.empty_like(q)
        for i, length in enumerate(meta.lengths.tolist()):
            begin, end = meta.q_bounds[i : i + 2].tolist()
            past = length - (end - begin)
            first = max(0, past + 1 - window) // 64 * 64
            place = torch.arange(first, length, device=q.device)
            block = meta.tables[i, place // PAGE].long()
            k, v = (side[block, place % PAGE].repeat_interleave(2, 1) for side in (keys, values))
            own = torch.arange(past, length, device=q.device)[:, None]
            hidden = (place > own) | (place <= own - window)
            scores = torch.einsum("qhd,khd->hqk", q[begin:end], k) * spec.scale
            out[begin:end] = torch.einsum(
                "hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v
            )
        return out


def by_steps(batch: Freed, cache: KvCache) -> torch.Tensor:
    step = StepArrays(np.zeros(len(batch.q), np.int64), batch.q_lens, batch.past, batch.tables)
    return LibraryAttention("any", WholeTiles()).begin(step, cache).attend(0, batch.q.to(DEVICE))


def packed(batch: Freed, cache: KvCache) -> torch.Tensor:
    none = torch.empty(0, dtype=torch.int32, device=DEVICE)
    to = batch.on_device
    meta = StepMeta(
        none,
        to(batch.starts),
        to(batch.q_lens),
        to(batch.past),
        to(batch.lengths),
        to(batch.tables),
        none,
        none,
        0,
        none,
        none,
    )
    return PackedLibraryAttention("any", WholeTiles()).bind(meta, cache).attend(0, batch.q.to(DEVICE))


@pytest.mark.parametrize("attend", [by_steps, packed])
@pytest.mark.parametrize("window", [23, 70, 200])
def test_libraries(window: int, attend: Callable[[Freed, KvCache], torch.Tensor]) -> None:
    batch = Freed([60, 9, 1], [250, 100, 237], window)
    spec = KvSpec(1, 4, 2, 32, torch.float32, DEVICE, 32**-0.5, None, (window,))
    cache = KvCache(spec, batch.kv.shape[1], PAGE)
    cache.layers[0].copy_(batch.kv)
    batch.tables = np.where(batch.tables == 10**6, 0, batch.tables)
    check(attend(batch, cache), batch.expected(window, None), torch.float32)
