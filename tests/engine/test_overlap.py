"""Steps submitted before the one before them has answered: the same tokens, and nothing too many."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from engine.core.engine import EngineCore
from engine.errors import InvalidRequest
from engine.mailbox import Mailbox
from engine.policies.drafter import NgramDrafter
from engine.request import FinishReason
from engine.sequence import Sequence
from executors.contract import ExecutorDied, SamplingParams, UnifiedBatch, UnifiedOutput
from executors.process.inline import InlineExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine import harness
from tests.engine.harness import fake, read, request, run


def engine(made: object, **config: float) -> AbstractAsyncContextManager[EngineCore]:
    """With two steps in flight, which is not the default on a CPU."""
    return harness.engine(made, **{"max_in_flight": 2, **config})  # type: ignore[arg-type]


def overlapped(**options: object) -> InlineExecutor:
    """A fake on a thread of its own, which takes a step while it computes another."""
    inner = fake(**options)  # type: ignore[arg-type]
    return InlineExecutor(inner.config, inner)


@pytest.mark.parametrize("executor", ["echo", "paged_fake"])
@pytest.mark.parametrize("native", [True, False])
async def test_the_tokens_are_the_same(executor: str, native: bool) -> None:
    made = overlapped(executor=executor, native=native)
    async with engine(made, max_num_batched_tokens=9) as core:  # type: ignore[arg-type]
        prompts = [[i] * (1 + 5 * i) for i in range(8)]
        sampling = SamplingParams(temperature=0.8, seed=3)
        results = await asyncio.gather(*(run(core, request(p, 20, sampling)) for p in prompts))
    for prompt, (ids, _) in zip(prompts, results, strict=True):
        assert ids == expected_tokens(prompt, 20, sampling)


@pytest.mark.parametrize("native", [True, False])
async def test_an_items_error_costs_the_others_nothing(native: bool) -> None:
    """The step behind it is out already, and goes on from a token that was never sampled."""
    made = overlapped(native=native)
    async with engine(made) as core:  # type: ignore[arg-type]
        dead_end = SamplingParams(temperature=0.0, allowed_token_ids=(5,), bad_words=((5, 5),))
        others = [asyncio.create_task(run(core, request([i, i], 30))) for i in range(4)]
        failing = asyncio.create_task(run(core, request([9], 30, dead_end)))
        results = await asyncio.gather(*others)
        with pytest.raises(InvalidRequest, match="forbid every token at position 1"):
            await failing
        assert core.journal.epoch == 1
    for i, (tokens, _) in enumerate(results):
        assert tokens == expected_tokens([i, i], 30, SamplingParams(temperature=0.0))


async def test_a_step_is_out_while_the_next_is_put_together() -> None:
    made = overlapped(step_delay_ms=2)
    async with engine(made) as core:  # type: ignore[arg-type]
        running = asyncio.create_task(run(core, request([1], 30)))
        await asyncio.sleep(0.02)
        assert len(core._steps) == 2
        pending = core._steps.out[1].batch.pending
        assert pending is not None and pending.all(), "its input is being sampled"
        await running
    async with engine(overlapped(), max_in_flight=1) as core:  # type: ignore[arg-type]
        running = asyncio.create_task(run(core, request([1], 30)))
        await asyncio.sleep(0.005)
        assert len(core._steps) <= 1
        await running


async def test_a_stop_found_a_step_late_shows_nothing_more() -> None:
    expected = expected_tokens([9, 9], 30)
    stop = expected[11]
    cut = expected.index(stop) + 1
    made = overlapped()
    async with engine(made) as core:  # type: ignore[arg-type]
        ids, reason = await run(core, request([9, 9], 30, stop=(stop,)))
        assert (ids, reason) == (expected[:cut], FinishReason.STOP)
        await asyncio.sleep(0.05)
        assert core.stats().kv_blocks_used == 0


async def test_no_step_computes_a_token_behind_the_last() -> None:
    made = overlapped()
    async with engine(made) as core:  # type: ignore[arg-type]
        await run(core, request([1, 2, 3], 10))
        assert made.inner is not None and made.inner.steps == 10  # type: ignore[attr-defined]


async def test_an_abort_while_two_steps_are_out() -> None:
    made = overlapped(step_delay_ms=5)
    async with engine(made) as core:  # type: ignore[arg-type]
        mailbox = Mailbox()
        seq_id = core.submit(request([1], 200), mailbox)
        await mailbox.take()
        core.abort(seq_id)
        async with asyncio.timeout(10):  # the release is told on another thread
            while core.stats().kv_blocks_used or not made.inner.released:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert core.stats().kv_blocks_used == 0
        assert made.inner.released == {seq_id: 1}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["step_failed", "die"])
async def test_a_failure_with_two_steps_out_loses_nothing(kind: str) -> None:
    made = overlapped(step_delay_ms=1)
    made.inner.failures.append(Failure(kind, step=6))  # type: ignore[union-attr]
    async with engine(made) as core:  # type: ignore[arg-type]
        results = await asyncio.gather(*(run(core, request([i], 20)) for i in range(5)))
        assert core.stats().epoch == 2
    assert [ids for ids, _ in results] == [expected_tokens([i], 20) for i in range(5)]


async def test_who_dies_behind_a_step_that_went_well_is_known() -> None:
    """The answer of one step and the death in the next are heard in one turn of the event loop."""
    made = fake()
    blamed: list[int | None] = []
    works, out = made.unified_decode, list[tuple[UnifiedBatch, asyncio.Future[UnifiedOutput]]]()

    async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
        future: asyncio.Future[UnifiedOutput] = asyncio.get_running_loop().create_future()
        out.append((batch, future))
        return await future

    declared = made.capabilities
    made.capabilities = lambda: replace(declared(), max_in_flight=2)  # type: ignore[method-assign]
    made.unified_decode = unified_decode  # type: ignore[method-assign]
    async with engine(made) as core:
        assert core._loop is not None
        recovers = core._loop._recover

        async def recover(batch: UnifiedBatch | None, error: Any) -> None:
            blamed.append(None if batch is None else batch.step_id)
            made.unified_decode = works  # type: ignore[method-assign]
            await recovers(batch, error)

        core._loop._recover = recover  # type: ignore[method-assign]
        answer = asyncio.create_task(run(core, request([1, 2], 20)))
        async with asyncio.timeout(5):
            while len(out) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        (first, one), (second, two) = out
        death = ExecutorDied("it crashed", "signal")
        one.set_result(await works(first))
        two.set_exception(death)
        core._inbox.report_death(death)
        assert (await answer)[0] == expected_tokens([1, 2], 20)
    assert blamed == [second.step_id]


async def test_stopping_with_steps_out_ends() -> None:
    made = overlapped(step_delay_ms=20)
    async with engine(made) as core:  # type: ignore[arg-type]
        mailbox = Mailbox()
        core.submit(request([1], 200), mailbox)
        await mailbox.take()
        await asyncio.wait_for(core.stop(), 5)


async def test_a_request_joins_while_drafts_are_out() -> None:
    """Nothing else can be computed then: a new request must not wait for the step's end to be looked at."""
    made = overlapped(step_delay_ms=30)
    async with engine(made, num_speculative_tokens=2) as core:  # type: ignore[arg-type]
        slow = asyncio.create_task(run(core, request([1], 3)))
        await asyncio.sleep(0.02)
        other = asyncio.create_task(run(core, request([2], 1)))
        await asyncio.sleep(0.005)
        assert len(core._steps) == 2
        await asyncio.gather(slow, other)


