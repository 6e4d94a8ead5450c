"""Settings that mask, bias or look back, through the whole engine: every token against the executor's own function."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import InvalidRequest
from engine.mailbox import Mailbox
from engine.metrics_sink import MetricsSink
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from engine.text.choice import Choice, ChoiceOptions
from engine.text.generation import TextEngine
from executors.contract import (
    ExecutorConfig,
    ExecutorMemoryConfig,
    ItemFault,
    ItemOutput,
    OptimizationConfig,
    SampledToken,
    SamplingParams,
    UnifiedBatch,
    UnifiedOutput,
    reference_sampler,
)
from executors.contract.token_history import TokenHistory
from executors.llm.executor import LlmExecutor
from executors.testing.fakes.oracle import expected_tokens
from tests.e2e.test_llm_engine import BYTES_PER_TOKEN, CONFIG
from tests.engine.harness import GREEDY, engine, fake, read, request, run
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.executors.llm.stages import SampledBy
from tests.text_requests import changed, text_request

FEW = tuple(range(40, 48))
APART = tuple((token, 0.37 * token) for token in FEW)


class Outcomes(MetricsSink):
    """How the requests ended."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        self.outcomes.append(outcome)


def some_settings(rng: random.Random) -> SamplingParams:
    """Few allowed ids, so that the output repeats itself and its counts matter."""
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.5]), seed=rng.randrange(99), allowed_token_ids=FEW, logit_bias=APART,
        repetition_penalty=rng.choice([1.0, 1.4]), presence_penalty=rng.choice([0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.6]), bad_words=rng.choice([(), ((41,), (45, 46), (47, 47))]),
        typical_p=rng.choice([1.0, 0.8]), min_p=rng.choice([0.0, 0.05]),
    )  # fmt: skip


@pytest.mark.parametrize("native", [True, False])
async def test_settings_survive_preemption(native: bool) -> None:
    rng = random.Random(3)
    made = fake(num_blocks=30, native=native)
    async with engine(made) as core:

        async def one() -> None:
            prompt, params = (
                [rng.randrange(1000) for _ in range(rng.randrange(1, 30))] + [41, 42],
                some_settings(rng),
            )
            ids, _ = await run(core, request(prompt, 30, params))
            assert ids == expected_tokens(prompt, 30, params), params

        await asyncio.gather(*(one() for _ in range(16)))
        assert core.stats().preemptions > 0


