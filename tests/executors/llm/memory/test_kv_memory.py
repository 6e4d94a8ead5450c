"""KV on a CPU becomes memory when it is used, and is given back without touching what lies beside it."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.cgroup import MemoryLimit, resident_bytes
from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryConfig,
    InvalidInput,
    ParallelConfig,
    Unavailable,
)
from executors.llm.memory import kv_plan
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.kv_plan import on_demand, plan_kv
from executors.llm.model.caches import KvSpec
from tests.executors.llm.driver import start
from tests.tiers import examples

MIB = 1 << 20
CPU = torch.device("cpu")


def spec(kv_heads: int, head_dim: int, layers: int = 2, dtype: torch.dtype = torch.float32) -> KvSpec:
    return KvSpec(layers, kv_heads, kv_heads, head_dim, dtype, CPU, 1.0, None, (None,) * layers)


def configured(**memory: object) -> ExecutorConfig:
    return ExecutorConfig("llm", max_num_seqs=4, memory=ExecutorMemoryConfig(**memory))  # type: ignore[arg-type]


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a container's limit."""
    monkeypatch.setattr(kv_plan, "cgroup_memory", list)


def test_kv_is_no_memory_before_it_is_written_nor_after_it_was_given_back() -> None:
    cache = KvCache(spec(8, 128), 1024, 16)  # 256 KiB a block: 256 MiB in all
    assert cache.num_bytes == 256 * MIB
    before = resident_bytes()
    for layer in cache.layers:
        layer[:, 64:192] = 1.0
    written = resident_bytes() - before
    assert 32 * MIB <= written < 48 * MIB, "128 blocks were written, and what shares large pages with them"
    cache.give_back(np.arange(64, 192, dtype=np.int32))
    assert resident_bytes() - before < 16 * MIB
    assert not any(layer[:, 64:192].any() for layer in cache.layers)
    for layer in cache.layers:
        layer[:, 64:192] = 2.0
    assert all(bool((layer[:, 64:192] == 2.0).all()) for layer in cache.layers)


