"""Models whose layers see a window: long prompts, prefix hits, forks, preemption and drafts change no token.

Each model is asked for everything twice: one call at a time, with salts that share nothing and without drafts; then all at
once, with little memory. Greedy answers are also those of transformers: a fault that both ways have in common shows there.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.checkpoints import VOCAB_SIZE, write_tokenizer
from tests.e2e.server_process import ServerProcess
from tests.executors.llm.models import GEMMA3_ROPES, GEMMA4, Reference, write

pytestmark = [pytest.mark.timeout(240)]

BLOCK, OUTPUT = 16, 24
POOL = 600
"""Tokens of KV, were every layer to keep all of them."""
SQUEEZE = 8
"""Calls whose prompts end just before a block does: as many as fit begin, and each needs one more block at once."""
_HEADS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 56, "max_position_embeddings": 1024, "tie_word_embeddings": True, "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
_GEMMA = {**_HEADS, "query_pre_attn_scalar": 20}
_GEMMA4 = {
    **_HEADS, "global_head_dim": 24, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB_SIZE, "rope_parameters": GEMMA4["rope_parameters"],
}  # fmt: skip
_MOST_TOKENS = 512


@dataclass(frozen=True)
class Shape:
    """`preempts`: whether POOL is too little for the crowd, as it is if a layer keeps all tokens."""

    kind: str
    layers: int
    window: int
    fields: dict[str, Any]
    preempts: bool = True


SHAPES = {
    # Five layers with a window before each that sees everything.
    "gemma3": Shape("Gemma3Text", 6, 40, {**_GEMMA, "rope_parameters": GEMMA3_ROPES}),
    # A window in every other layer, of as many tokens as blocks have.
    "gemma2": Shape(
        "Gemma2", 3, 32, {**_GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
    ),
    # A window in every layer.
    "mistral": Shape("Mistral", 3, 33, {**_HEADS, "tie_word_embeddings": False}, preempts=False),
    "phi3": Shape("Phi3", 3, 23, _HEADS, preempts=False),
    # Heads of 16 where there is a window and of 24 where there is none; the last three layers read the KV of others.
    "gemma4": Shape("Gemma4", 6, 40, _GEMMA4),
    "qwen3": Shape("Qwen3", 3, 21, {**_HEADS, "use_sliding_window": True, "max_window_layers": 1}),
}


@dataclass(frozen=True)
class Answer:
    """`choices`: token ids of each. `cached`: prompt tokens found in the prefix cache."""

    choices: list[list[int]]
    cached: int


def prompts() -> list[list[int]]:
    """Of one to a dozen windows, some with a common beginning. Phrases come back, so that drafts are found in them."""
    rng = random.Random(48)

    def tokens(count: int) -> list[int]:
        phrase = [rng.randrange(32, 127) for _ in range(23)]
        return [phrase[i % 23] if i % 46 < 30 else rng.randrange(32, 127) for i in range(count)]

    common = tokens(150)
    counts = [5, 64, 209, 410, *[6 * BLOCK - 1] * SQUEEZE]
    return [tokens(count) for count in counts] + [common + tokens(count) for count in (1, 30, 77, 250)]


def body(prompt: list[int], number: int = 0, **settings: Any) -> dict[str, Any]:
    """Every other call is greedy, the others have seeds."""
    return {
        "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True, "temperature": number % 2 * 0.9, "seed": number,
        "return_token_ids": True, **settings,
    }  # fmt: skip


async def ask(client: httpx.AsyncClient, asked: dict[str, Any]) -> Answer:
    response = await client.post("/v1/completions", json=asked)
    assert response.status_code == 200, response.text
    found = response.json()
    cached = (found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer([choice["token_ids"] for choice in found["choices"]], cached)


async def alone(client: httpx.AsyncClient, bodies: list[dict[str, Any]]) -> list[Answer]:
    """One after the other, with nothing that another call has left, and without drafts."""
    found = []
    for number, asked in enumerate(bodies):
        found.append(await ask(client, {**asked, "cache_salt": f"alone {number}", "speculative": False}))
    return found


@asynccontextmanager
async def served(
    shape: Shape, folder: Path
) -> AsyncIterator[tuple[ServerProcess, httpx.AsyncClient, Reference]]:
    """The model in float32, in steps of 64 tokens, with drafts."""
    model = folder / "model"
    fields = {**shape.fields, "num_hidden_layers": shape.layers, "sliding_window": shape.window}
    reference = write(shape.kind, fields, model, seed=shape.layers)
    write_tokenizer(model)
    per_token = 2 * shape.layers * _HEADS["num_key_value_heads"] * _HEADS["head_dim"] * 4
    args = [
        str(model), "--dtype", "float32", "--deterministic", "--block-size", str(BLOCK), "--max-num-seqs", "8",
        "--max-num-batched-tokens", "64", "--max-model-len", str(_MOST_TOKENS), "--num-speculative-tokens", "3",
        "--kv-cache-memory-bytes", str(POOL * per_token),
    ]  # fmt: skip
    with ServerProcess(args, folder) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            yield server, client, reference


async def a_prefix_is_found_again(client: httpx.AsyncClient) -> None:
    """The same prompt once more finds all its full blocks, and so does the next turn those of prompt and answer, although
    the windows have left most of both behind."""
    prompt, output = prompts()[2], 3 * BLOCK
    first = await ask(client, body(prompt, max_tokens=output))
    again = await ask(client, body(prompt, max_tokens=output))
    assert again.choices == first.choices
    assert (first.cached, again.cached) == (0, (len(prompt) - 1) // BLOCK * BLOCK)
    turn = [*prompt, *first.choices[0], *prompts()[0]]
    following = await ask(client, body(turn))
    [expected] = await alone(client, [body(turn)])
    assert following.choices == expected.choices
    # The last block may have been full only when the last draft was accepted: it has no key then.
    assert following.cached >= (len(prompt) + output - 1) // BLOCK * BLOCK - BLOCK > again.cached


@pytest.mark.long(every=9)
@pytest.mark.parametrize("name", SHAPES)
async def test_a_crowd_is_answered_as_each_call_alone(name: str, tmp_path: Path) -> None:
    bodies = [body(prompt, number) for number, prompt in enumerate(prompts())]
    fork = body(prompts()[-2], 1, n=3)
    async with served(SHAPES[name], tmp_path) as (server, client, reference):
        await a_prefix_is_found_again(client)
        *expected, choices = await alone(client, [*bodies, fork])
        for asked, answer in zip(bodies, expected, strict=True):
            if not asked["temperature"]:
                assert answer.choices == [reference.greedy(asked["prompt"], OUTPUT)], (
                    "transformers says something else"
                )
        assert len({tuple(choice) for choice in choices.choices}) == 3
        before = server.metric("cohort_preemptions_total")
        *found, forked = await asyncio.gather(*(ask(client, asked) for asked in [*bodies, fork]))
        for number, (want, got) in enumerate(zip(expected, found, strict=True)):
            assert got.choices == want.choices, f"call {number}"
        assert forked.choices == choices.choices
        assert not SHAPES[name].preempts or server.metric("cohort_preemptions_total") > before
        assert sum(answer.cached for answer in found) > 0
        assert server.metric("cohort_spec_decode_num_drafts_total") > 0
        assert server.metric("cohort_kv_blocks_used") == 0


def _wait_for_another(server: ServerProcess, epoch: float) -> None:
    while server.metric("cohort_executor_epoch") == epoch:
        time.sleep(0.05)


@pytest.mark.long
async def test_the_next_executor_adopts_the_blocks_of_every_size_of_heads(tmp_path: Path) -> None:
    async with served(SHAPES["gemma4"], tmp_path) as (server, client, _):
        asked = body(prompts()[2])
        first = await ask(client, asked)
        epoch = server.metric("cohort_executor_epoch")
        [card] = (await client.get("/v1/executors")).json()["data"]
        os.kill(card["pid"], signal.SIGKILL)
        await asyncio.to_thread(_wait_for_another, server, epoch)
        again = await ask(client, asked)
        assert again.choices == first.choices
        assert (first.cached, again.cached) == (0, (len(asked["prompt"]) - 1) // BLOCK * BLOCK)
