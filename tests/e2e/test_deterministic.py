"""`--deterministic` on a trained model, in float32, bf16 and int8, with KV in int8, and on a GGUF file of seven formats: tokens
and logprobs bit for bit the same, whatever happens around a request. What other families of models do is in
tests/executors/llm/test_deterministic.py, kills at every position in tests/chaos."""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext, TokenDelta
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
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.tiny_model import HEAD_DIM, NUMBERS_PER_TOKEN

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

OUTPUT = 40
_RNG = random.Random(2)
COMMON = [_RNG.randrange(896) for _ in range(64)]
"""Four blocks that half of the prompts begin with."""
SETTINGS = (
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=1.0, seed=1, logprobs=2),
    SamplingParams(temperature=0.8, seed=2, top_p=0.9, logprobs=2),
    SamplingParams(temperature=1.3, seed=3, top_k=30, min_p=0.02, logprobs=2),
    SamplingParams(temperature=0.7, seed=4, frequency_penalty=0.7, repetition_penalty=1.1, logprobs=2),
)


def asks() -> list[Request]:
    prompts = [[_RNG.randrange(896) for _ in range(length)] for length in (1, 30, 150, 47, 16)]
    prompts += [COMMON + [_RNG.randrange(896) for _ in range(length)] for length in (1, 9, 80)]
    return [
        Request(
            RequestContext("e2e", 0.0), np.array(prompt, np.int32), SETTINGS[number % len(SETTINGS)], OUTPUT
        )
        for number, prompt in enumerate(prompts)
    ]


ASKED = asks()
CHOICES = [replace(ASKED[6], sampling=replace(SETTINGS[1], choice=choice)) for choice in range(3)]


GGUF = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "dtype": "float32", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 1024,
}  # fmt: skip
GGUF_NUMBERS_PER_TOKEN = 2 * 2 * 2 * 64
FORMATS = {
    "attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q4_1", "ffn_gate": "Q4_0", "ffn_up": "Q5_K",
    "ffn_down": "Q5_0", "token_embd": "Q8_0",
}  # fmt: skip


@cache
def gguf_model() -> Path:
    """A directory that serves a GGUF file with matrices in each of FORMATS. It lies there until the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-test-gguf-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tensors = converted_checkpoint(write_checkpoint(folder / "hf", GGUF), "llama")
    metadata = {**sizes(GGUF), "rope.dimension_count": 64}
    file = write_gguf(
        folder / "m.gguf", "llama", metadata, tensors, lambda name: FORMATS[name.split(".")[-2]]
    )
    return prepared(folder / "served", file)


def bytes_per_token(kind: str, dtype: str) -> int:
    """Of keys and values; in int8 every head's have a float32 scale."""
    if kind == "gguf":
        return GGUF_NUMBERS_PER_TOKEN * 2
    if kind == "int8-kv":
        return NUMBERS_PER_TOKEN // HEAD_DIM * (HEAD_DIM + 4)
    return NUMBERS_PER_TOKEN * (4 if dtype == "float32" else 2)


@asynccontextmanager
async def deterministic(
    kind: str, pool_tokens: int, mode: str = "inline", **limits: Any
) -> AsyncIterator[EngineCore]:
    dtype = "bfloat16" if kind in ("int8", "gguf", "int8-kv") else kind
    config = ExecutorConfig(
        "llm",
        model=str(gguf_model() if kind == "gguf" else weights_dir()),
        dtype=dtype,
        max_num_seqs=16,
        memory=ExecutorMemoryConfig(
            # Blocks of 16 tokens, each of whole pages.
            kv_cache_memory_bytes=pool_tokens // 16 * -(-16 * bytes_per_token(kind, dtype) // 4096) * 4096,
            kv_cache_dtype="int8" if kind == "int8-kv" else "auto",
        ),
        optimization=OptimizationConfig(deterministic=True, quantization="int8" if kind == "int8" else None),
        max_model_len=512,
    )
    core = EngineCore(connect(config, mode), EngineConfig(max_num_seqs=16, **limits))
    try:
        await core.start()
        yield core
    finally:
        await core.stop()


async def answers(core: EngineCore, asked: list[Request]) -> list[list[SampledToken]]:
    """All at once."""

    async def one(request: Request) -> list[SampledToken]:
        mailbox = Mailbox()
        core.submit(request, mailbox)
        whole = await read(mailbox)
        assert whole.error is None
        return whole.tokens

    return list(await asyncio.gather(*map(one, asked)))


async def choices(core: EngineCore, asked: list[Request]) -> list[list[SampledToken]]:
    """Of one call: they share the prompt's KV."""
    mailbox = Mailbox()
    core.submit_choices(asked, mailbox)
    whole = [TokenDelta() for _ in asked]
    while any(one.finish_reason is None for one in whole):
        for key, delta in (await mailbox.take()).items():
            whole[key].merge(delta)
    return [one.tokens for one in whole]


async def alone(kind: str) -> tuple[list[list[SampledToken]], list[list[SampledToken]]]:
    """Each request, and each choice as a request, with nothing beside it and nothing kept from before."""
    async with deterministic(kind, 8192, prefix_caching=False, max_in_flight=1) as core:
        return (
            [(await answers(core, [one]))[0] for one in ASKED],
            [(await answers(core, [one]))[0] for one in CHOICES],
        )


async def _same_in_every_way(kind: str) -> None:
    expected, expected_choices = await alone(kind)
    async with deterministic(kind, 8192) as core:
        assert await answers(core, ASKED) == expected, "together"
        before = core.stats().prefix_hits
        assert await answers(core, ASKED[::-1]) == expected[::-1], "in another order, with prefixes found"
        assert core.stats().prefix_hits - before > 64 * 3
        assert await choices(core, CHOICES) == expected_choices, "choices of one call"
    small = {"max_num_batched_tokens": 48, "max_in_flight": 2, "num_speculative_tokens": 3}
    async with deterministic(kind, 512, **small) as core:
        got, forked = await asyncio.gather(answers(core, ASKED), choices(core, CHOICES))
        assert got == expected, "in chunks, preempted, with guesses verified"
        assert forked == expected_choices
        assert core.stats().preemptions > 0


@pytest.mark.long(every=5)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "gguf", "int8-kv"])
async def test_a_request_is_the_same_alone_in_a_batch_found_forked_and_preempted(kind: str) -> None:
    try:
        await _same_in_every_way(kind)
    except ConfigError as error:
        # Without a compiler, or on another kind of CPU, it cannot be had, and says so.
        assert "needs Cohort's own kernels" in str(error)


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("kind", ["bfloat16", "gguf", "int8-kv"])
async def test_a_request_is_the_same_after_a_death(kind: str) -> None:
    try:
        expected, _ = await alone(kind)
        async with deterministic(kind, 8192, "process") as core:
            mailboxes = [Mailbox() for _ in ASKED]
            for one, mailbox in zip(ASKED, mailboxes, strict=True):
                core.submit(replace(one, max_tokens=120), mailbox)
            begun = [(await mailbox.take())[0] for mailbox in mailboxes]
            os.kill(core.executor.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            rest = await asyncio.gather(*map(read, mailboxes))
            assert core.stats().epoch == 2
        got = [(first.tokens + more.tokens)[:OUTPUT] for first, more in zip(begun, rest, strict=True)]
        assert got == expected
    except ConfigError as error:
        assert "needs Cohort's own kernels" in str(error)
