"""What is asked of the prompt itself: logprobs of its tokens, and embeddings."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.engine import EngineCore
from engine.errors import (
    ContextLengthExceeded,
    ExecutorFailed,
    InvalidRequest,
    Overloaded,
    SequenceFailed,
    Unavailable,
)
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from engine.text.embedding import Embedder, EmbeddingRequest
from executors.contract import SampledToken, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, read, request

LONG = [int(i * 7 % 900) for i in range(90)]


def asking(prompt: list[int], count: int = 2, max_tokens: int = 6) -> Request:
    return replace(request(prompt, max_tokens), prompt_logprobs=count)


def embedding(prompt: list[int], pooling: str) -> Request:
    return replace(request(prompt, 1), pooling=pooling)


async def told(core: EngineCore, asked: Request) -> tuple[tuple[SampledToken, ...] | None, list[int]]:
    mailbox = Mailbox()
    core.submit(asked, mailbox)
    whole = await read(mailbox)
    if whole.error is not None:
        raise whole.error
    return whole.prompt_logprobs, [token.token_id for token in whole.tokens]


async def vector(core: EngineCore, prompt: list[int], pooling: str) -> NDArray[np.float32]:
    mailbox = Mailbox()
    core.submit(embedding(prompt, pooling), mailbox)
    whole = await read(mailbox)
    assert (whole.tokens, whole.finish_reason) == ([], FinishReason.STOP)
    assert whole.pooled is not None
    return whole.pooled


async def alone(prompt: list[int]) -> tuple[SampledToken, ...]:
    """What an engine with room for everything says."""
    async with engine(fake(), max_num_batched_tokens=256) as core:
        found, _ = await told(core, asking(prompt))
    assert found is not None
    return found


# -- logprobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [8, 13, 256])
async def test_each_prompt_token_after_the_first_is_described_once(budget: int) -> None:
    expected = await alone(LONG)
    assert [token.token_id for token in expected] == LONG[1:]
    async with engine(fake(), max_num_batched_tokens=budget) as core:
        found, tokens = await told(core, asking(LONG))
    assert found == expected
    assert tokens == expected_tokens(LONG, 6)


async def test_a_prompt_of_one_token_has_nothing_to_describe() -> None:
    async with engine(fake()) as core:
        assert await told(core, asking([5])) == ((), expected_tokens([5], 6))


async def test_who_did_not_ask_is_told_nothing() -> None:
    async with engine(fake()) as core:
        assert (await told(core, request(LONG, 6)))[0] is None


async def test_a_warm_prefix_cache_takes_nothing_away() -> None:
    expected = await alone(LONG)
    async with engine(fake()) as core:
        await told(core, request(LONG, 6))
        found, tokens = await told(core, asking(LONG))
        assert core.stats().prefix_hits == 0
        await told(core, request(LONG, 6))
        assert core.stats().prefix_hits > 0  # and what it computed can be read by others
    assert (found, tokens) == (expected, expected_tokens(LONG, 6))


async def test_choices_share_the_prompt_of_the_one_that_describes_it() -> None:
    expected = await alone(LONG)
    async with engine(fake()) as core:
        mailbox = Mailbox()
        core.submit_choices([asking(LONG), request(LONG, 6), request(LONG, 6)], mailbox)
        whole: dict[int, TokenDelta] = {}
        while sum(one.finish_reason is not None for one in whole.values()) < 3:
            for key, delta in (await mailbox.take()).items():
                whole.setdefault(key, TokenDelta()).merge(delta)
    assert whole[0].prompt_logprobs == expected
    assert whole[1].prompt_logprobs is whole[2].prompt_logprobs is None
    assert whole[1].num_cached_tokens == len(LONG) - 1


async def test_preemption_describes_no_token_twice() -> None:
    made = fake(num_blocks=30)
    prompts = [[i, *LONG[:50]] for i in range(6)]
    expected = [await alone(prompt) for prompt in prompts]
    async with engine(made, max_num_batched_tokens=16) as core:
        found = await asyncio.gather(*(told(core, asking(prompt, max_tokens=40)) for prompt in prompts))
        preemptions = core.stats().preemptions
    assert preemptions > 0
    assert [one for one, _ in found] == expected
    assert [tokens for _, tokens in found] == [expected_tokens(prompt, 40) for prompt in prompts]


@pytest.mark.parametrize("step", [1, 2, 4, 7, 9])
async def test_a_failed_step_describes_no_token_twice(step: int) -> None:
    made = fake()
    made.failures.append(Failure("step_failed", step=step))
    async with engine(made, max_num_batched_tokens=16) as core:
        found, tokens = await told(core, asking(LONG))
    assert found == await alone(LONG)
    assert tokens == expected_tokens(LONG, 6)


# -- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("prompt", [[3], LONG[:2], LONG, LONG[:33]])
async def test_a_vector_does_not_depend_on_chunks_or_on_the_cache(pooling: str, prompt: list[int]) -> None:
    async with engine(fake(), max_num_batched_tokens=256) as core:
        expected = await vector(core, prompt, pooling)
        again = await vector(core, prompt, pooling)
        if pooling == "mean":
            assert core.stats().prefix_hits == 0  # every position counts
    async with engine(fake(), max_num_batched_tokens=8) as core:
        chunks = await vector(core, prompt, pooling)
        assert core.stats().kv_blocks_used == 0
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(chunks, expected, rtol=1e-5, atol=1e-6)


async def test_the_two_kinds_of_pooling_differ() -> None:
    async with engine(fake()) as core:
        assert not np.allclose(await vector(core, LONG, "last"), await vector(core, LONG, "mean"))


async def test_vectors_come_beside_streams_and_a_full_context_fits() -> None:
    whole_context = [1] * 256
    async with engine(fake()) as core:
        stream = asyncio.create_task(told(core, request([1, 2], 40)))
        vectors = await Embedder(
            core,
            EmbeddingRequest(RequestContext("test", 0.0), (tuple(LONG), tuple(whole_context), (9,)), "mean"),
        ).run()
        assert (await stream)[1] == expected_tokens([1, 2], 40)
        np.testing.assert_allclose(vectors[0], await vector(core, LONG, "mean"), rtol=1e-5, atol=1e-6)
        with pytest.raises(ContextLengthExceeded):
            await Embedder(core, EmbeddingRequest(RequestContext("test", 0.0), ((1,) * 257,))).run()
    assert len(vectors) == 3


async def test_many_inputs_wait_outside_the_queue() -> None:
    async with engine(fake(), max_queued_seqs=100) as core:
        prompts = tuple((i % 900, i // 900) for i in range(300))
        vectors = await Embedder(core, EmbeddingRequest(RequestContext("test", 0.0), prompts)).run()
        assert len(vectors) == 300
        np.testing.assert_array_equal(vectors[7], await vector(core, [7, 0], "last"))


@pytest.mark.parametrize("trouble", ["drain", "full queue"])
async def test_a_call_that_was_taken_in_is_finished(trouble: str) -> None:
    """Its first inputs were accepted for all of them: a drain, or others who fill the queue, do not throw away what was done."""
    others: list[Mailbox] = []
    async with engine(fake(step_delay_ms=2), max_queued_seqs=70, max_num_batched_tokens=8) as core:
        prompts = tuple((i % 900, i // 900) for i in range(200))
        call = asyncio.create_task(
            Embedder(core, EmbeddingRequest(RequestContext("test", 0.0), prompts)).run()
        )
        await asyncio.sleep(0.05)
        if trouble == "drain":
            draining = asyncio.create_task(core.drain(30))
            await asyncio.sleep(0.01)
            with pytest.raises(Unavailable):
                core.submit(request([1], 3), Mailbox())
        else:
            with pytest.raises(Overloaded):
                while True:
                    others.append(Mailbox())
                    core.submit(request([1], 3), others[-1])
        assert not call.done()
        if trouble == "drain":
            assert await draining and core.stats().waiting == 0
            await asyncio.sleep(0)
            assert call.done(), "a drain lasts as long as the call has more to ask"
        assert len(await call) == 200
        for mailbox in others[:-1]:
            await read(mailbox)


async def test_a_cancelled_call_leaves_nothing() -> None:
    made = fake(step_delay_ms=10)
    async with engine(made) as core:
        call = asyncio.create_task(
            Embedder(core, EmbeddingRequest(RequestContext("test", 0.0), (tuple(LONG),) * 20, "mean")).run()
        )
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await told(core, request([1], 3)))[1] == expected_tokens([1], 3)
        assert core.stats().running == core.stats().waiting == 0


async def test_a_failure_ends_the_call_with_its_error() -> None:
    made = fake()
    made.failures.append(Failure("step_failed", token=2, times=10))
    async with engine(made) as core:
        with pytest.raises((ExecutorFailed, SequenceFailed)):
            await Embedder(core, EmbeddingRequest(RequestContext("test", 0.0), ((1, 2, 3),))).run()


async def test_a_failed_step_changes_no_vector() -> None:
    made = fake()
    made.failures.append(Failure("step_failed", step=3))
    async with engine(made, max_num_batched_tokens=16) as core:
        found = await vector(core, LONG, "mean")
        np.testing.assert_allclose(found, await vector(core, LONG, "mean"), rtol=1e-5, atol=1e-6)


# -- grammars ---------------------------------------------------------------------------------------------------------


async def test_an_executor_without_grammars_says_so() -> None:
    async with engine(fake()) as core:
        with pytest.raises(InvalidRequest, match="grammar"):
            await core.prepare_grammar('start: "a"')


async def test_a_vector_that_is_not_finite_is_an_error_and_its_kv_is_not_found() -> None:
    made = fake()
    works = made.unified_decode

    async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
        output = await works(batch)
        for detail in output.details.values():
            if detail.pooled is not None:
                detail.pooled[0] = np.nan
        return output

    made.unified_decode = unified_decode  # type: ignore[method-assign]
    async with engine(made) as core:
        mailbox = Mailbox()
        core.submit(embedding(list(range(20)), "last"), mailbox)
        whole = await read(mailbox)
        assert isinstance(whole.error, SequenceFailed) and whole.pooled is None
        assert core.stats().kv_blocks_cached == 0
