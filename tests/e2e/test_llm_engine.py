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
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, Stage
from executors.contract import ExecutorConfig, ExecutorMemoryConfig, SamplingParams
from executors.process import connect
from tests.engine.harness import read

pytestmark = pytest.mark.long

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "attention_bias": False,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 4  # keys and values, layers, KV heads, head_dim, fp32


@asynccontextmanager
async def llm(folder: Path, pool_tokens: int, **limits: Any) -> AsyncIterator[EngineCore]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = ExecutorConfig(
        "llm",
        model=str(folder),
        load_format="dummy",
        max_num_seqs=16,
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=pool_tokens * BYTES_PER_TOKEN),
    )
    engine_config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=128, **limits)
    core = EngineCore(connect(config, "process"), engine_config)
    await core.start()
    try:
        yield core
    finally:
        await core.stop()


def ask(prompt: list[int], max_tokens: int, **sampling: float) -> Request:
    params = SamplingParams(**{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return Request(RequestContext("e2e", 0.0), np.array(prompt, np.int32), params, max_tokens)


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


async def tokens(core: EngineCore, asked: Request) -> tuple[list[int], int]:
    """Token ids, and how many of the prompt's were not computed."""
    mailbox = Mailbox()
    core.submit(asked, mailbox)
    whole = await read(mailbox)
    assert whole.error is None
    return [token.token_id for token in whole.tokens], whole.num_cached_tokens


@pytest.mark.long(extended=True)
async def test_a_warm_prefix_gives_the_tokens_of_a_cold_one(tmp_path: Path) -> None:
    rng = random.Random(5)
    prefix = [rng.randrange(512) for _ in range(100)]
    prompts = [prefix + [rng.randrange(512) for _ in range(length)] for length in (1, 17, 60)]
    async with llm(tmp_path, 4096, prefix_caching=False, max_in_flight=1) as core:
        cold = [await tokens(core, ask(prompt, 40)) for prompt in prompts]
    async with llm(tmp_path, 4096) as core:
        await tokens(core, ask(prefix, 1))
        warm = [await tokens(core, ask(prompt, 40)) for prompt in prompts]
        again = await asyncio.gather(*(tokens(core, ask(prompt, 40)) for prompt in prompts))
    assert [cached for _, cached in cold] == [0, 0, 0]
    assert [cached for _, cached in warm] == [96, 96, 96]
    assert [cached for _, cached in again] == [96, 112, 144]
    assert [ids for ids, _ in warm] == [ids for ids, _ in cold] == [ids for ids, _ in again]


async def test_choices_drafts_and_overlap_change_no_token(tmp_path: Path) -> None:
    prompt = [1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 5] * 3
    asked = [ask(prompt, 30, temperature=0.7, seed=4, choice=choice) for choice in range(3)]
    async with llm(tmp_path, 4096, prefix_caching=False, max_in_flight=1) as core:
        alone = [(await tokens(core, one))[0] for one in asked]
        greedy = await tokens(core, ask(prompt, 60))
    for config in ({"max_in_flight": 2}, {"num_speculative_tokens": 3}):
        async with llm(tmp_path, 4096, **config) as core:
            mailbox = Mailbox()
            core.submit_choices(asked, mailbox)
            got: dict[int, list[int]] = {0: [], 1: [], 2: []}
            while any(len(ids) < 30 for ids in got.values()):
                for key, delta in (await mailbox.take()).items():
                    got[key] += [token.token_id for token in delta.tokens]
            assert list(got.values()) == alone
            assert (await tokens(core, ask(prompt, 60)))[0] == greedy[0]


async def test_a_killed_executor_loses_no_token(tmp_path: Path) -> None:
    async with llm(tmp_path, 4096) as core:
        asked = [ask([1, 2, 3], 300), ask([4, 5], 300, temperature=0.8, seed=3)]
        undisturbed = [(await tokens(core, one))[0] for one in asked]
        pid = core.executor.pid  # type: ignore[attr-defined]
        mailboxes = [Mailbox(), Mailbox()]
        for one, mailbox in zip(asked, mailboxes, strict=True):
            core.submit(one, mailbox)
        first = await mailboxes[0].take()
        os.kill(pid, signal.SIGKILL)
        whole = await asyncio.gather(*(read(mailbox) for mailbox in mailboxes))
        got = [[token.token_id for token in one.tokens] for one in whole]
        assert [token.token_id for token in first[0].tokens] + got[0] == undisturbed[0]
        assert got[1] == undisturbed[1]
        assert core.executor.pid != pid and core.stats().epoch == 2  # type: ignore[attr-defined]
        assert core.stats().kv_blocks_used == 0


@pytest.mark.long(extended=True)
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
