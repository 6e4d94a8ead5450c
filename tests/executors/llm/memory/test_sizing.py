"""Batch limits that nobody asked for follow the box: threads and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executors.contract import ExecutorConfig, OptimizationConfig
from executors.llm.memory import sizing
from executors.llm.model.caches import KvSpec
from tests.executors.llm.driver import start

MIB = 1 << 20


def source(vocabulary: int = 1000, per_token: int = 10_000, device: str = "cpu") -> Any:
    """As much of a loaded model as sizing looks at."""
    spec = KvSpec(2, 4, 2, 64, torch.float32, torch.device(device), 0.125, None, (None, None))
    info = SimpleNamespace(logits_width=vocabulary, max_model_len=2048)
    return SimpleNamespace(
        model=SimpleNamespace(cache_specs=(spec,)), info=info, activation_bytes_per_token=per_token,
        adapter_bytes_per_rank=MIB,
    )  # fmt: skip


def limits(free: int, model: Any, threads: int = 4, loras: int = 0, **changes: Any) -> tuple[int, int]:
    settings = {"shrink_batch": True, **changes}
    optimization = OptimizationConfig(num_threads=threads, max_loras=loras, max_lora_rank=16)
    config = ExecutorConfig("llm", optimization=optimization, **settings)
    chosen = sizing.fitting(config, model, free)
    return chosen.max_num_seqs, chosen.max_num_batched_tokens


def test_plenty_of_everything_keeps_the_usual_limits():
    assert limits(10_000 * MIB, source()) == (64, 2048)


@pytest.mark.parametrize(("threads", "tokens"), [(1, 512), (2, 1024), (3, 1536), (8, 2048)])
def test_few_threads_make_smaller_steps(threads, tokens):
    assert limits(10_000 * MIB, source(), threads) == (64, tokens)


def test_a_gpu_is_not_limited_by_the_threads_of_its_host():
    assert limits(10_000 * MIB, source(device="cuda"), 1) == (64, 2048)


def test_short_memory_halves_both_until_a_step_takes_a_quarter_at_most():
    # Logits of 64 rows: 152,000 x 8 x 64 = 77.8 MB; activations of 2,048 tokens: 20.5 MB. A quarter of 200 MiB is 52.4 MB.
    assert limits(200 * MIB, source(vocabulary=152_000)) == (32, 1024)
    assert limits(60 * MIB, source(vocabulary=152_000)) == (8, 256)


def test_memory_of_adapters_does_not_shrink_what_fits_beside_it():
    # 128 of 328 MiB are the adapters', of 16 MiB each: over a quarter, and no limit would make it less.
    assert limits(328 * MIB, source(), loras=8) == (64, 2048)
    assert limits(328 * MIB, source(vocabulary=152_000), loras=8) == (32, 1024)


def test_what_was_asked_for_is_kept():
    assert limits(MIB, source(vocabulary=152_000), shrink_batch=False) == (64, 2048)
    assert limits(MIB, source(), max_num_seqs=2, max_num_batched_tokens=64) == (2, 64)


async def test_the_executor_says_what_it_took(qwen3):
    executor = await start(qwen3, max_num_seqs=16, max_num_batched_tokens=4096, shrink_batch=True)
    assert executor.capabilities().max_batch_size == 16
    assert executor.capabilities().max_batched_tokens == 512  # one thread
    fixed = await start(qwen3, max_num_batched_tokens=4096)
    assert fixed.capabilities().max_batched_tokens == 4096
