"""Layers with windows have blocks of their own, which are freed behind the windows: tokens and logprobs stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ExecutorMemoryConfig, OptimizationConfig
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.executor import LlmExecutor
from tests.executors.llm.driver import Driver, config
from tests.executors.llm.models import Reference
from tests.executors.llm.windows import Found, Walk, one_group

SHAPES = {
    "gemma3-two-ropes": (19, None),
    "gemma2-caps-alternating-windows": (23, None),
    "qwen3-window-on-last-layers": (None, 21),
    "mistral-window": (17,),
    "phi3-window": (33,),
    "mixtral-window-one-kv-head": (13,),
}


async def walked(
    path: Path, backend: str, block_size: int, kv: str = "auto", **changes: Any
) -> tuple[Found, Walk]:
    settings = config(
        path, attention=ExecutorAttentionConfig(block_size, backend),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=4 << 20, kv_cache_dtype=kv), **changes,
    )  # fmt: skip
    executor = LlmExecutor.from_config(settings)
    await executor.warmup()
    await executor.begin_epoch(1)
    walk = Walk(executor, 100)
    found = await walk.take()
    await executor.shutdown()
    return found, walk


CASES = [
    ("gemma3-two-ropes", "auto", 4, "auto"),
    ("mistral-window", "auto", 4, "auto"),
    *(
        pytest.param(name, backend, size, kv, marks=pytest.mark.long(every=3))
        for name in SHAPES
        for backend, size, kv in [
            ("auto", 16, "auto"),
            ("torch", 4, "auto"),
            ("auto", 16, "int8"),
            ("torch", 4, "fp8"),
        ]
    ),
]


@pytest.mark.parametrize(("name", "backend", "block_size", "kv"), CASES)
async def test_windows_of_their_own_change_nothing(
    name: str, backend: str, block_size: int, kv: str, reference: Callable[[str], Reference]
) -> None:
    path = reference(name).path
    with one_group():
        expected, alone = await walked(path, backend, block_size, kv)
    assert alone.freed == 0 and len(alone.kv.caches) == 1
    found, walk = await walked(path, backend, block_size, kv)
    assert tuple(cache.spec.windows[0] for cache in walk.kv.caches if cache is not None) == SHAPES[name]
    assert walk.freed > (15 if block_size == 4 else 3), "blocks that were freed"
    assert found == expected


async def test_blocks_behind_a_window_are_not_in_use(reference: Callable[[str], Reference]) -> None:
    """Of 60 tokens a layer that keeps all has 15 blocks of 4, a window of 19 tokens 6 of them."""
    executor = LlmExecutor.from_config(config(reference("gemma3-two-ropes").path))
    await executor.warmup()
    await executor.begin_epoch(1)
    walk = Walk(executor, 100)
    seq = walk.add(60, 1)
    await walk.step((seq, 60))
    facts = executor.cache_metrics_snapshot()
    assert facts is not None and facts["blocks_in_tables"] == 15 + 6
    assert facts["blocks_total"] == sum(walk.kv.num_blocks)
    assert facts["capacity_tokens"] == executor.kv_layout().max_tokens == 4 * walk.kv.num_blocks[1]


@pytest.mark.long
async def test_steady_results_are_the_same_bits(reference: Callable[[str], Reference]) -> None:
    how = OptimizationConfig(num_threads=1, deterministic=True)
    path = reference("gemma3-two-ropes").path
    with one_group():
        expected, _ = await walked(path, "auto", 16, dtype="bfloat16", optimization=how)
    found, walk = await walked(path, "auto", 16, dtype="bfloat16", optimization=how)
    assert found == expected and walk.freed > 3


@pytest.mark.parametrize(
    ("backend", "block_size", "kv"),
    [
        ("auto", 4, "auto"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [("auto", 16, "int8"), ("torch", 4, "auto"), ("torch", 4, "fp8")]
        ),
    ],
)
async def test_heads_of_two_sizes_and_shared_kv(
    backend: str,
    block_size: int,
    kv: str,
    reference: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks that windows have left hold no numbers, and nothing changes against a life in which none is freed."""
    path = reference("gemma4-inputs-of-layers-and-shared-kv").path
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "slide", lambda *_: None)
        expected, whole = await walked(path, backend, block_size, kv)
    found, walk = await walked(path, backend, block_size, kv)
    assert [cache and cache.spec.head_dim for cache in walk.kv.caches] == [16, 24]
    assert whole.freed == 0 and walk.freed > (15 if block_size == 4 else 3)
    assert found == expected
