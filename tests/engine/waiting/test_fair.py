"""The fair policy: whoever has been served least comes first."""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.core.journal import Journal
from engine.core.policies import Policies
from engine.core.scheduler import Scheduler
from engine.kv.kv_cache_manager import KvCacheManager
from engine.mailbox import Mailbox
from engine.policies.victim import most_present
from engine.request import FinishReason, Request, RequestContext
from engine.sequence import Sequence
from engine.waiting.fair import CREDIT, MOST_TENANTS, Fair
from engine.waiting.queue import WaitingQueue
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, engine, fake, read, request, run
from tests.text_requests import changed


def seq(number: int, tenant: str = "", tokens: int = 10, deadline: float | None = None) -> Sequence:
    context = RequestContext("test", 0.0, tenant=tenant, deadline=deadline)
    asked = Request(context, np.zeros(tokens, np.int32), GREEDY, 5)
    return Sequence(number, asked, Mailbox(), 0)


def order(queue: Fair) -> list[int]:
    return [one.seq_id for one in queue]


def test_tenants_take_turns_by_tokens() -> None:
    queue = Fair()
    for number in range(1, 7):
        queue.add(seq(number, "a", tokens=10))
    queue.add(seq(7, "b", tokens=25))
    queue.add(seq(8, "b", tokens=25))
    assert len(queue) == 8
    # a: 0, 10, 20, 30, ... b: 0, 25; the earlier of equal ones first
    assert order(queue) == [1, 7, 2, 3, 8, 4, 5, 6]


def test_who_was_served_more_comes_later() -> None:
    queue = Fair()
    first, second = seq(1, "a"), seq(2, "b")
    queue.add(first)
    queue.add(second)
    queue.charge(first, 1)
    assert order(queue) == [2, 1]
    queue.charge(second, 2)
    assert order(queue) == [1, 2]
    assert list(queue.ordered([second, first])) == [first, second]


def test_time_not_used_is_not_saved_up() -> None:
    queue = Fair()
    busy = seq(1, "a")
    queue.add(busy)
    queue.charge(busy, 1000)
    newcomer = seq(2, "b")
    queue.add(newcomer)
    queue.charge(newcomer, CREDIT + 1)
    third = seq(3, "a")
    queue.add(third)
    # Had b started at 0 it would come first for a thousand tokens.
    assert order(queue) == [1, 2, 3]


def test_who_comes_after_a_pause_is_started_before_those_who_are_here_and_whole() -> None:
    queue = Fair()
    busy = seq(1, "a")
    queue.add(busy)
    queue.took_slot(busy)
    for _ in range(3):
        queue.charge(busy, 1000)
        newcomer = seq(2, "b", tokens=50)
        queue.add(newcomer)
        assert order(queue) == [2, 1]
        assert queue.precedes(newcomer, busy)
        assert queue.owed(newcomer) == CREDIT
        queue.charge(newcomer, 50)
        queue.remove(newcomer)
        queue.gone(newcomer)


def test_credit_is_not_given_again_to_who_has_not_paid_it_back() -> None:
    """A tenant that asks again and again, with nobody served beside it, is ahead by what it had left."""
    queue = Fair()
    busy = seq(1, "a")
    queue.add(busy)
    queue.charge(busy, 1000)
    for left in (CREDIT, CREDIT - 50, CREDIT - 100, CREDIT - 150):
        newcomer = seq(2, "b", tokens=50)
        queue.add(newcomer)
        assert queue._served["a"] - queue._served["b"] == left
        queue.charge(newcomer, 50)
        queue.remove(newcomer)
        queue.gone(newcomer)


def test_a_preempted_sequence_finds_its_place_and_removing_twice_is_an_error() -> None:
    queue = Fair()
    one, two = seq(1, "a"), seq(2, "a")
    queue.add(two)
    queue.add(one)
    assert order(queue) == [1, 2]
    queue.remove(one)
    queue.add(one)
    assert order(queue) == [1, 2]
    queue.remove(one)
    with pytest.raises(ValueError, match="not waiting"):
        queue.remove(one)
    with pytest.raises(ValueError, match="not waiting"):
        queue.remove(seq(9, "nobody"))