async def test_stop_ids_wait_for_min_tokens() -> None:
    free = expected_tokens([1, 2], 12)
    for least in (0, 1, 5, 12):
        params = replace(
            GREEDY, min_tokens=least, stop_token_ids=(free[0], free[3]), logit_bias=((free[3], 50.0),)
        )
        async with engine(fake()) as core:
            ids, reason = await run(core, request([1, 2], 12, params, stop=(free[0], free[3])))
        assert len(ids) == min(least + 1, 12)
        assert reason is (FinishReason.LENGTH if least == 12 else FinishReason.STOP)
        assert not {free[0], free[3]} & set(ids[:least])


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"min_tokens": 9}, "min_tokens"), ({"logit_bias": ((1000, 1.0),)}, "logit_bias"),
        ({"allowed_token_ids": (3, 1000)}, "allowed_token_ids"), ({"bad_words": ((1, 1000),)}, "bad_words"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_at_once(settings: dict[str, object], param: str) -> None:
    async with engine(fake()) as core:
        with pytest.raises(InvalidRequest) as refused:
            await run(core, request([1], 8, replace(GREEDY, **settings)))  # type: ignore[arg-type]
        assert refused.value.param == param
        assert len((await run(core, request([1], 8)))[0]) == 8


async def test_a_row_with_nothing_left_fails_its_sequence_alone() -> None:
    nothing = replace(GREEDY, allowed_token_ids=(5,), bad_words=((5, 5, 5),))
    observer = Outcomes()
    async with engine(fake(), observer=observer) as core:
        both = await asyncio.gather(
            run(core, request([1], 8, nothing)), run(core, request([2], 8)), return_exceptions=True
        )
    assert isinstance(both[0], InvalidRequest) and "forbid every token at position 2" in str(both[0])
    assert (both[0].status, both[0].param) == (400, "bad_words")
    assert both[1] == (expected_tokens([2], 8), FinishReason.LENGTH)
    # Nothing failed: whoever watches the rate of errors must not be called for it.
    assert sorted(observer.outcomes) == ["abort", "length"]


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"allowed_token_ids": (5,), "bad_words": ((5,), (6, 5))}, "allowed_token_ids"),
        ({"allowed_token_ids": (5, 9), "stop_token_ids": (9,), "min_tokens": 4, "bad_words": ((5,),)}, "allowed_token_ids"),
        ({"allowed_token_ids": (9,), "stop_token_ids": (9, 8), "min_tokens": 1}, "allowed_token_ids"),
        ({"bad_words": tuple((i,) for i in range(1000))}, "bad_words"),
    ],
)  # fmt: skip
async def test_settings_that_forbid_the_first_token_are_refused_at_once(
    settings: dict[str, object], param: str
) -> None:
    async with engine(fake()) as core:
        with pytest.raises(InvalidRequest) as refused:
            await run(core, request([1], 8, replace(GREEDY, **settings)))  # type: ignore[arg-type]
        assert (refused.value.param, refused.value.code) == (param, "invalid_value")
        # What leaves a single token stands.
        one = replace(GREEDY, allowed_token_ids=(5, 9), stop_token_ids=(9,), min_tokens=4)
        assert await run(core, request([1], 4, one)) == ([5] * 4, FinishReason.LENGTH)
        ends = replace(GREEDY, allowed_token_ids=(9,), stop_token_ids=(9,))
        assert (await run(core, request([1], 4, ends, stop=(9,))))[0] == [9]


async def test_min_tokens_in_the_rest_of_the_context(tmp_path: Path) -> None:
    """Without max_tokens, as in `server/apis/base/common.py` with them; and end tokens count unless they are ignored."""
    tokenizer = load(byte_level(), tmp_path)
    [end, *_] = tokenizer.eos_token_ids
    asked = text_request("r", ((1, 2),), min_tokens=100_000)
    async with engine(fake(vocab_size=264)) as core:
        texts = TextEngine(core, tokenizer)
        room = core.max_model_len - 2
        with pytest.raises(
            InvalidRequest, match=f"^'min_tokens' is 100000, more than the {room} tokens"
        ) as refused:
            texts.start(asked)
        assert (refused.value.param, refused.value.code) == ("min_tokens", "invalid_value")
        only_end = changed(asked, max_tokens=3, min_tokens=1, allowed_token_ids=(end,))
        with pytest.raises(InvalidRequest, match="allowed_token_ids"):
            texts.start(only_end)
        async with texts.start(changed(only_end, ignore_eos=True)) as generation:
            assert [id async for delta in generation for id in delta.token_ids] == [end] * 3


async def test_stop_strings_wait_for_min_tokens(tmp_path: Path) -> None:
    tokenizer = load(byte_level(), tmp_path)
    asked = text_request("r", ((1, 2),), max_tokens=20, temperature=0.0, ignore_eos=True)
    text = tokenizer.decode(expected_tokens([1, 2], 20, vocab_size=264))
    for least in (0, 12):
        async with engine(fake(vocab_size=264)) as core:
            counted = 0
            async with TextEngine(core, tokenizer).start(
                changed(asked, stop=(text[2],), min_tokens=least)
            ) as generation:
                async for delta in generation:
                    counted += len(delta.token_ids)
        assert counted >= least if least else counted < 12