@settings(max_examples=examples(25), deadline=None)
@given(
    blocks=st.sets(st.integers(0, 59)),
    # Blocks with and without padding, of keys smaller and larger than a page.
    shape=st.sampled_from([(1, 20, 4), (3, 64, 16), (2, 128, 8), (1, 4, 1)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_blocks_beside_those_given_back_keep_their_content(
    blocks: set[int], shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    kv_heads, head_dim, block_size = shape
    cache = KvCache(spec(kv_heads, head_dim, dtype=dtype), 60, block_size)
    values = torch.arange(1, 61, dtype=dtype).view(1, 60, 1, 1, 1)
    for layer in cache.layers:
        layer.copy_(values.expand_as(layer))
    cache.give_back(np.array(sorted(blocks), np.int32))
    others = [block for block in range(60) if block not in blocks]
    for layer in cache.layers:
        assert torch.equal(layer[:, others], values.expand_as(layer)[:, others])


def test_a_block_that_does_not_exist_is_refused() -> None:
    cache = KvCache(spec(1, 16), 8, 4)
    for blocks in ([-1, 0], [7, 8]):
        with pytest.raises(InvalidInput, match=r"outside 0\.\.7"):
            cache.give_back(np.array(blocks, np.int32))


@pytest.mark.parametrize(
    ("memory", "limit", "device", "expected"),
    [
        ({}, [], "cpu", True),
        ({}, [(1 << 31, 0)], "cpu", False),
        ({"kv_cache_memory_bytes": 64 * MIB}, [], "cpu", False),
        # One of several models: its share is within the limit, and goes to another where it is unused.
        ({"memory_limit_bytes": 1 << 34}, [], "cpu", True),
        ({"memory_limit_bytes": 1 << 34}, [(1 << 35, 0)], "cpu", True),
        ({"memory_limit_bytes": 1 << 34, "kv_cache_memory_bytes": 64 * MIB}, [], "cpu", False),
        # The second life of an executor that began on demand: the number of its blocks is fixed, no more.
        ({"kv_cache_memory_bytes": 64 * MIB, "kv_on_demand": True}, [], "cpu", True),
        ({"kv_on_demand": False}, [], "cpu", False),
        ({}, [], "cuda", False),
    ],
)
def test_who_said_how_much_there_is_gets_it_at_the_start(
    memory: dict[str, object],
    limit: list[tuple[int, int]],
    device: str,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_plan, "cgroup_memory", lambda: limit)
    assert on_demand(torch.device(device), configured(**memory)) is expected


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "dtype", "blocks"),
    [(8, 128, torch.bfloat16, 16), (3, 64, torch.bfloat16, 86), (8, 256, torch.float32, 4)],
)
def test_a_span_is_a_large_page(
    kv_heads: int, head_dim: int, dtype: torch.dtype, blocks: int, roomy: None
) -> None:
    plan = plan_kv(spec(kv_heads, head_dim, dtype=dtype), configured(), 256, measured=1 << 28)
    assert plan.layout.groups[0].blocks_per_span == blocks
    fixed = plan_kv(spec(kv_heads, head_dim, dtype=dtype), configured(kv_cache_memory_bytes=1 << 28), 256)
    assert not fixed.layout.on_demand
    # What is promised is the same either way.
    assert replace(plan.layout.groups[0], blocks_per_span=0) == fixed.layout.groups[0]


def test_what_does_not_fit_is_refused_on_demand_as_well(roomy: None) -> None:
    config = replace(configured(), max_model_len=4096)
    with pytest.raises(ConfigError, match="max_model_len 4096"):
        plan_kv(spec(8, 128), config, 4096, measured=4 * MIB)


@pytest.mark.parametrize(("total", "passing"), [(64, True), (1, False)])
def test_memory_that_others_hold_may_come_back(
    total: int, passing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`total` in GiB; a sequence needs 512 MiB, and 8 MiB are free now."""
    limit = MemoryLimit(total << 30, 8 * MIB)
    monkeypatch.setattr(kv_plan, "memory_limit", lambda: limit)
    monkeypatch.setattr(kv_plan, "resident_bytes", lambda: 700 * MIB)
    config = replace(configured(), max_model_len=4096)
    with pytest.raises(ConfigError, match="max_model_len 4096") as caught:
        plan_kv(spec(32, 128), config, 4096)
    assert isinstance(caught.value, Unavailable) is passing


async def test_the_start_touches_kv_only_where_its_size_was_given(
    qwen3, roomy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = threading.Event()
    monkeypatch.setattr(KvCache, "touch", lambda self, *rest: touched.set())
    executor = await start(qwen3, memory=ExecutorMemoryConfig())
    assert executor.kv_layout().on_demand
    assert not any(thread.name == "kv-memory" for thread in threading.enumerate()) and not touched.is_set()
    # The guard goes by what is reserved, memory or not.
    assert executor.status().memory.allocated_bytes >= executor._runtime.runner.cache.num_bytes
    executor = await start(qwen3)
    assert touched.wait(10)  # on a thread
    assert not executor.kv_layout().on_demand


async def test_the_executor_gives_back_what_it_is_told(qwen3, roomy: None) -> None:
    executor = await start(qwen3, block_size=64, memory=ExecutorMemoryConfig())
    cache = executor._runtime.runner.cache
    for layer in cache.layers:
        layer.fill_(1.0)
    executor.release_memory(0, np.arange(1, cache.num_blocks[0], dtype=np.int32))
    assert all(bool((layer[:, 0] == 1.0).all()) for layer in cache.layers)
    assert all(not layer[:, 2:-1].any() for layer in cache.layers)
    await executor.shutdown()
    executor.release_memory(0, np.arange(2, dtype=np.int32))


def test_a_device_keeps_its_memory() -> None:
    cache = KvCache(spec(8, 128), 3, 16, by_block=False)
    assert cache.blocks is None
    for layer in cache.layers:
        layer.fill_(1.0)
    cache.give_back(np.arange(3, dtype=np.int32))
    assert all(bool((layer == 1.0).all()) for layer in cache.layers)


def test_ranks_share_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_plan, "memory_limit", lambda: SimpleNamespace(available=800 * MIB))
    alone = configured()
    of_four = replace(alone, parallel=ParallelConfig(2, 2, 3))
    assert kv_plan.free_bytes(None, alone)[0] == 800 * MIB
    assert kv_plan.free_bytes(None, of_four)[0] == 200 * MIB
    blocks = [
        plan_kv(spec(2, 64), replace(one, max_num_seqs=4096), 4096).layout.num_blocks
        for one in (alone, of_four)
    ]
    assert blocks[0] // 4 == blocks[1]