def admit(queue: Fair, num_slots: int) -> list[int]:
    """Who gets a slot now, as the scheduler goes about it."""
    admitted = []
    for slot, one in enumerate(queue.candidates(num_slots)):
        if one.slot is None:
            one.slot = slot
            queue.took_slot(one)
        admitted.append(one)
    for one in admitted:
        queue.remove(one)
    return [one.seq_id for one in admitted]


def test_the_last_slots_are_for_others() -> None:
    queue = Fair()
    mine = [seq(number, "a") for number in range(16)]
    for one in mine:
        queue.add(one)
    assert admit(queue, 16) == list(range(16)), "one tenant alone may have all"
    for number in range(50, 60):
        queue.add(seq(number, "a"))
    queue.add(seq(99, "b"))
    assert admit(queue, 16) == [99]
    queue.gone(mine[0])
    queue.gone(mine[1])
    assert admit(queue, 16) == []
    queue.gone(mine[2])
    queue.gone(mine[3])
    assert admit(queue, 16) == [50, 51]
    assert len(queue) == 8 and order(queue) == list(range(52, 60))


def test_who_holds_a_slot_may_run_in_it_whoever_else_waits() -> None:
    """Or all slots could be held by sequences that are never computed again."""
    queue = Fair()
    for tenant in "ab":
        for number in range(1, 8):
            queue.add(seq(number + 10 * (tenant == "b"), tenant))
    preempted = [seq(number, "a") for number in range(20, 30)]
    for number, one in enumerate(preempted):
        one.slot = number
        queue.took_slot(one)
        queue.add(one)
    found = [one.seq_id for one in queue.candidates(8)]
    assert [number for number in found if number < 10] == [], "tenant a has all it may have"
    assert [number for number in found if number >= 20] == list(range(20, 30))
    assert [number for number in found if 10 < number < 20] == list(range(11, 18))


def test_with_one_slot_everybody_may_have_it() -> None:
    queue = Fair()
    queue.add(seq(1, "a"))
    queue.add(seq(2, "b"))
    assert [one.seq_id for one in queue.candidates(1)] == [1, 2]


def test_counters_of_those_who_left_are_bounded() -> None:
    queue = Fair()
    stays = seq(0, "stays")
    queue.add(stays)
    for number in range(1, 3 * MOST_TENANTS):
        one = seq(number, f"tenant {number}")
        queue.add(one)
        queue.remove(one)
        queue.gone(one)
    assert len(queue._served) <= MOST_TENANTS + 2


def test_the_victim_is_of_those_with_most() -> None:
    assert most_present([seq(1, "a"), seq(2, "b"), seq(3, "a"), seq(4, "b"), seq(5, "a")]).seq_id == 5
    assert most_present([seq(1, "a"), seq(2, "a"), seq(3, "b")]).seq_id == 2
    assert most_present([seq(1, "a"), seq(2, "b")]).seq_id == 2


async def _first_token(core: EngineCore, tenant: str, prompt: list[int]) -> int:
    """Steps until it has come."""
    mailbox, began = Mailbox(), core.stats().steps
    core.submit(changed(request(prompt, 3), tenant=tenant), mailbox)
    while not (await mailbox.take())[0].tokens:
        pass
    return core.stats().steps - began


@pytest.mark.parametrize(("policy", "fast"), [("fair", True), ("fcfs", False)])
async def test_one_with_one_request_does_not_wait_for_another_with_500(policy: str, fast: bool) -> None:
    async with engine(
        fake(num_blocks=4000, block_size=4),
        scheduling_policy=policy,
        max_num_batched_tokens=64,
        max_queued_seqs=2000,
    ) as core:
        many = [
            asyncio.create_task(run(core, changed(request([i % 900, 3, 4], 10 + i % 7), tenant="many")))
            for i in range(500)
        ]
        await asyncio.sleep(0)
        waited = [await _first_token(core, "one", [i, 7, 7]) for i in range(10)]
        # The first waits for one of the many to end; after it a slot is kept free.
        assert (waited[0] < 30) is fast
        assert sorted(waited)[5] <= 3
        found = await asyncio.gather(*many)
        assert [ids for ids, _ in found] == [expected_tokens([i % 900, 3, 4], 10 + i % 7) for i in range(500)]


