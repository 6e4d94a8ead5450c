"""What is computed once: prefixes across requests, choices of one call, cohorts, and after preemption."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import pytest

from engine.core.engine import EngineCore
from engine.kv.prefix_cache import block_key
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext, TokenDelta
from executors.contract import SamplingParams
from executors.contract.batch import UnifiedBatch, UnifiedOutput
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, engine, fake, read, request, run
from tests.text_requests import changed

PROMPT = list(range(21))  # five blocks of four, and one token


def recorded(made: FakeExecutor) -> list[UnifiedBatch]:
    """The steps that the executor is given from now on."""
    steps: list[UnifiedBatch] = []
    compute = made.unified_decode

    async def record(batch: UnifiedBatch) -> UnifiedOutput:
        steps.append(batch)
        return await compute(batch)

    made.unified_decode = record  # type: ignore[method-assign]
    return steps


async def ask(core: EngineCore, asked: Request) -> TokenDelta:
    mailbox = Mailbox()
    core.submit(asked, mailbox)
    return await read(mailbox)


async def choices(core: EngineCore, asked: Request, n: int) -> list[TokenDelta]:
    mailbox = Mailbox()
    core.submit_choices(
        [replace(asked, sampling=replace(asked.sampling, choice=i)) for i in range(n)], mailbox
    )
    whole = {key: TokenDelta() for key in range(n)}
    while any(delta.finish_reason is None for delta in whole.values()):
        for key, delta in (await mailbox.take()).items():
            whole[key].merge(delta)
    return list(whole.values())


def computed(steps: list[UnifiedBatch]) -> int:
    """Query tokens of all steps."""
    return sum(step.total_q_tokens() for step in steps)


async def test_a_second_request_computes_only_what_is_new() -> None:
    made = fake()
    async with engine(made) as core:
        steps = recorded(made)
        first = await ask(core, request(PROMPT, 2))
        assert first.num_cached_tokens == 0 and computed(steps) == 22
        steps.clear()
        second = await ask(core, request([*PROMPT[:18], 99, 98], 2))
        assert second.num_cached_tokens == 16 and computed(steps) == 4 + 1
        assert [t.token_id for t in second.tokens] == expected_tokens([*PROMPT[:18], 99, 98], 2)
        stats = core.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (41, 16)
        assert stats.kv_blocks_used == 0 and stats.kv_blocks_cached == 6


async def test_output_is_found_as_well_and_one_token_is_always_computed() -> None:
    made = fake()
    async with engine(made) as core:
        first = [t.token_id for t in (await ask(core, request(PROMPT[:7], 9))).tokens]
        # 16 tokens, the last of which was never computed: three blocks are there, and four do not help.
        again = await ask(core, request([*PROMPT[:7], *first], 1))
        assert again.num_cached_tokens == 12
        steps = recorded(made)
        assert (await ask(core, request(PROMPT[:8], 1))).num_cached_tokens == 4
        assert computed(steps) == 4


async def test_salts_and_the_switch_keep_prefixes_apart() -> None:
    async with engine(fake()) as core:
        await ask(core, request(PROMPT, 1))
        salted = changed(request(PROMPT, 1), cache_salt="a")
        assert (await ask(core, salted)).num_cached_tokens == 0
        assert (await ask(core, salted)).num_cached_tokens == 20
        assert (await ask(core, changed(salted, cache_salt="b"))).num_cached_tokens == 0
    async with engine(fake(), prefix_caching=False) as core:
        await ask(core, request(PROMPT, 1))
        assert (await ask(core, request(PROMPT, 1))).num_cached_tokens == 0
        assert core.stats().kv_blocks_cached == 0


async def test_pairs_share_a_prefix_only_where_the_second_text_begins_at_the_same_place() -> None:
    async def pooled(core: EngineCore, segment: int | None) -> TokenDelta:
        asked = replace(request(PROMPT, 1), pooling="last", second_segment=segment)
        found = await ask(core, asked)
        assert found.pooled is not None
        return found

    segments = (None, 3, 18, 3, None)
    async with engine(fake(token_types=2)) as core:
        found = [await pooled(core, segment) for segment in segments]
    assert [one.num_cached_tokens for one in found] == [0, 0, 0, 20, 20]
    for segment, one in zip(segments, found, strict=True):
        async with engine(fake(token_types=2), prefix_caching=False) as core:
            np.testing.assert_array_equal(one.pooled, (await pooled(core, segment)).pooled)


async def test_a_cohort_computes_its_common_prefix_once() -> None:
    made = fake()
    async with engine(made, max_num_batched_tokens=256) as core:
        steps = recorded(made)
        prompts = [[*PROMPT[:16], 50 + i] for i in range(6)]
        results = await asyncio.gather(*(ask(core, request(prompt, 1)) for prompt in prompts))
    assert [len(step) for step in steps] == [1, 5], "the others wait for one step"
    assert computed(steps) == 17 + 5
    assert [r.num_cached_tokens for r in results] == [0, 16, 16, 16, 16, 16]
    assert [r.tokens[0].token_id for r in results] == [expected_tokens(p, 1)[0] for p in prompts]


async def test_who_waits_for_a_prefix_does_not_stop_those_behind() -> None:
    made = fake()
    async with engine(made, max_num_batched_tokens=256) as core:
        steps = recorded(made)
        await asyncio.gather(*(ask(core, request(p, 1)) for p in (PROMPT, [*PROMPT, 5], [70, 71])))
    assert [len(step) for step in steps] == [2, 1]


@pytest.mark.parametrize("length", [1, 4, 5, 6, 21])
@pytest.mark.parametrize("caching", [True, False])
async def test_choices_share_the_prompt_and_copy_its_partial_block(length: int, caching: bool) -> None:
    made = fake()
    sampling = SamplingParams(temperature=1.0, seed=7)
    async with engine(made, prefix_caching=caching, max_num_batched_tokens=256) as core:
        steps = recorded(made)
        got = await choices(core, request(PROMPT[:length], 6, sampling), 4)
    for i, delta in enumerate(got):
        want = expected_tokens(PROMPT[:length], 6, replace(sampling, choice=i))
        assert [t.token_id for t in delta.tokens] == want
    if length > 1:
        assert computed(steps) == length + 3 + 4 * 5, (
            "the prompt once, its last token once more for each of the others"
        )
        copies = sum(len(step.block_copies) for step in steps)
        assert copies == (3 if (length - 1) % 4 else 0)


async def test_choices_hash_the_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt of many choices held up the loop when all of them filled their next block."""
    named: list[list[int]] = []

    def name(before: bytes, token_ids: SequenceOf[int]) -> bytes:
        named.append(list(token_ids))
        return block_key(before, token_ids)

    monkeypatch.setattr("engine.kv.kv_cache_manager.block_key", name)
    sampling = SamplingParams(temperature=1.0, seed=7)
    async with engine(fake(), max_num_batched_tokens=256) as core:
        got = await choices(core, request(PROMPT, 9, sampling), 4)
        again = await ask(core, request(PROMPT, 9, replace(sampling, choice=2)))
    assert again.num_cached_tokens == 20 and again.tokens == got[2].tokens
    blocks = [named.count(PROMPT[begin : begin + 4]) for begin in range(0, 20, 4)]
    assert blocks == [2] * 5, "once for all choices, once for the call behind them"
    assert len(named) > 10, "what they wrote is named as well"


