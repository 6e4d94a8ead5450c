"""The API on a real engine, whose executor answers with a function of all it reads: what is cached, which seed was drawn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.text.generation import TextEngine
from tests.engine.harness import fake
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.server.fakes import House, error_of, events

BLOCK = 4
VOCAB = 264
PROMPT = "".join(chr(97 + i * i % 26) for i in range(70))
OTHER = PROMPT[::-1]
"""A token is a byte or a few: no two of these share a first block."""


@asynccontextmanager
async def serving(folder: Path, **config: Any) -> AsyncIterator[House]:
    """A server over an engine of its own."""
    core = EngineCore(
        fake(block_size=BLOCK, vocab_size=VOCAB), EngineConfig(max_num_batched_tokens=48, **config)
    )
    await core.start()
    house = House(core=core)  # type: ignore[arg-type]
    info, tokenizer = core.info(), load(byte_level(), folder)
    assert house.state.model is not None and info is not None
    house.state.model = replace(
        house.state.model,
        engine=TextEngine(core, tokenizer),
        tokenizer=tokenizer,
        info=info,
        max_model_len=core.max_model_len,
    )
    try:
        yield house
    finally:
        house.state.threads.close()
        await core.stop()
    core.check_integrity()


async def ask(
    house: House, endpoint: str = "completions", prompt: Any = PROMPT, **fields: Any
) -> dict[str, Any]:
    """A whole answer of 8 tokens a choice."""
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    if endpoint == "chat":
        response = await house.chat(messages=[{"role": "user", "content": prompt}], **fields)
    else:
        response = await house.complete(prompt=prompt, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def cached(answer: dict[str, Any]) -> int:
    number: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return number


def findable(answer: dict[str, Any]) -> int:
    """Tokens of a prompt that a second request like it can find: full blocks, and at least one token is left to compute."""
    number: int = (answer["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK
    return number


def texts(answer: dict[str, Any]) -> list[str]:
    return [
        choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]
    ]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_a_prompt_asked_twice_is_found_and_answered_alike(tmp_path: Path, endpoint: str) -> None:
    async with serving(tmp_path) as house:
        first, second = await ask(house, endpoint), await ask(house, endpoint)
        assert (cached(first), cached(second)) == (0, findable(first))
        assert findable(first) > 60
        assert texts(first) == texts(second)
        first["usage"].pop("prompt_tokens_details")
        second["usage"].pop("prompt_tokens_details")
        assert first["usage"] == second["usage"], "what is cached counts all the same"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_requests_with_different_salts_share_nothing(tmp_path: Path, endpoint: str) -> None:
    async with serving(tmp_path) as house:
        plain = await ask(house, endpoint)
        salted = await ask(house, endpoint, cache_salt="a")
        assert cached(salted) == cached(await ask(house, endpoint, cache_salt="b")) == 0
        assert cached(await ask(house, endpoint, cache_salt="a")) == findable(plain)
        assert texts(salted) == texts(plain)


async def test_prefix_caching_can_be_turned_off(tmp_path: Path) -> None:
    async with serving(tmp_path, prefix_caching=False) as house:
        assert [cached(await ask(house)) for _ in range(2)] == [0, 0]


async def test_each_prompt_is_counted_once_whatever_n(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        cold = await ask(house, n=3)
        assert cached(cold) == 0, "what choices share among themselves was computed for this call"
        assert len(texts(cold)) == 3
        warm = await ask(house, n=3)
        assert cached(warm) == findable(cold)
        assert texts(warm) == texts(cold)


async def test_several_prompts_add_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        alone = await ask(house)
        both = await ask(house, prompt=[OTHER, PROMPT], n=2)
        assert cached(both) == findable(alone), "one of the two was known"
        other = await ask(house, prompt=OTHER)
        again = await ask(house, prompt=[OTHER, PROMPT], n=2)
        assert cached(again) == findable(alone) + findable(other)
        assert texts(again) == texts(both)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_streams_tell_it_too(tmp_path: Path, endpoint: str, continuous: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    body = {"stream": True, "stream_options": options, "max_tokens": 8, "n": 2, "ignore_eos": True}
    async with serving(tmp_path) as house:
        first = await ask(house, endpoint)
        if endpoint == "chat":
            response = await house.chat(messages=[{"role": "user", "content": PROMPT}], **body)
        else:
            response = await house.complete(prompt=PROMPT, **body)
        *chunks, last = (json.loads(data) for data in events(response)[:-1])
        assert cached(last) == findable(first)
        assert all(cached(chunk) == findable(first) for chunk in chunks if "usage" in chunk)
        assert continuous == any("usage" in chunk for chunk in chunks)


async def test_metrics_count_looked_up_and_found_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        length, hits = 0, 0
        for _ in range(3):
            answer = await ask(house)
            length += answer["usage"]["prompt_tokens"]
            hits += cached(answer)
        lines = (await house.get("/metrics")).text.splitlines()
        assert f"cohort_prefix_cache_queries_total {float(length)}" in lines
        assert f"cohort_prefix_cache_hits_total {float(hits)}" in lines
        [blocks] = [float(line.split()[1]) for line in lines if line.startswith("cohort_kv_blocks_cached ")]
        assert blocks >= hits / 2 / BLOCK
        assert "cohort_kv_blocks_used 0.0" in lines


async def test_a_priority_without_effect_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        for response in (await house.chat(priority=1), await house.complete(priority=-1, stream=True)):
            assert response.status_code == 400
            error = error_of(response)
            assert error["param"] == "priority"
            assert "--scheduling-policy" in error["message"]
        assert texts(await ask(house, priority=0)) == texts(await ask(house, priority=None))


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
async def test_a_priority_is_taken_where_it_counts(tmp_path: Path, policy: str) -> None:
    """One at a time, by priority or as they came. The first to arrive may be on its way before the others are there."""
    came = [0, 5, 2**63 - 1, -3, -(2**63)] if policy == "priority" else [0] * 5
    served: list[int] = []
    async with serving(tmp_path, scheduling_policy=policy, max_num_seqs=1) as house:

        async def client(number: int) -> None:
            await ask(house, priority=came[number], max_tokens=60)
            served.append(number)

        await asyncio.gather(*map(client, range(len(came))))
    others = [number for number in served if number]
    assert others == ([4, 3, 1, 2] if policy == "priority" else [1, 2, 3, 4])


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_the_reported_seed_gives_the_same_text_again(tmp_path: Path, endpoint: str) -> None:
    async with serving(tmp_path) as house:
        first = await ask(house, endpoint, temperature=1.0, n=2)
        assert 0 <= first["seed"] < 2**53, "JavaScript knows no larger integers"
        again = await ask(house, endpoint, temperature=1.0, n=2, seed=first["seed"])
        assert (again["seed"], texts(again)) == (first["seed"], texts(first))
        other = await ask(house, endpoint, temperature=1.0, n=2)
        assert other["seed"] != first["seed"] and texts(other) != texts(first)


async def test_a_stream_reports_its_seed_in_every_chunk(tmp_path: Path) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
    async with serving(tmp_path) as house:
        chunks = [json.loads(data) for data in events(await house.complete(stream=True, **body))[:-1]]
        [seed] = {chunk["seed"] for chunk in chunks}
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert texts(await ask(house, temperature=1.0, seed=seed)) == [text]


async def test_a_seed_is_reported_as_it_was_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        below = await ask(house, temperature=1.0, seed=-2)
        above = await ask(house, temperature=1.0, seed=2**64 - 2)
        assert (below["seed"], above["seed"]) == (-2, 2**64 - 2)
        assert texts(below) == texts(above), "seeds count modulo 2**64"


async def test_minus_one_is_no_seed(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        first, second = [await ask(house, temperature=1.0, seed=-1) for _ in range(2)]
        assert min(first["seed"], second["seed"]) >= 0
        assert first["seed"] != second["seed"] and texts(first) != texts(second)


async def test_a_prompt_that_does_not_fit_is_named_by_its_position(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        long = OTHER * (house.core.max_model_len // len(OTHER) + 9)  # type: ignore[attr-defined]
        for given, place in ((["a", long], ".1"), ([long], ".0"), (long, "")):
            error = error_of(await house.complete(prompt=given))
            assert (error["code"], error["param"]) == ("context_length_exceeded", f"prompt{place}")
            error = error_of(await house.post("/v1/embeddings", {"input": given}))
            assert (error["code"], error["param"]) == ("context_length_exceeded", f"input{place}")