async def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one() -> None:
    """Of another tenant; under `fcfs` it does. A step takes 64 tokens here, the long prompts have 250 each."""
    steps = {}
    for policy in ("fair", "fcfs"):
        async with engine(
            fake(num_blocks=4000, block_size=4),
            scheduling_policy=policy,
            max_num_batched_tokens=64,
            target_itl=0,
        ) as core:
            many = [
                asyncio.create_task(run(core, changed(request([i] * 250, 2), tenant="many")))
                for i in range(6)
            ]
            await _first_token(core, "one", [1])
            steps[policy] = await _first_token(core, "one", [7, 7])
            await asyncio.gather(*many)
    assert steps["fair"] <= 2 < steps["fcfs"]


async def test_streams_of_others_bear_a_prompt_that_is_owed() -> None:
    """With streams to spare prompts get eight tokens a step. 56 streams of another tenant have had 56 more in that step."""
    async with engine(
        fake(num_blocks=4000, block_size=4, seqs=64),
        scheduling_policy="fair",
        max_num_seqs=64,
        max_num_batched_tokens=512,
        target_itl=1e-9,
    ) as core:
        await run(core, changed(request([5], 3), tenant="one"))
        mailbox = Mailbox()
        for number in range(100):
            core.submit(changed(request([number, 3], 90), tenant="many"), mailbox, number)
        while core.stats().running < 56:
            await mailbox.take()
        assert core.stats().running == 56
        assert await _first_token(core, "one", [i % 7 for i in range(40)]) <= 2
        assert await _first_token(core, "many", [7]) > 20


def test_nothing_is_owed_to_who_is_not_behind() -> None:
    queue = Fair()
    ours, theirs, third = seq(1, "a"), seq(2, "b"), seq(3, "c")
    for one in (ours, theirs):
        queue.add(one)
        queue.took_slot(one)
    queue.charge(theirs, 10)
    assert (queue.owed(ours), queue.owed(theirs)) == (10, 0)
    queue.add(third)
    assert queue.owed(third) == 0, "it begins where the least is"
    queue.charge(ours, 4)
    assert (queue.owed(third), queue.owed(ours)) == (4, 6)
    queue.gone(theirs)
    assert queue.owed(ours) == 0, "nobody else runs"


async def test_an_important_prompt_does_not_wait_for_the_end_of_a_long_one() -> None:
    async with engine(
        fake(num_blocks=4000, block_size=4),
        scheduling_policy="priority",
        max_num_batched_tokens=64,
        target_itl=0,
    ) as core:
        long = asyncio.create_task(run(core, changed(request([1] * 250, 2), priority=5)))
        await asyncio.sleep(0)
        began, mailbox = core.stats().steps, Mailbox()
        core.submit(changed(request([2], 1), priority=0), mailbox)
        await read(mailbox)
        assert core.stats().steps - began <= 2 and not long.done()
        await long


async def _waits(tenants: int) -> float:
    """CPU seconds of scheduling, of the median step, where 4,000 sequences of so many tenants wait and one leaves a step."""
    made = fake("echo", seqs=16)
    await made.warmup()
    policies = Policies.of(EngineConfig(scheduling_policy="fair", target_itl=0))
    kv, queue = KvCacheManager(made.kv_layout()), WaitingQueue(Fair())
    scheduler = Scheduler(kv, Journal(), 16, 512, policies, queue)
    scheduler.journal.open_epoch()
    waiting = [seq(number, f"tenant {number % tenants}") for number in range(4000)]
    for one in waiting:
        queue.submit(one)
        scheduler.sequences.add(one)
    taken = []
    for _ in range(40):
        began = time.thread_time()
        scheduler.schedule()
        taken.append(time.thread_time() - began)
        leaves = next(iter(scheduler.running))
        leaves.in_flight = 0
        scheduler.sequences.finish(leaves, FinishReason.ABORT)
    assert len(queue) < 4000 - 40
    return statistics.median(taken)


async def test_a_thousand_tenants_cost_little() -> None:
    """Less than a millisecond a step on an idle machine; in proportion to their number, not to that of what waits."""
    few, many = await _waits(2), await _waits(1000)
    print(f"2 tenants {1e6 * few:.0f} us, 1,000 tenants {1e6 * many:.0f} us")
    assert many < 0.01