async def test_choices_go_on_when_the_first_is_taken_back() -> None:
    made = fake(step_delay_ms=2)
    async with engine(made, max_num_batched_tokens=4) as core:
        mailbox = Mailbox()
        ids = core.submit_choices([request(PROMPT, 4)] * 3, mailbox)
        await asyncio.sleep(0.005)
        core.abort(ids[0])
        ended = set()
        while len(ended) < 2:
            for key, delta in (await mailbox.take()).items():
                if delta.finish_reason is not None:
                    ended.add(key)
        assert ended == {1, 2}


async def test_a_preempted_sequence_finds_its_own_blocks() -> None:
    made = fake(num_blocks=14)
    async with engine(made, max_num_batched_tokens=64) as core:
        steps = recorded(made)
        prompts = [[i] * 12 for i in (1, 2, 3)]
        results = await asyncio.gather(*(run(core, request(p, 12)) for p in prompts))
        assert core.stats().preemptions > 0
        assert core.stats().prefix_queries == 36, "each prompt is counted once"
    for prompt, (ids, _) in zip(prompts, results, strict=True):
        assert ids == expected_tokens(prompt, 12)
    assert computed(steps) < 3 * 24 + core.stats().preemptions * 12


async def test_an_older_prefix_gives_way_first() -> None:
    made = fake(num_blocks=12)
    async with engine(made, max_num_batched_tokens=64) as core:
        old, new = [1] * 17, [2] * 17
        await ask(core, request(old, 1))
        await ask(core, request(new, 1))
        await ask(
            core, request([3] * 21, 1)
        )  # six blocks: four without KV, and two from the old prefix's end
        assert (await ask(core, request(new, 1))).num_cached_tokens == 16
        assert (await ask(core, request(old, 1))).num_cached_tokens == 8


