"""Qwen3ModelExecutor: what it takes, and the same tokens as LlmExecutor's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executors import registry, tiny
from executors.contract import ConfigError, ExecutorType
from executors.llm.checkpoint.loader import load_model
from executors.llm.executor import LlmExecutor
from executors.qwen3.executor import Qwen3ModelExecutor
from executors.qwen3.factory import Qwen3Factory
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint, write_config
from tests.executors.llm.driver import Driver, config

MOE = {
    **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True,
}  # fmt: skip


async def start(path: Path) -> Qwen3ModelExecutor:
    executor = registry.create(config(path, executor="qwen3"))
    assert isinstance(executor, Qwen3ModelExecutor)
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


async def greedy(executor: LlmExecutor, vocab: int) -> list[list[int]]:
    """24 tokens after three prompts, in chunks of 7: mixed steps first, steps of decodes alone later."""
    driver, rng = Driver(executor), np.random.default_rng(0)
    seqs = [driver.add(rng.integers(0, vocab, length).tolist()) for length in (3, 9, 20)]
    return await driver.generate(seqs, 24, chunk=7)


@pytest.mark.parametrize("embedded", [False, True], ids=["random", "cohort-tiny"])
async def test_greedy_equals_llm_executor(qwen3: Path, embedded: bool) -> None:
    path = tiny.weights_dir() if embedded else qwen3
    ours = await start(path)
    theirs = LlmExecutor.from_config(config(path))
    await theirs.warmup()
    await theirs.begin_epoch(1)
    vocab = ours.info().vocab_size
    assert await greedy(ours, vocab) == await greedy(theirs, vocab)
    assert ours.info() == theirs.info() and ours.kv_layout() == theirs.kv_layout()
    assert ours.capabilities() == theirs.capabilities() and ours.status().notes == theirs.status().notes


async def test_release_sequence_is_release_cache(qwen3: Path) -> None:
    executor = await start(qwen3)
    driver = Driver(executor)
    first, second = driver.add([1, 2, 3]), driver.add([1, 2, 3])
    await driver.generate([first, second], 2)
    assert len(executor.slot_table()) == 2
    executor.release_sequence(first.seq_id)
    executor.release_sequence(first.seq_id)
    executor.release_sequence(10**12)
    assert len(executor.slot_table()) == 1
    executor.release_cache(second.seq_id)
    assert len(executor.slot_table()) == 0
    again = driver.add([1, 2, 3])
    again.slot = first.slot
    assert await driver.generate([again], 2) == [first.tokens[3:]]


@pytest.mark.parametrize("fields", [LLAMA, MOE], ids=["llama", "qwen3_moe"])
def test_another_architecture_is_refused_before_anything_is_loaded(fields: dict, tmp_path: Path) -> None:
    chosen = config(write_config(tmp_path, fields), executor="qwen3")
    architecture = fields["architectures"][0]
    message = rf"config\.json: architecture '{architecture}' is not supported by executor qwen3; supported: Qwen3For"
    for refuse in (Qwen3Factory().validate_config, Qwen3Factory().create_executor, registry.create):
        with pytest.raises(ConfigError, match=message):
            refuse(chosen)


async def test_a_model_in_memory(qwen3: Path, tmp_path: Path) -> None:
    loaded = load_model(config(qwen3), lambda *_: None)
    executor = Qwen3ModelExecutor(loaded.model, loaded.info)
    assert executor.config.executor == "qwen3"
    llama = load_model(config(write_checkpoint(tmp_path, LLAMA)), lambda *_: None)
    with pytest.raises(
        ConfigError, match="family llama is not supported by executor qwen3; supported: qwen3"
    ):
        await Qwen3ModelExecutor(llama.model, llama.info).warmup()


def test_options_and_types_are_checked_as_for_llm(qwen3: Path) -> None:
    factory = Qwen3Factory()
    assert ExecutorType.CONTINUOUS_BATCH in factory.supported_types()
    with pytest.raises(ConfigError, match="option 'x' is unknown; qwen3 has no options but profile_ranges"):
        factory.validate_config(config(qwen3, executor="qwen3", options={"x": 1}))
    with pytest.raises(ConfigError, match="executor_type TensorParallel is not supported by qwen3"):
        factory.validate_config(config(qwen3, executor="qwen3", executor_type=ExecutorType.TENSOR_PARALLEL))
