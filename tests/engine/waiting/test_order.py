"""Who comes first, who gives way, and how much of a prompt a step computes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engine.mailbox import Mailbox
from engine.policies.budget import MIN_CHUNK, FixedBudget, LatencyBudget
from engine.policies.victim import least_important, youngest
from engine.request import Request, RequestContext, TokenDelta
from engine.sequence import Sequence, SequenceStatus
from engine.waiting.order import Fcfs, Priority
from executors.contract import KvCacheHandle
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, engine, fake, read, request, run
from tests.text_requests import changed


def sequence(seq_id: int, priority: int = 0) -> Sequence:
    asked = Request(RequestContext("r", 0.0, priority), np.array([1], np.int32), GREEDY, 1)
    return Sequence(seq_id, asked, Mailbox(), 0)


def test_order_of_queues() -> None:
    seqs = [sequence(i, priority) for i, priority in ((1, 5), (2, 0), (3, 5), (4, -1))]
    for queue, want in ((Fcfs(), [1, 2, 3, 4]), (Priority(), [4, 2, 1, 3])):
        for seq in reversed(seqs):
            queue.add(seq)
        assert [seq.seq_id for seq in queue] == want and len(queue) == 4
        queue.remove(seqs[1])
        with pytest.raises(ValueError, match="not waiting"):
            queue.remove(seqs[1])
        queue.add(seqs[1])
        assert [seq.seq_id for seq in queue] == want
    assert [seq.seq_id for seq in Priority().ordered(seqs)] == [4, 2, 1, 3]
    assert list(Fcfs().ordered(seqs)) == seqs


def test_victims() -> None:
    seqs = [sequence(1, 3), sequence(2, 0), sequence(3, 3), sequence(4, 1)]
    assert youngest(iter(seqs)) is seqs[3]
    assert least_important(iter(seqs)) is seqs[2]


def test_a_fixed_budget_is_all() -> None:
    budget = FixedBudget()
    budget.observe(8, 100, 10.0)
    assert budget.prompt_tokens(8, 2048) == 2048


def test_chunks_fit_the_time_that_streams_bear() -> None:
    budget = LatencyBudget()
    assert budget.prompt_tokens(0, 2048) == 2048, "nobody waits"
    assert budget.prompt_tokens(4, 2048) < 2048, "nothing is known yet"
    for _ in range(20):
        budget.observe(0, 500, 0.5)  # 1 ms a token
        budget.observe(8, 0, 0.025)
    assert 16 <= budget.prompt_tokens(8, 2048) <= 20  # (1.75 - 1) * 25 ms
    assert budget.prompt_tokens(9, 10) == 10
    for _ in range(40):
        budget.observe(8, 30, 0.025 + 30 * 0.0001)  # it has become cheap
    assert budget.prompt_tokens(8, 2048) > 150


def test_a_target_is_kept_and_progress_made() -> None:
    budget = LatencyBudget(target_itl=0.1)
    for _ in range(20):
        budget.observe(8, 0, 0.02)
        budget.observe(0, 1000, 1.0)
    assert 75 <= budget.prompt_tokens(8, 2048) <= 81
    slow = LatencyBudget(target_itl=0.001)
    slow.observe(8, 0, 0.02)
    slow.observe(0, 1000, 1.0)
    assert slow.prompt_tokens(8, 2048) == MIN_CHUNK


def test_one_stall_moves_little() -> None:
    budget = LatencyBudget()
    for _ in range(50):
        budget.observe(8, 0, 0.025)
        budget.observe(0, 1000, 1.0)
    before = budget.prompt_tokens(8, 2048)
    budget.observe(8, 0, 5.0)
    assert budget.prompt_tokens(8, 2048) <= 1.5 * before


def test_a_base_is_taken_from_the_nearest_number_of_decodes() -> None:
    budget = LatencyBudget()
    budget.observe(1, 0, 0.010)
    budget.observe(64, 0, 0.040)
    budget.observe(0, 1000, 1.0)
    assert budget.prompt_tokens(2, 2048) == MIN_CHUNK  # 7 tokens would do
    assert budget.prompt_tokens(100, 2048) == 30


async def test_priority_decides_who_is_admitted() -> None:
    made = fake(step_delay_ms=1)
    async with engine(made, max_num_seqs=1, scheduling_policy="priority") as core:
        order: list[int] = []

        async def one(priority: int) -> None:
            mailbox = Mailbox()
            core.submit(changed(request([priority, 1], 3), priority=priority), mailbox)
            await read(mailbox)
            order.append(priority)

        first = asyncio.create_task(one(9))
        await asyncio.sleep(0.002)
        await asyncio.gather(first, *(one(priority) for priority in (5, 1, 3)))
    assert order == [9, 1, 3, 5]


async def test_the_least_important_gives_way() -> None:
    made = fake(num_blocks=12)
    async with engine(made, scheduling_policy="priority", prefix_caching=False) as core:
        asked = [changed(request([i] * 8, 16), priority=priority) for i, priority in enumerate((2, 0, 1))]
        rolled_back: list[int] = []
        truncate = made.truncate_kv

        def record(handle: KvCacheHandle, length: int) -> int:
            rolled_back.append(handle.cache_id)
            return truncate(handle, length)

        made.truncate_kv = record  # type: ignore[method-assign]
        results = await asyncio.gather(*(run(core, one) for one in asked))
    for one, (ids, _) in zip(asked, results, strict=True):
        assert ids == expected_tokens(one.prompt_token_ids, 16)
    assert rolled_back and 2 not in rolled_back, "sequence 2 is the most important"


async def test_running_streams_get_small_chunks_beside_them() -> None:
    """A long prompt arrives while a stream runs: with a target it is spread over many steps, without over few."""
    steps: dict[float, int] = {}
    for target in (0.0, 0.001):
        made = fake(step_delay_ms=2)
        async with engine(made, max_num_batched_tokens=256, target_itl=target) as core:
            assert core._scheduler is not None
            # A fake's prompt tokens cost nothing, and what is left of a busy machine's noise may be less than that.
            core._scheduler.policies.budget.observe(0, 100, 0.02)
            mailbox, whole = Mailbox(), TokenDelta()
            core.submit(request([1], 60), mailbox)
            while len(whole.tokens) < 8:  # what its steps take is known by then
                whole.merge((await mailbox.take())[0])
            before = made.steps
            assert (await run(core, request(list(range(200)), 1)))[0] == expected_tokens(range(200), 1)
            steps[target] = made.steps - before
            while whole.finish_reason is None:
                whole.merge((await mailbox.take())[0])
            assert [token.token_id for token in whole.tokens] == expected_tokens([1], 60)
    assert steps[0.0] <= 3 and steps[0.001] >= 6, steps


async def test_streams_come_back_as_fast_as_they_can_after_a_restart() -> None:
    """Those that are back first do not slow down the others' way back."""
    made = fake(step_delay_ms=1)
    made.failures.append(Failure("die", step=30))
    async with engine(made, max_num_batched_tokens=256, target_itl=0.001) as core:
        assert core._scheduler is not None
        core._scheduler.policies.budget.observe(0, 100, 0.02)
        whole = [TokenDelta() for _ in range(8)]

        async def stream(number: int) -> None:
            mailbox = Mailbox()
            core.submit(request([number] * 100, 120), mailbox)
            while whole[number].finish_reason is None:
                whole[number].merge((await mailbox.take())[0])

        streams = asyncio.gather(*(stream(number) for number in range(8)))
        live = core._delivery.live
        # The loop's own turns are what is counted, so no event will do.
        while not (  # noqa: ASYNC110
            core.stats().epoch == 2 and all(seq.status is SequenceStatus.RUNNING for seq in live.values())
        ):
            await asyncio.sleep(0)
        steps = made.steps - 30
        await streams
    assert [[token.token_id for token in one.tokens] for one in whole] == [
        expected_tokens([number] * 100, 120) for number in range(8)
    ]
    # 800 tokens and more to compute anew, 256 a step; in chunks of 32 it would take 25 steps.
    assert steps <= 8, steps


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
async def test_streams_of_one_priority_take_turns_in_steps_that_memory_made_small(policy: str) -> None:
    made = fake(seqs=32)
    async with engine(
        made, max_num_seqs=32, max_num_batched_tokens=64, scheduling_policy=policy, target_itl=0.0
    ) as core:
        boxes = [Mailbox() for _ in range(32)]
        for number, box in enumerate(boxes):
            core.submit(request([1, number], 200), box)
        assert core._scheduler is not None
        while min(len(seq.output_token_ids) for seq in core._delivery.live.values()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        core._scheduler.step_budget.shrink(32)
        assert core._scheduler.step_budget.tokens == 16
        seqs = list(core._delivery.live.values())
        before, until = [len(seq.output_token_ids) for seq in seqs], made.steps + 40
        while made.steps < until:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gained = [len(seq.output_token_ids) - had for seq, had in zip(seqs, before, strict=True)]
    assert min(gained) >= 15, gained
