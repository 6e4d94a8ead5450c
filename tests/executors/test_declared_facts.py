"""Everything that LlmExecutor and Qwen3ModelExecutor declare in `capabilities()` is backed by something that works.

A fact that is declared anew fails here until it says what backs it.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors import registry
from executors.contract import (
    AttentionType,
    ConfigError,
    ExecutorCapabilities,
    ExecutorType,
    LogitsMode,
    OptimizationConfig,
    PrefillInput,
    Tensor,
)
from executors.llm.executor import LlmExecutor
from executors.qwen3.executor import Qwen3ModelExecutor
from executors.testing.conformance import run_case
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import Driver, config

EXECUTORS: dict[str, type[LlmExecutor]] = {"llm": LlmExecutor, "qwen3": Qwen3ModelExecutor}

FLAGS = {
    "dynamic_batching": ("batched_equals_alone",),
    "continuous_batching": ("interleaved_equals_alone", "preempted_equals_uninterrupted"),
    "speculative": ("verify_equals_sequential", "verify_in_a_mixed_batch", "single_sequence_verification"),
    "drafts": ("drafts_come_as_asked", "own_drafts_change_no_token"),
    "grammars": ("grammar_is_kept", "grammar_resumes_anywhere", "broken_grammar_fails_alone"),
}
"""Conformance cases that must pass, and concern the executor, where the flag is True."""
TYPES = {
    "tensor_parallel": ExecutorType.TENSOR_PARALLEL,
    "pipeline_parallel": ExecutorType.PIPELINE_PARALLEL,
}
"""The type that a factory refuses for one process, where the flag is False."""
ATTENTION: dict[AttentionType, dict[str, Any]] = {
    AttentionType.MULTI_HEAD: {"num_key_value_heads": 6},
    AttentionType.MULTI_QUERY: {"num_key_value_heads": 1},
    AttentionType.GROUPED_QUERY: {"num_key_value_heads": 2},
    AttentionType.PAGED: {},
    AttentionType.SLIDING_WINDOW: {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
}
"""Fields of a model that needs the form."""
OF_ENCODERS = {"whole_prompts_only"}
"""Declared by `EncoderExecutor`, whose tests (encoder/test_encoders.py) back them, and by no decoder."""
SIZES = {
    "max_batch_size", "max_sequence_length", "max_batched_tokens", "max_in_flight", "max_step_drafts", "memory",
}  # fmt: skip
"""Not looked at here: the kit fills the largest batch and the longest sequence, `test_executor.py`,
`test_memory_requirements.py` and, of drafts on devices, `tests/gpu/test_device_drafts.py` know the rest."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("model"), QWEN3)
    write_tokenizer(checkpoint, 200)  # grammars are about its texts
    return checkpoint


async def started(name: str, path: Path, **changes: Any) -> LlmExecutor:
    executor = EXECUTORS[name].from_config(config(path, executor=name, **changes))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


def test_no_fact_is_left_out() -> None:
    named = {*FLAGS, *TYPES, *SIZES, *OF_ENCODERS, "attention_types", "dtypes", "devices"}
    assert named == {field.name for field in fields(ExecutorCapabilities)}


@pytest.mark.parametrize("name", EXECUTORS)
async def test_flags(name: str, model: Path) -> None:
    executor = await started(
        name, model, optimization=OptimizationConfig(num_threads=1, draft_model=str(model))
    )
    capabilities = executor.capabilities()
    epoch = 2
    for flag, cases in FLAGS.items():
        assert getattr(capabilities, flag) is True
        for case in cases:
            reason = await run_case(
                case, lambda: EXECUTORS[name].from_config(config(model)), tolerance=1e-3, epoch=epoch, executor=executor
            )  # fmt: skip
            assert reason is None, f"{flag}: {case} does not concern it: {reason}"
            epoch += 50
    for flag in OF_ENCODERS:
        assert getattr(capabilities, flag) is False
    for flag, kind in TYPES.items():
        assert getattr(capabilities, flag) is False
        with pytest.raises(ConfigError, match=f"executor_type {kind} "):
            registry.create(config(model, executor=name, executor_type=kind))
        assert (kind in registry.factory(name).supported_types()) == (name == "llm")


@pytest.mark.parametrize("name", EXECUTORS)
async def test_dtypes_and_devices(name: str, model: Path) -> None:
    """Each loads and gives tokens. Where there is a GPU it is declared, and so it is tried."""
    capabilities = (await started(name, model)).capabilities()
    assert set(capabilities.dtypes) == {"float32", "bfloat16", "float16"}
    for device in capabilities.devices:
        for dtype in capabilities.dtypes:
            executor = await started(name, model, dtype=dtype, device=device)
            assert executor.info().dtype == dtype and executor.info().device.split(":")[0] == device
            driver = Driver(executor)
            [tokens] = await driver.generate([driver.add([1, 2, 3])], 3)
            assert len(tokens) == 3


async def _last_logits(executor: LlmExecutor, ids: list[int]) -> np.ndarray:
    output = await executor.prefill(PrefillInput(Tensor.of([ids], "int32"), logits=LogitsMode.LAST))
    return output.last_token_logits()


async def test_attention_types(tmp_path: Path) -> None:
    """A model of each form reads its history, in whatever chunks and blocks; a window hides what lies before it."""
    plain = await started("llm", write_checkpoint(tmp_path / "plain", QWEN3))
    assert set(plain.capabilities().attention_types) == set(ATTENTION)
    for kind, changes in ATTENTION.items():
        path = write_checkpoint(tmp_path / kind, {**QWEN3, **changes})

        def make(path: Path = path) -> LlmExecutor:
            return LlmExecutor.from_config(config(path))

        for case in ("chunked_equals_whole", "block_permutation_changes_nothing"):
            assert await run_case(case, make, tolerance=1e-3) is None, f"{kind}: {case}"
    windowed = await started("llm", tmp_path / AttentionType.SLIDING_WINDOW)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 211, 24).tolist()
    assert np.abs(await _last_logits(windowed, ids) - await _last_logits(plain, ids)).max() > 0.1
    within = ids[:9]
    np.testing.assert_allclose(
        await _last_logits(windowed, within), await _last_logits(plain, within), atol=1e-4
    )