async def test_a_stop_string_that_begins_before_min_tokens(tmp_path: Path) -> None:
    tokenizer = load(byte_level(), tmp_path)
    ids = tokenizer.encode("3, 4, 5, 6", False)
    assert len(ids) > 8
    choice = Choice(0, tokenizer, ChoiceOptions(stop=("4, 5",), min_tokens=5))
    text = ""
    for id in ids:
        delta = choice.push(TokenDelta([SampledToken(id)]))
        text += delta.text
        if choice.finished:
            break
    assert (text, delta.stop_reason) == ("3, ", "4, 5")


async def test_the_llm_executor_under_preemption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are the reference's choice from the very logits of each step, whatever was recomputed between."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = ExecutorConfig(
        "llm", model=str(tmp_path), load_format="dummy", max_num_seqs=16, max_model_len=128,
        optimization=OptimizationConfig(num_threads=1),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=320 * BYTES_PER_TOKEN),
    )  # fmt: skip
    made = LlmExecutor.from_config(config)
    core = EngineCore(made, EngineConfig(max_num_seqs=16, max_num_batched_tokens=128))
    await core.start()
    rows: dict[tuple[int, int], np.ndarray] = {}
    unified = made._runtime.unified  # type: ignore[union-attr]
    sample = unified.stages.sample

    def keep(batch, step, hidden, where):  # type: ignore[no-untyped-def]
        for i in np.flatnonzero(batch.is_final_chunk).tolist():
            last = int(step.q_starts[i] + step.q_lens[i]) - 1
            row = unified.runner.logits(hidden, np.array([last]))[0].float().numpy()
            rows[int(batch.seq_ids[i]), int(step.positions[last]) + 1] = row
        return sample(batch, step, hidden, where)

    monkeypatch.setattr(unified.stages, "sample", SampledBy(sample, keep))
    rng = random.Random(5)
    try:

        async def one() -> None:
            prompt, params = (
                [rng.randrange(512) for _ in range(rng.randrange(1, 60))] + [41, 42],
                some_settings(rng),
            )
            mailbox = Mailbox()
            seq_id = core.submit(
                Request(RequestContext("t", 0.0), np.array(prompt, np.int32), params, 25), mailbox
            )
            ids = [token.token_id for token in (await read(mailbox)).tokens]
            history = TokenHistory(prompt)
            for token in ids:
                row = rows[seq_id, len(history)]
                assert token == reference_sampler.choose(row, params, len(history), history), params
                history.append(token)

        await asyncio.gather(*(one() for _ in range(12)))
        assert core.stats().preemptions > 0
    finally:
        await core.stop()


@pytest.mark.parametrize(
    ("fault", "sampling", "grammar", "param"),
    [
        (ItemFault.GRAMMAR_TOO_LARGE, SamplingParams(), "start: /a/", "grammar"),
        (
            ItemFault.NOTHING_LEFT,
            SamplingParams(min_tokens=5, stop_token_ids=(1,)),
            "start: /a/",
            "min_tokens",
        ),
        (ItemFault.NOTHING_LEFT, SamplingParams(allowed_token_ids=(1,)), None, "allowed_token_ids"),
        (ItemFault.NOTHING_LEFT, SamplingParams(bad_words=((1,),)), None, "bad_words"),
    ],
)
async def test_what_the_client_asked_for_and_cannot_go_on_is_the_clients_mistake(
    fault, sampling, grammar, param
) -> None:
    made = fake()
    step = made.unified_decode

    async def failing(batch: UnifiedBatch) -> UnifiedOutput:
        free = tuple(replace(start, grammar=None) for start in batch.starts)  # fakes know none
        output = await step(replace(batch, starts=free))
        output.details[0] = ItemOutput(error="said in words of the executor's own", fault=fault)
        return output

    made.unified_decode = failing  # type: ignore[method-assign]
    async with engine(made) as core:
        with pytest.raises(InvalidRequest) as refused:
            await run(core, replace(request([3], 9, sampling), grammar=grammar))
    assert (refused.value.status, refused.value.param) == (400, param)
