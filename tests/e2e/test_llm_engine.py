"""The engine with the real LlmExecutor in its own process: many streams on a pool too small for them, and its death."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.core.config import EngineConfig
from engine.core.loop import EngineCore
from engine.core.mailbox import Mailbox
from engine.errors import ExecutorFailed
from engine.request import FinishReason, Request, Stage
from executors.contract import ExecutorConfig, ExecutorMemoryConfig, SamplingParams
from executors.process import connect
from tests.engine.harness import read

pytestmark = pytest.mark.e2e

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "attention_bias": False,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 4  # keys and values, layers, KV heads, head_dim, fp32


@asynccontextmanager
async def llm(folder: Path, pool_tokens: int) -> AsyncIterator[EngineCore]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = ExecutorConfig(
        "llm",
        model=str(folder),
        load_format="dummy",
        max_num_seqs=16,
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=pool_tokens * BYTES_PER_TOKEN),
    )
    core = EngineCore(connect(config, "process"), EngineConfig(max_num_seqs=16, max_num_batched_tokens=128))
    await core.start()
    try:
        yield core
    finally:
        await core.stop()


def ask(prompt: list[int], max_tokens: int, **sampling: float) -> Request:
    params = SamplingParams(**{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return Request("e2e", np.array(prompt, np.int32), params, max_tokens)


async def test_64_streams_on_a_small_pool_with_aborts(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with llm(tmp_path, pool_tokens=640) as core:
        assert core.stats().kv_blocks_total == 40

        async def stream() -> FinishReason | None:
            prompt = [rng.randrange(512) for _ in range(rng.randrange(1, 150))]
            count = rng.randrange(1, 100)
            mailbox = Mailbox()
            await asyncio.sleep(rng.random() / 4)
            seq_id = core.submit(
                ask(prompt, count, temperature=rng.choice([0.0, 0.9]), seed=rng.randrange(9)), mailbox
            )
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() / 4)
                core.abort(seq_id)
                return None
            whole = await read(mailbox)
            assert len(whole.tokens) == count and whole.error is None
            return whole.finish_reason

        reasons = await asyncio.gather(*(stream() for _ in range(64)))
        assert set(reasons) == {None, FinishReason.LENGTH}
        assert await core.drain(10)
        await asyncio.sleep(0.05)
        assert core.stats().preemptions > 0
        assert core.stats().kv_blocks_used == 0
        core.check_integrity()


async def test_a_killed_executor_fails_what_ran_and_comes_back(tmp_path: Path) -> None:
    async with llm(tmp_path, pool_tokens=4096) as core:
        pid = core.executor.pid  # type: ignore[attr-defined]
        mailbox = Mailbox()
        core.submit(ask([1, 2, 3], 500), mailbox)
        await mailbox.take()
        os.kill(pid, signal.SIGKILL)
        whole = await read(mailbox)
        assert isinstance(whole.error, ExecutorFailed) and whole.error.code == "executor_died"
        assert core.stats().stage is Stage.RECOVERING
        after = Mailbox()
        core.submit(ask([1, 2, 3], 5), after)  # queued while it restarts
        assert len((await read(after)).tokens) == 5
        assert core.executor.pid != pid and core.stats().kv_blocks_used == 0  # type: ignore[attr-defined]


async def test_a_death_while_idle_costs_no_request(tmp_path: Path) -> None:
    async with llm(tmp_path, pool_tokens=4096) as core:
        pid = core.executor.pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            # Looked at from outside, as a user would see it.
            while core.executor.pid == pid or core.stats().stage is not Stage.READY:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        mailbox = Mailbox()
        core.submit(ask([4], 5), mailbox)
        assert (await read(mailbox)).error is None
