"""The engine core on fakes: every token right, every request answered, nothing left behind."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from engine.config import MAX_FRUITLESS_RESTARTS
from engine.errors import (
    ContextLengthExceeded,
    ExecutorFailed,
    InvalidRequest,
    Overloaded,
    SequenceFailed,
    Unavailable,
)
from engine.mailbox import Mailbox
from engine.metrics_sink import MetricsSink
from engine.request import FinishReason, Stage
from executors.contract import (
    ExecutorDied,
    Int32Array,
    SampledToken,
    SamplingParams,
    SealedBlocks,
)
from executors.process.inline import InlineExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, engine, fake, read, request, run


async def test_one_request_gets_the_executors_tokens() -> None:
    async with engine(fake()) as core:
        ids, reason = await run(core, request([1, 2, 3], 10))
    assert ids == expected_tokens([1, 2, 3], 10)
    assert reason is FinishReason.LENGTH


@pytest.mark.parametrize("executor", ["echo", "paged_fake"])
async def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes(executor: str) -> None:
    made = fake(executor)
    async with engine(made, max_num_batched_tokens=7) as core:
        prompts = [[5] * 3, list(range(100)), [7, 8]]
        results = await asyncio.gather(*(run(core, request(p, 20)) for p in prompts))
    for prompt, (ids, _) in zip(prompts, results, strict=True):
        assert ids == expected_tokens(prompt, 20)


async def test_a_stop_token_ends_the_sequence_and_counts() -> None:
    expected = expected_tokens([9, 9], 30)
    stop = expected[11]
    cut = expected.index(stop) + 1
    async with engine(fake()) as core:
        ids, reason = await run(core, request([9, 9], 30, stop=(stop,)))
    assert (ids, reason) == (expected[:cut], FinishReason.STOP)


async def test_too_small_a_pool_preempts_and_every_token_is_still_right() -> None:
    made = fake(num_blocks=24)  # 96 tokens for 8 sequences that want up to 40 each
    async with engine(made) as core:
        prompts = [[i, i + 1, i + 2] for i in range(16)]
        results = await asyncio.gather(*(run(core, request(p, 36)) for p in prompts))
        preemptions = core.stats().preemptions
        assert core.stats().kv_blocks_used == 0
    for prompt, (ids, _) in zip(prompts, results, strict=True):
        assert ids == expected_tokens(prompt, 36)
    assert preemptions > 0
    assert set(made.released.values()) == {1} and len(made.released) == 16


@pytest.mark.parametrize("seed", range(4))
async def test_64_streams_with_random_lengths_and_aborts_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    made = fake(num_blocks=40, seqs=16)
    async with engine(made, max_num_seqs=16, max_num_batched_tokens=rng.choice([5, 33, 512])) as core:

        async def stream() -> None:
            prompt = [rng.randrange(1000) for _ in range(rng.randrange(1, 60))]
            sampling = (
                GREEDY if rng.random() < 0.5 else SamplingParams(temperature=0.8, seed=rng.randrange(99))
            )
            count = rng.randrange(1, 60)
            await asyncio.sleep(rng.random() / 50)
            mailbox = Mailbox()
            seq_id = core.submit(request(prompt, count, sampling), mailbox)
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() / 30)
                core.abort(seq_id)
                return
            whole = await read(mailbox)
            assert [t.token_id for t in whole.tokens] == expected_tokens(prompt, count, sampling)

        await asyncio.gather(*(stream() for _ in range(64)))
        assert await core.drain(5)
        await asyncio.sleep(0.02)
        assert core.stats().kv_blocks_used == 0 and core.stats().running == core.stats().waiting == 0
        core.check_integrity()
    assert set(made.released.values()) <= {1}


async def test_an_abort_takes_effect_within_one_step() -> None:
    made = fake(step_delay_ms=30)
    async with engine(made) as core:
        mailbox = Mailbox()
        seq_id = core.submit(request([1], 200), mailbox)
        await mailbox.take()
        steps = made.steps
        core.abort(seq_id)
        core.abort(seq_id)
        await asyncio.sleep(0.12)
        assert made.steps <= steps + 1
        assert made.released == {seq_id: 1}
        assert core.stats().kv_blocks_used == 0


async def test_a_finish_from_the_text_side_cuts_the_output() -> None:
    seen: list[tuple[str, int, int]] = []

    class Ears(MetricsSink):
        def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
            seen.append((outcome, prompt_tokens, output_tokens))

    async with engine(fake(step_delay_ms=5), Ears()) as core:
        mailbox = Mailbox()
        seq_id = core.submit(request([4, 5], 100), mailbox)
        got = 0
        while got < 3:
            got += len((await mailbox.take())[0].tokens)
        core.finish(seq_id, 2)
        core.finish(seq_id, 1)
        assert await core.drain(1)
    assert seen == [("stop", 2, 2)]


async def test_a_prompt_counts_once_for_all_its_choices_and_not_for_who_left_before() -> None:
    seen: list[int] = []

    class Ears(MetricsSink):
        def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
            seen.append(prompt_tokens)

    async with engine(fake(step_delay_ms=5), Ears(), max_num_seqs=4) as core:
        mailbox = Mailbox()
        asked = [replace(request([5] * 9), sampling=SamplingParams(choice=i)) for i in range(4)]
        core.submit_choices(asked, mailbox)
        await asyncio.sleep(0.02)
        core.abort(core.submit(request([6] * 20), Mailbox()))  # no slot is free: it waits
        assert await core.drain(2)
    assert sorted(seen) == [0, 0, 0, 0, 9]


async def test_what_cannot_be_served_is_refused_at_once_and_others_go_on() -> None:
    async with engine(fake(num_blocks=16), max_queued_seqs=2) as core:  # 64 tokens of KV
        running = asyncio.create_task(run(core, request([1], 20)))
        await asyncio.sleep(0)
        for bad, error in (
            (request([]), InvalidRequest),
            (request([1, 1000]), InvalidRequest),
            (request([-1]), InvalidRequest),
            (request([1], 0), InvalidRequest),
            (request([1] * 300), ContextLengthExceeded),
            (request([1] * 30, 35), ContextLengthExceeded),  # more than the whole pool
        ):
            with pytest.raises(error) as raised:
                core.submit(bad, Mailbox())
            assert raised.value.param in ("prompt", "max_tokens")
        core.submit(request([1]), Mailbox())
        with pytest.raises(Overloaded):
            core.submit(request([1]), Mailbox())
            core.submit(request([1]), Mailbox())
        assert (await running)[0] == expected_tokens([1], 20)
        await core.drain(5)


@pytest.mark.parametrize("kind", ["step_failed", "out_of_memory", "die"])
async def test_a_failed_step_loses_no_token(kind: str) -> None:
    made = fake()
    made.failures.append(Failure(kind, step=4))
    async with engine(made) as core:
        results = await asyncio.gather(*(run(core, request([i], 50)) for i in range(3)))
        assert [ids for ids, _ in results] == [expected_tokens([i], 50) for i in range(3)]
        assert core.stats().stage is Stage.READY and core.stats().epoch == 2
        assert core.stats().kv_blocks_used == 0


async def test_who_is_in_three_failed_steps_in_a_row_gets_a_typed_error() -> None:
    made = fake()
    made.failures.append(Failure("step_failed", token=77, times=10))
    async with engine(made, max_num_seqs=1) as core:
        doomed, other = await asyncio.gather(
            run(core, request([77], 9)), run(core, request([78], 9)), return_exceptions=True
        )
        assert isinstance(doomed, ExecutorFailed) and doomed.status == 500 and doomed.code == "step_failed"
        assert other[0] == expected_tokens([78], 9)  # type: ignore[index]
        assert core.stats().epoch == 4


async def test_nan_fails_its_sequence_alone() -> None:
    made = fake()
    made.failures.append(Failure("nan", token=77))
    async with engine(made) as core:
        bad, good = await asyncio.gather(
            run(core, request([77], 9)), run(core, request([78], 9)), return_exceptions=True
        )
        assert isinstance(bad, SequenceFailed)
        assert good[0] == expected_tokens([78], 9)  # type: ignore[index]


async def test_an_executor_that_never_comes_back_fails_all_and_says_so() -> None:
    made = fake()
    made.failures.append(Failure("die", step=2))

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        raise made_error

    async with engine(made) as core:
        made_error = ExecutorDied("gone")
        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        results = await asyncio.gather(
            *(run(core, request([i], 50)) for i in range(12)), return_exceptions=True
        )
        assert all(isinstance(r, ExecutorFailed) for r in results)
        assert core.stats().stage is Stage.FAILED and core.failed.is_set()
        with pytest.raises(Unavailable):
            core.submit(request([1]), Mailbox())


async def test_restarts_are_tried_again_until_one_works() -> None:
    made = fake()
    made.failures.append(Failure("die", step=2))
    works, tries = made.begin_epoch, 0

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        nonlocal tries
        tries += epoch > 1
        if epoch > 1 and tries < 4:
            raise ExecutorDied("not yet")
        return await works(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    async with engine(made, recovery_timeout=5.0) as core:
        assert (await run(core, request([1], 50)))[0] == expected_tokens([1], 50)
        assert (await run(core, request([2], 5)))[0] == expected_tokens([2], 5)
        assert tries == 4 and not core.failed.is_set()


async def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    async with engine(fake(step_delay_ms=2)) as core:
        running = asyncio.create_task(run(core, request([3], 20)))
        await asyncio.sleep(0.01)
        draining = asyncio.create_task(core.drain(5))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            core.submit(request([1]), Mailbox())
        assert await draining
        assert (await running)[0] == expected_tokens([3], 20)


async def test_stop_answers_whoever_still_waits() -> None:
    async with engine(fake(step_delay_ms=50)) as core:
        waiting = [asyncio.create_task(run(core, request([i], 200))) for i in range(12)]
        await asyncio.sleep(0.02)
        await core.stop()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(r, Unavailable) for r in results)


async def test_committed_tokens_are_continued_and_not_sent_again() -> None:
    expected = expected_tokens([6, 6], 12)
    async with engine(fake()) as core:
        mailbox = Mailbox()
        core.submit(request([6, 6], 12), mailbox, committed=[SampledToken(t) for t in expected[:5]])
        whole = await read(mailbox)
    assert [t.token_id for t in whole.tokens] == expected[5:]


@pytest.mark.parametrize(
    ("count", "stop", "reason"), [(12, (), FinishReason.LENGTH), (5, (4,), FinishReason.STOP), (12, (11,), FinishReason.STOP)]
)  # fmt: skip
async def test_committed_tokens_that_are_all_are_ended_at_once(
    count: int, stop: tuple[int, ...], reason: FinishReason
) -> None:
    expected = expected_tokens([6, 6], 12)
    ends = tuple(expected[at] for at in stop)
    made = fake()
    async with engine(made) as core:
        mailbox = Mailbox()
        core.submit(
            request([6, 6], 12, stop=ends), mailbox, committed=[SampledToken(t) for t in expected[:count]]
        )
        whole = await read(mailbox)
        assert (whole.tokens, whole.finish_reason) == ([], reason)
        assert whole.stop_token_id == (ends[0] if ends else None)
        assert await core.drain(1)
        assert made.steps == 0 and core.stats().running == 0


async def test_more_committed_tokens_than_were_asked_for_are_refused() -> None:
    async with engine(fake()) as core:
        with pytest.raises(InvalidRequest, match="13 tokens of the output exist already"):
            core.submit(request([6, 6], 12), Mailbox(), committed=[SampledToken(1)] * 13)


async def test_a_reader_that_never_reads_costs_one_merged_delta() -> None:
    async with engine(fake()) as core:
        mailbox = Mailbox()
        core.submit(request([2], 100), mailbox)
        assert await core.drain(5)
        deltas = await mailbox.take()
    assert list(deltas) == [0] and len(deltas[0].tokens) == 100


@pytest.mark.parametrize("kind", ["step_failed", "die"])
@pytest.mark.parametrize("max_in_flight", [1, 2])
async def test_one_poisoned_request_fails_alone(kind: str, max_in_flight: int) -> None:
    inner = fake()
    inner.failures.append(Failure(kind, token=77, times=99))
    made = InlineExecutor(inner.config, inner)
    async with engine(made, max_in_flight=max_in_flight) as core:  # type: ignore[arg-type]
        innocents = [run(core, request([i, i + 1], 12)) for i in range(5)]
        *good, bad = await asyncio.gather(*innocents, run(core, request([77], 12)), return_exceptions=True)
        assert isinstance(bad, ExecutorFailed)
        assert [one[0] for one in good] == [expected_tokens([i, i + 1], 12) for i in range(5)]  # type: ignore[index]
        assert core.stats().resumed > 0


async def test_failed_steps_count_only_in_a_row() -> None:
    """Five failures, each with tokens in between: nobody is to blame."""
    made = fake()
    made.failures += [Failure("step_failed", step=step) for step in (3, 7, 11, 15, 19)]
    async with engine(made) as core:
        results = await asyncio.gather(*(run(core, request([i], 30)) for i in range(3)))
        assert [ids for ids, _ in results] == [expected_tokens([i], 30) for i in range(3)]
        assert core.stats().epoch == 6


async def test_a_death_between_steps_is_heard() -> None:
    made = fake()
    async with engine(made) as core:
        await run(core, request([1], 3))
        core._inbox.report_death(ExecutorDied("of itself", "exit"))
        for _ in range(2000):
            if core.stats().epoch == 2 and core.stats().stage is Stage.READY:
                break
            await asyncio.sleep(0.005)
        else:
            raise AssertionError(core.stats())
        assert (await run(core, request([1], 3)))[0] == expected_tokens([1], 3)


async def test_nobody_overtakes_a_long_prompt_that_does_not_fit_yet() -> None:
    made = fake(num_blocks=16)  # 64 tokens
    order: list[str] = []
    async with engine(made) as core:

        async def one(name: str, prompt: list[int], count: int) -> None:
            await run(core, request(prompt, count))
            order.append(name)

        tasks = [asyncio.create_task(one("running", [1] * 20, 20))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(one("long", list(range(50)), 1)))
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(one(f"short {i}", [60 + i], 1)) for i in range(4)]
        await asyncio.gather(*tasks)
    assert order.index("long") < order.index("short 0")


async def test_an_executor_that_only_dies_is_given_up() -> None:
    """Each request fails after three deaths; when nothing at all comes any more, restarting has no end of its own."""
    made = fake()
    made.failures += [Failure("die", token=token, times=10**6) for token in range(1000)]
    async with engine(made, restart_pause=0.0) as core:
        errors: list[Exception] = []
        while core.stats().stage is not Stage.FAILED:
            try:
                await run(core, request([len(errors) + 1], 5))
            except (ExecutorFailed, Unavailable) as error:
                errors.append(error)
        assert core.failed.is_set()
        assert "without a token" in core.stats().detail
        assert len(errors) == MAX_FRUITLESS_RESTARTS // 3 + 1


async def test_deaths_with_tokens_in_between_are_borne_for_ever() -> None:
    made = fake()
    made.failures += [Failure("die", step=step) for step in range(2, 2 + 3 * MAX_FRUITLESS_RESTARTS, 2)]
    async with engine(made, restart_pause=0.0) as core:
        assert (await run(core, request([3], 60)))[0] == expected_tokens([3], 60)
        assert core.stats().stage is Stage.READY and core.stats().epoch > MAX_FRUITLESS_RESTARTS


async def test_a_model_without_a_head_is_asked_for_no_tokens() -> None:
    executor = fake()
    plain = executor.info
    executor.info = lambda: replace(plain(), generates=False)  # type: ignore[method-assign]
    async with engine(executor) as core:
        with pytest.raises(InvalidRequest, match="no lm_head and generates nothing") as caught:
            core.submit(request([1, 2, 3]), Mailbox())
        assert (caught.value.param, caught.value.code) == ("model", "unsupported_value")
        mailbox = Mailbox()
        core.submit(replace(request([1, 2, 3]), pooling="last"), mailbox)
        assert (await read(mailbox)).error is None