# -- drafts --------------------------------------------------------------------------------------------------------------


class Prophet:
    """Knows the future, up to a mistake now and then."""

    def __init__(self, prompt: list[int], wrong: int) -> None:
        self.truth = [*prompt, *expected_tokens(prompt, 60)]
        self.wrong = wrong

    def propose(self, seq: Sequence) -> list[int]:
        drafts = self.truth[seq.num_known_tokens :][:4]
        if self.wrong and seq.num_known_tokens % self.wrong == 0 and len(drafts) > 1:
            drafts[1] = 999
        return drafts


@pytest.mark.parametrize("executor", ["echo", "paged_fake"])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("wrong", [0, 1, 3])
async def test_accepted_drafts_save_steps_and_rejected_ones_change_nothing(
    executor: str, native: bool, wrong: int
) -> None:
    made = fake(executor, native=native)
    async with engine(made, max_num_batched_tokens=32) as core:
        assert core._scheduler is not None
        core._scheduler.policies.drafter = Prophet([4, 5], wrong)
        ids, reason = await run(core, request([4, 5], 40))
        assert (ids, reason) == (expected_tokens([4, 5], 40), FinishReason.LENGTH)
        assert made.steps <= {0: 10, 1: 22, 3: 16}[wrong]


async def test_drafts_stop_at_the_budget_and_at_the_end() -> None:
    made = fake()
    async with engine(made, max_num_batched_tokens=3) as core:
        assert core._scheduler is not None
        core._scheduler.policies.drafter = Prophet([4], 0)
        stop = expected_tokens([4], 9)[8]
        ids, reason = await run(core, request([4], 60, stop=(stop,)))
        assert reason is FinishReason.STOP and ids == expected_tokens([4], len(ids))