async def test_what_a_failed_sequence_wrote_is_not_found() -> None:
    made = fake()
    made.failures.append(Failure("nan", token=77))
    async with engine(made, max_num_batched_tokens=64) as core:
        bad = await ask(core, request([*PROMPT[:15], 77], 4))
        assert bad.error is not None and core.stats().kv_blocks_cached == 0
        good = await ask(core, request([*PROMPT[:15], 78], 4))
        assert good.num_cached_tokens == 0 and good.error is None


async def test_a_bad_prefix_of_somebody_who_has_gone_is_found_once() -> None:
    """A chunk samples nothing: that it wrote no numbers shows in who reads them, and only that names no block."""
    made = fake()
    long = [*range(30), *range(30)]
    async with engine(made, max_num_batched_tokens=8) as core:
        mailbox = Mailbox()
        made.failures.append(Failure("nan", step=1))  # the first eight tokens
        works = made.unified_decode

        async def unnoticed(batch: UnifiedBatch) -> UnifiedOutput:
            return replace(await works(batch), details={})

        made.unified_decode = unnoticed  # type: ignore[method-assign]
        gone = core.submit(request(long, 4), mailbox)
        while made.steps < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        core.abort(gone)
        made.unified_decode = works  # type: ignore[method-assign]
        steps = []
        for _ in range(3):
            before = made.steps
            assert (await ask(core, request(long, 1))).error is None
            steps.append(made.steps - before)
    assert steps[0] > 8, "computed anew"
    assert steps[1:] == [1, 1], "what was bad is not found again"


async def test_not_the_whole_queue_is_named_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    named = 0

    def name(before: bytes, token_ids: list[int]) -> bytes:
        nonlocal named
        named += 1
        return block_key(before, token_ids)

    monkeypatch.setattr("engine.kv.kv_cache_manager.block_key", name)
    monkeypatch.setattr("engine.core.scheduler._PASSED_OVER", 50)
    async with engine(fake(), max_num_batched_tokens=64) as core:
        assert core._scheduler is not None
        schedule, most = core._scheduler.schedule, 0

        def counted() -> UnifiedBatch | None:
            nonlocal most
            before = named
            batch = schedule()
            most = max(most, named - before)
            return batch

        core._scheduler.schedule = counted  # type: ignore[method-assign]
        found = await asyncio.gather(*(ask(core, request(PROMPT, 2)) for _ in range(30)))
    assert [one.num_cached_tokens for one in found].count(20) == 29, "passed over, not forgotten"
    assert 0 < most <= 5 * 8


async def test_a_new_life_of_the_executor_begins_with_an_empty_cache() -> None:
    made = fake()
    async with engine(made) as core:
        await ask(core, request(PROMPT, 1))
        made.failures.append(Failure("die", step=made.steps + 1))
        again = await ask(core, request(PROMPT, 3))
        assert [t.token_id for t in again.tokens] == expected_tokens(PROMPT, 3)
        assert core.stats().epoch == 2


async def test_an_executor_that_owns_its_kv_shares_nothing() -> None:
    async with engine(fake("echo")) as core:
        await ask(core, request(PROMPT, 1))
        assert (await ask(core, request(PROMPT, 2))).num_cached_tokens == 0
        got = await choices(core, request(PROMPT, 3, SamplingParams(temperature=1.0, seed=1)), 3)
    for i, delta in enumerate(got):
        want = expected_tokens(PROMPT, 3, SamplingParams(temperature=1.0, seed=1, choice=i))
        assert [t.token_id for t in delta.tokens] == want


def test_request_defaults() -> None:
    asked = Request(RequestContext("r", 0.0), np.array([1], np.int32), GREEDY, 1)
    assert asked.context.priority == 0 and asked.context.cache_salt is None
