"""LlmExecutor passes the conformance kit, on a tiny random model, in float32 on the CPU."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executors.conformance import CASES, MakeExecutor, Nonconformance, run_case
from executors.contract import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    ModelExecutor,
    OptimizationConfig,
    UnifiedBatch,
)
from executors.registry import create

pytest.importorskip("torch")

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "float32",
}
Spoil = Callable[[UnifiedBatch], UnifiedBatch]
TOLERANCE = 1e-4  # logprobs of two forwards of different shapes, float32


@pytest.fixture(scope="session")
def make_llm(tmp_path_factory: pytest.TempPathFactory) -> MakeExecutor:
    model: Path = tmp_path_factory.mktemp("llm")
    (model / "config.json").write_text(json.dumps(CONFIG))
    config = ExecutorConfig(
        "llm",
        model=str(model),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        max_num_seqs=8,
        attention=ExecutorAttentionConfig(block_size=8),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=2 * 2**20),
        optimization=OptimizationConfig(num_threads=1),
    )
    return lambda: create(config)


@pytest.mark.parametrize("case", CASES)
async def test_llm_conforms(make_llm: MakeExecutor, case: str) -> None:
    if reason := await run_case(case, make_llm, tolerance=TOLERANCE):
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("case", "spoil"),
    [
        ("chunked_equals_whole", lambda b: replace(b, pos_offsets=b.pos_offsets - (b.pos_offsets > 8))),
        (
            "cached_prefix_equals_cold",
            lambda b: replace(b, tables=replace(b.tables, block_ids=b.tables.block_ids[::-1])),
        ),
        ("block_copies_come_first", lambda b: replace(b, block_copies=b.block_copies[:0])),
        ("pending_inputs", lambda b: replace(b, pending=None, token_ids=np.maximum(b.token_ids, 0))),
    ],
)
async def test_faults_show_within_the_tolerance(make_llm: MakeExecutor, case: str, spoil: Spoil) -> None:
    """The tolerance is tight enough: a float model that is given a spoiled batch fails the case."""

    def make() -> ModelExecutor:
        executor = make_llm()
        compute = executor.unified_decode
        executor.unified_decode = lambda batch: compute(spoil(batch))  # type: ignore[method-assign]
        return executor

    with pytest.raises(Nonconformance):
        await run_case(case, make, tolerance=TOLERANCE)