class Always:
    """Guesses four tokens, all wrong."""

    def propose(self, seq: Sequence) -> list[int]:
        return [1, 1, 1, 1]


async def test_drafts_starve_neither_streams_nor_prompts() -> None:
    made = fake(seqs=6)
    async with engine(made, max_num_batched_tokens=20, max_num_seqs=6) as core:
        assert core._scheduler is not None
        core._scheduler.policies.drafter = Always()
        streams = [asyncio.create_task(run(core, request([i], 60))) for i in range(4)]
        await asyncio.sleep(0.005)
        begun = made.steps
        assert (await run(core, request(list(range(100, 140)), 1)))[0] == expected_tokens(range(100, 140), 1)
        assert made.steps - begun <= 7, "the last one was sent before the reader ran"
        assert [ids for ids, _ in await asyncio.gather(*streams)] == [
            expected_tokens([i], 60) for i in range(4)
        ]
    made = fake()
    async with engine(made, max_num_batched_tokens=9) as core:
        assert core._scheduler is not None
        core._scheduler.policies.drafter = Always()
        await asyncio.gather(*(run(core, request([i], 20)) for i in range(8)))
        assert made.steps <= 24, "every stream has its token in every step"


async def test_streams_that_draft_are_protected_from_long_prompts() -> None:
    made = overlapped(step_delay_ms=1)
    async with engine(made, max_num_batched_tokens=256, num_speculative_tokens=2) as core:  # type: ignore[arg-type]
        streams = [asyncio.create_task(run(core, request([i], 80))) for i in range(4)]
        await asyncio.sleep(0.03)
        seen: list[int] = []
        compute = made.inner.unified_decode  # type: ignore[union-attr]

        async def record(batch: UnifiedBatch) -> UnifiedOutput:
            seen.append(int(batch.num_q_tokens.max()))
            return await compute(batch)

        made.inner.unified_decode = record  # type: ignore[union-attr, method-assign]
        await run(core, request(list(range(200)), 1))
        await asyncio.gather(*streams)
    assert max(seen) <= 128, "what is computed beside streams whose cost is not known yet"


def test_ngrams_propose_what_followed_before() -> None:
    def after(tokens: list[int], count: int = 3) -> list[int]:
        asked = request(tokens[:1], 100)
        seq = Sequence(1, asked, Mailbox(), 0)
        seq.output_token_ids = tokens[1:]
        seq.num_known_tokens = len(tokens)
        return NgramDrafter(count).propose(seq)

    assert after([1, 2, 3, 4, 1, 2]) == [3, 4, 1]
    assert after([1, 2, 3, 4, 1, 2], 1) == [3]
    assert after([5, 2, 8, 7, 2, 9, 5, 2]) == [8, 7, 2], "a longer match counts more than a later one"
    assert after([1, 2, 1, 2], 5) == [1, 2, 1, 2, 1], "a text that repeats itself goes on so"
    assert after([1, 2, 3]) == [] and after([1]) == []


