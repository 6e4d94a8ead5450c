"""Grammars through the whole engine with the real executor on a thread: overlap, drafts, preemption, failed steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import InvalidRequest, SequenceFailed
from engine.request import FinishReason, Request, RequestContext
from executors.contract import ExecutorConfig, ExecutorMemoryConfig, OptimizationConfig, SamplingParams
from executors.llm.executor import LlmExecutor
from executors.process.inline import InlineExecutor
from tests.engine.harness import run
from tests.executors.llm.stages import SampledBy
from tests.tiers import sweep
from tests.tiny_model import BYTES_PER_TOKEN

TINY = Path(__file__).parents[2] / "executors" / "tiny" / "weights"
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
ENDS = tuple(TOKENIZER.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>"))
LISTS = {"type": "array", "items": {"enum": ["abc", "xyz", 7, None]}, "minItems": 5, "maxItems": 9}
PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age"],
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120, "minimum": 0}},
}  # fmt: skip


def ask(schema: dict[str, Any] | None, text: str, seed: int, temperature: float) -> Request:
    compact = {**(schema or {}), "x-guidance": {"whitespace_flexible": False}}
    grammar = None if schema is None else json.dumps({"grammars": [{"json_schema": compact}]})
    prompt = TOKENIZER.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
    sampling = SamplingParams(temperature=temperature, seed=seed, stop_token_ids=ENDS)
    return Request(
        RequestContext("g", 0.0),
        np.array(prompt, np.int32),
        sampling,
        60,
        stop_token_ids=frozenset(ENDS),
        grammar=grammar,
    )


ASKED = [
    ask(LISTS, "Reverse: abc xyz abc xyz.", 1, 0.9), ask(PERSON, "Ada is 36.", 2, 0.9), ask(LISTS, "Say xyz.", 3, 0.0),
    ask(None, "Count from 3 to 9.", 4, 0.7), ask(PERSON, "Bob is 101.", 5, 1.5), ask(LISTS, "Hello", 6, 2.0),
]  # fmt: skip


@asynccontextmanager
async def served(pool_tokens: int = 4096, **settings: Any) -> AsyncIterator[EngineCore]:
    config = ExecutorConfig(
        "llm", str(TINY), max_model_len=128, max_num_seqs=8, optimization=OptimizationConfig(num_threads=1),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=pool_tokens * BYTES_PER_TOKEN),
    )  # fmt: skip
    executor = InlineExecutor(config, LlmExecutor.from_config(config))
    core = EngineCore(executor, EngineConfig(max_num_seqs=8, max_num_batched_tokens=128, **settings))
    await core.start()
    try:
        yield core
    finally:
        await core.stop()
    core.check_integrity()


Outcome = tuple[list[int], FinishReason | None]


async def undisturbed() -> list[Outcome]:
    """One after the other, nothing in flight, no drafts, no cache."""
    async with served(max_in_flight=1, prefix_caching=False) as core:
        return [await run(core, one) for one in ASKED]


@sweep(every=2)
@pytest.mark.parametrize("pool_tokens", [4096, 160], ids=["room", "crowded"])
@pytest.mark.parametrize(("max_in_flight", "drafts"), [(1, 0), (1, 3), (2, 0), (2, 3)])
async def test_streams_are_as_undisturbed(max_in_flight: int, drafts: int, pool_tokens: int) -> None:
    expected = await undisturbed()
    settings = {"max_in_flight": max_in_flight, "num_speculative_tokens": drafts}
    async with served(pool_tokens, **settings) as core:
        results = await asyncio.gather(*(run(core, one) for one in ASKED))
        assert results == expected
        assert (core.stats().preemptions > 0) == (pool_tokens < 1000)
    for (ids, reason), asked in zip(results, ASKED, strict=True):
        if asked.grammar is not None and reason is FinishReason.STOP:
            json.loads(TOKENIZER.decode(ids[:-1]))
    assert sum(reason is FinishReason.STOP for _, reason in results) >= 4


@pytest.mark.parametrize("drafts", [0, 3])
async def test_failed_steps_change_no_token(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ninth step fails when all is computed: sequences begin again with the tokens they have."""
    expected = await undisturbed()
    async with served(max_in_flight=2, num_speculative_tokens=drafts) as core:
        stages = core.executor.inner._runtime.unified.stages  # type: ignore[attr-defined]
        sample, steps = stages.sample, iter(range(10**6))

        def fail(*args: Any) -> Any:
            output = sample(*args)
            if next(steps) % 9 == 8:
                raise RuntimeError("injected")
            return output

        monkeypatch.setattr(stages, "sample", SampledBy(sample, fail))
        assert list(await asyncio.gather(*(run(core, one) for one in ASKED))) == expected


async def test_what_is_wrong_with_a_grammar_is_told() -> None:
    async with served() as core:
        with pytest.raises(InvalidRequest, match="Invalid type: odd"):
            await core.prepare_grammar(json.dumps({"grammars": [{"json_schema": {"type": "odd"}}]}))
        assert ASKED[0].grammar is not None
        await core.prepare_grammar(ASKED[0].grammar)
        broken = replace(ASKED[0], grammar='start: "a')
        beside = asyncio.ensure_future(run(core, ASKED[1]))
        with pytest.raises(SequenceFailed, match="lexer error"):
            await run(core, broken)
        assert json.loads(TOKENIZER.decode((await beside)[0][:-1]))
