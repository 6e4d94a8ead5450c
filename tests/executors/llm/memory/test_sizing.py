"""Batch limits that nobody asked for follow the box: threads and memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executors.contract import BATCH_LIMITS, ExecutorConfig, OptimizationConfig
from executors.devices import GPU
from executors.llm.device.table import class_of
from executors.llm.memory import sizing
from executors.llm.model.caches import KvSpec, kv_group
from tests.executors.llm.driver import start

MIB = 1 << 20
DEVICES_HERE = {name: class_of(name)(torch.device(name)) for name in ("cpu", GPU)}
"""Both kinds, neither of which is asked for anything that a machine without it has not."""


def source(vocabulary: int = 1000, per_token: int = 10_000, device: str = "cpu") -> Any:
    """As much of a loaded model as sizing looks at."""
    spec = KvSpec(2, 4, 2, 64, torch.float32, torch.device(device), 0.125, None, (None, None))
    info = SimpleNamespace(logits_width=vocabulary, max_model_len=2048)
    return SimpleNamespace(
        model=SimpleNamespace(cache_specs=(spec,)), info=info, activation_bytes_per_token=per_token,
        adapter_bytes_per_rank=MIB,
    )  # fmt: skip


def limits(
    free: int, model: Any, threads: int = 4, loras: int = 0, beside: Any = lambda config: 0, **changes: Any
) -> tuple[int, int]:
    settings = {"default_limits": BATCH_LIMITS, **changes}
    optimization = OptimizationConfig(num_threads=threads, max_loras=loras, max_lora_rank=16)
    config = ExecutorConfig("llm", optimization=optimization, **settings)
    chosen = sizing.fitting(config, model, free, DEVICES_HERE[str(kv_group(model.model).device)], beside)
    return chosen.max_num_seqs, chosen.max_num_batched_tokens


def test_plenty_of_everything_keeps_the_usual_limits():
    assert limits(10_000 * MIB, source()) == (64, 2048)


@pytest.mark.parametrize(("threads", "tokens"), [(1, 512), (2, 1024), (3, 1536), (8, 2048)])
def test_few_threads_make_smaller_steps(threads, tokens):
    assert limits(10_000 * MIB, source(), threads) == (64, tokens)


def test_a_gpu_has_limits_of_its_own_whatever_the_threads_of_its_host():
    assert limits(10_000 * MIB, source(device=GPU), 1) == (256, 8192)


def test_limits_of_a_gpu_are_lowered_to_fit_its_memory():
    # Activations of 8,192 tokens: 82 MB, logits and tables of 256 rows 21 MB; a quarter of 300 MiB is 78.6 MB.
    assert limits(300 * MIB, source(device=GPU)) == (128, 4096)
    # As many again are taken beside, say by graphs.
    assert limits(
        300 * MIB, source(device=GPU), beside=lambda config: 10_000 * config.max_num_batched_tokens
    ) == (64, 2048)


def test_a_limit_that_is_set_on_a_gpu_stays_and_the_other_suits_it():
    only_seqs, only_tokens = {"default_limits": BATCH_LIMITS[1:]}, {"default_limits": BATCH_LIMITS[:1]}
    plenty = 10_000 * MIB
    assert limits(plenty, source(device=GPU), max_num_seqs=12, **only_seqs) == (12, 8192)
    assert limits(plenty, source(device=GPU), max_num_seqs=10_000, **only_seqs) == (10_000, 10_000)
    assert limits(plenty, source(device=GPU), max_num_batched_tokens=100, **only_tokens) == (100, 100)
    assert limits(100 * MIB, source(device=GPU), max_num_seqs=12, **only_seqs) == (12, 2048)
    assert limits(MIB, source(device=GPU), default_limits=()) == (64, 2048)


def test_one_limit_that_is_set_on_a_cpu_fixes_the_other():
    assert limits(MIB, source(), 1, max_num_seqs=32, default_limits=BATCH_LIMITS[1:]) == (32, 2048)


@pytest.mark.parametrize(
    ("free", "note"),
    [
        (10_000, "256 sequences (max_num_seqs: default) and 8,192 tokens (max_num_batched_tokens: default)"),
        (
            300,
            "128 sequences (max_num_seqs: lowered from 256 because memory is short) and 4,096 tokens "
            "(max_num_batched_tokens: lowered from 8,192 because memory is short)",
        ),
    ],
)
def test_the_note_says_which_limits_and_why(free: int, note: str):
    asked, device = ExecutorConfig("llm", default_limits=BATCH_LIMITS), DEVICES_HERE[GPU]
    taken = sizing.fitting(asked, source(device=GPU), free * MIB, device)
    assert sizing.limits_note(asked, taken, device) == f"steps: at most {note}"
    assert sizing.limits_note(replace(asked, default_limits=()), asked, device) == (
        "steps: at most 64 sequences (max_num_seqs: set) and 2,048 tokens (max_num_batched_tokens: set)"
    )


def test_short_memory_halves_both_until_a_step_takes_a_quarter_at_most():
    # Logits of 64 rows: 152,000 x 8 x 64 = 77.8 MB; activations of 2,048 tokens: 20.5 MB. A quarter of 200 MiB is 52.4 MB.
    assert limits(200 * MIB, source(vocabulary=152_000)) == (32, 1024)
    assert limits(60 * MIB, source(vocabulary=152_000)) == (8, 256)


def test_memory_of_adapters_does_not_shrink_what_fits_beside_it():
    # 128 of 328 MiB are the adapters', of 16 MiB each: over a quarter, and no limit would make it less.
    assert limits(328 * MIB, source(), loras=8) == (64, 2048)
    assert limits(328 * MIB, source(vocabulary=152_000), loras=8) == (32, 1024)


def test_what_was_asked_for_is_kept():
    assert limits(MIB, source(vocabulary=152_000), default_limits=()) == (64, 2048)
    assert limits(MIB, source(), max_num_seqs=2, max_num_batched_tokens=64) == (2, 64), (
        "below the least there is nothing to halve"
    )


async def test_the_executor_says_what_it_took(qwen3):
    executor = await start(qwen3, max_num_seqs=16, max_num_batched_tokens=4096, default_limits=BATCH_LIMITS)
    assert executor.capabilities().max_batch_size == 16
    assert executor.capabilities().max_batched_tokens == 512  # one thread
    fixed = await start(qwen3, max_num_batched_tokens=4096)
    assert fixed.capabilities().max_batched_tokens == 4096
