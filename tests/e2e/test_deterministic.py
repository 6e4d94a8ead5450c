"""`--deterministic` on a trained bf16 model: tokens and logprobs bit for bit the same, whatever happens around a request."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.core.config import EngineConfig
from engine.core.loop import EngineCore
from engine.core.mailbox import Mailbox
from engine.request import Request
from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
    SampledToken,
    SamplingParams,
)
from executors.process import connect
from executors.tiny import weights_dir
from tests.engine.harness import read

pytestmark = pytest.mark.e2e

_BYTES_PER_TOKEN = 2 * 3 * 2 * 64 * 2  # keys and values, layers, KV heads, head_dim, bf16


@asynccontextmanager
async def deterministic(pool_tokens: int, **limits: Any) -> AsyncIterator[EngineCore]:
    config = ExecutorConfig(
        "llm",
        model=str(weights_dir()),
        max_num_seqs=16,
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=pool_tokens * _BYTES_PER_TOKEN),
        optimization=OptimizationConfig(deterministic=True),
        max_model_len=512,
    )
    core = EngineCore(connect(config), EngineConfig(max_num_seqs=16, **limits))
    try:
        await core.start()
        yield core
    finally:
        await core.stop()


def asks(count: int) -> list[Request]:
    rng = random.Random(2)
    return [
        Request(
            "e2e",
            np.array([rng.randrange(896) for _ in range(rng.choice((1, 30, 150)))], np.int32),
            SamplingParams(temperature=1.0, seed=number, logprobs=2),
            40,
        )
        for number in range(count)
    ]


async def answers(core: EngineCore, asked: list[Request]) -> list[list[SampledToken]]:
    """All at once."""

    async def one(request: Request) -> list[SampledToken]:
        mailbox = Mailbox()
        core.submit(request, mailbox)
        whole = await read(mailbox)
        assert whole.error is None
        return whole.tokens

    return list(await asyncio.gather(*(one(request) for request in asked)))


async def test_a_request_is_the_same_alone_in_a_batch_preempted_and_after_a_death() -> None:
    try:
        await _same_in_every_way()
    except ConfigError as error:
        # Without AVX512 or a compiler it cannot be had, and says so.
        assert "deterministic: needs" in str(error)


async def _same_in_every_way() -> None:
    asked = asks(8)
    async with deterministic(8192, prefix_caching=False, max_in_flight=1) as core:
        alone = [(await answers(core, [request]))[0] for request in asked]
        together = await answers(core, asked)
        assert together == alone
        mailbox = Mailbox()
        core.submit(replace(asked[1], max_tokens=300), mailbox)
        begun = await mailbox.take()
        os.kill(core.executor.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        rest = await read(mailbox)
        assert (begun[0].tokens + rest.tokens)[:40] == alone[1] and core.stats().epoch == 2
    async with deterministic(512, max_num_batched_tokens=48) as core:
        assert await answers(core, asked) == alone, "in chunks, preempted, and with prefixes found"
        assert core.stats().preemptions > 0