async def test_nobody_is_preempted_for_a_guess() -> None:
    """Two sequences that just fit: with guesses there are as many preemptions as without."""

    class Always:
        def propose(self, seq: Sequence) -> list[int]:
            return [7] * 8

    async def preemptions(drafts: int) -> int:
        made = fake(block_size=16, num_blocks=17)
        config = {"num_speculative_tokens": drafts, "max_num_batched_tokens": 256, "prefix_caching": False}
        async with engine(made, **config) as core:  # type: ignore[arg-type]
            assert core._scheduler is not None
            if drafts:
                core._scheduler.policies.drafter = Always()  # type: ignore[misc]
            answers = await asyncio.gather(*(run(core, request([i] * 100, 60)) for i in range(2)))
            for i, (tokens, _) in enumerate(answers):
                assert tokens == expected_tokens([i] * 100, 60)
            return core.stats().preemptions

    assert await preemptions(8) <= await preemptions(0) == 1


def test_what_ngrams_remember_has_a_limit() -> None:
    """Of a long output that never repeats itself the newest runs are kept."""
    seq = Sequence(1, request([1], 100_000), Mailbox(), 0)
    drafter = NgramDrafter(3)
    seq.output_token_ids = []
    for token in [*range(20_000), 19_000, 19_001, 19_002]:
        seq.output_token_ids.append(token)
        seq.num_known_tokens += 1
        found = drafter.propose(seq)
    assert found == [19_003, 19_004, 19_005]
    index = drafter._indexes[seq]
    assert len(index.followed_by) + len(index.before) <= 2 * 3 * (4096 + 512)
    seq.output_token_ids += [5, 6, 7]
    seq.num_known_tokens += 3
    assert drafter.propose(seq) == [], "too long ago"


async def test_a_text_that_repeats_itself_takes_fewer_steps() -> None:
    made = fake(vocab_size=16)
    async with engine(made, num_speculative_tokens=3) as core:
        mailbox = Mailbox()
        core.submit(request([3], 60), mailbox)
        whole = await read(mailbox)
    assert [t.token_id for t in whole.tokens] == expected_tokens([3], 60, vocab_size=16)
    assert made.steps <= 60


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_the_next_step_is_sent_before_the_readers_of_the_last_one_run(in_flight: int) -> None:
    """Hundreds of readers detokenize for milliseconds, and the executor would wait for that."""
    made = overlapped(seqs=4)
    sent, in_time = 0, list[bool]()
    inner = made.unified_decode

    async def noted(batch: UnifiedBatch) -> UnifiedOutput:
        nonlocal sent
        sent += 1
        return await inner(batch)

    made.unified_decode = noted  # type: ignore[method-assign]

    async def reader(core: EngineCore, number: int) -> None:
        mailbox = Mailbox()
        core.submit(request([number + 1], 20), mailbox)
        taken = 0
        while True:
            delta = (await mailbox.take())[0]
            taken += len(delta.tokens)
            if delta.finish_reason is not None:
                break
            # All sequences start in one step, so that token number n is of step n.
            in_time.append(sent >= min(20, taken + in_flight))
        assert taken == 20

    async with engine(made, max_in_flight=in_flight) as core:  # type: ignore[arg-type]
        await asyncio.gather(*(reader(core, number) for number in range(4)))
    assert len(in_time) >= 40 and all(in_time)


async def test_a_bug_right_behind_the_last_token_does_not_keep_it_from_its_reader() -> None:
    made = fake()
    async with engine(made, max_in_flight=1) as core:
        scheduler = core._scheduler
        assert scheduler is not None
        schedule = scheduler.schedule

        def broken() -> UnifiedBatch | None:
            if made.steps and not core._delivery.live:
                raise RuntimeError("a bug")
            return schedule()

        scheduler.schedule = broken  # type: ignore[method-assign]
        ids, reason = await asyncio.wait_for(run(core, request([1], 3)), 5)
        assert (len(ids), reason) == (3, FinishReason.LENGTH)
        await asyncio.wait_for(core.failed.wait(), 5)
