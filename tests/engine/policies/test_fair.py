"""The fair policy: whoever has been served least comes first."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from engine.core.backlog import MAX_RETRY_AFTER, Backlog
from engine.core.loop import EngineCore
from engine.core.mailbox import Mailbox
from engine.core.sequence import Sequence, SequenceStatus
from engine.errors import DeadlinePassed, Overloaded
from engine.policies.fair import MOST_TENANTS, Fair, most_present
from engine.request import Request
from executors.fakes.failures import Failure
from executors.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, engine, fake, read, request, run


def seq(number: int, tenant: str = "", tokens: int = 10, deadline: float | None = None) -> Sequence:
    asked = Request("test", np.zeros(tokens, np.int32), GREEDY, 5, tenant=tenant, deadline=deadline)
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
    queue.charge(newcomer, 1)
    third = seq(3, "a")
    queue.add(third)
    # Had b begun at 0 it would come first for a thousand tokens.
    assert order(queue) == [1, 2, 3]


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


def test_the_last_slots_are_for_others() -> None:
    queue = Fair()
    mine = [seq(number, "a") for number in range(16)]
    for one in mine:
        queue.add(one)
        assert queue.may_take_slot(one, 16), "one tenant alone may have all"
        queue.took_slot(one)
    other = seq(99, "b")
    queue.add(other)
    assert queue.may_take_slot(other, 16)
    assert not queue.may_take_slot(seq(98, "a"), 16)
    queue.gone(mine[0])
    queue.gone(mine[1])
    assert not queue.may_take_slot(seq(98, "a"), 16)
    queue.gone(mine[2])
    assert queue.may_take_slot(seq(98, "a"), 16)
    assert Fair().may_take_slot(other, 1)


def test_with_one_slot_everybody_may_have_it() -> None:
    queue = Fair()
    queue.add(seq(1, "a"))
    queue.add(seq(2, "b"))
    assert queue.may_take_slot(seq(3, "a"), 1)


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
    core.submit(replace(request(prompt, 3), tenant=tenant), mailbox)
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
            asyncio.create_task(run(core, replace(request([i % 900, 3, 4], 10 + i % 7), tenant="many")))
            for i in range(500)
        ]
        await asyncio.sleep(0)
        waited = [await _first_token(core, "one", [i, 7, 7]) for i in range(10)]
        # The first waits for one of the many to end; after it a slot is kept free.
        assert (waited[0] < 30) is fast
        assert sorted(waited)[5] <= 3
        found = await asyncio.gather(*many)
        assert [ids for ids, _ in found] == [expected_tokens([i % 900, 3, 4], 10 + i % 7) for i in range(500)]


# -- what waits -------------------------------------------------------------------------------------------------------


def test_the_estimate_follows_what_was_measured() -> None:
    backlog = Backlog()
    assert (backlog.wait(100), backlog.retry_after()) == (0.0, 1)
    for number in range(10):
        backlog.enter(seq(number, tokens=100))
    assert backlog.wait() == 0.0, "nothing was measured yet"
    backlog.observe(1.0, 500, 0)
    assert backlog.wait() == pytest.approx(2.0)
    assert backlog.wait(500) == pytest.approx(3.0)
    backlog.observe(1.0, 500, 1)  # one ends in two seconds: ten need twenty
    assert 15 < backlog.wait() < 25
    assert backlog.retry_after() == pytest.approx(backlog.wait(), abs=1)
    for _ in range(10000):
        backlog.observe(1.0, 1, 0)
    assert backlog.retry_after() == MAX_RETRY_AFTER


def test_only_who_still_waits_expires_and_once() -> None:
    backlog = Backlog()
    begun, late, patient = seq(1, deadline=1.0), seq(2, deadline=1.0), seq(3, deadline=9.0)
    for one in (begun, late, patient):
        backlog.enter(one)
    begun.status = SequenceStatus.RUNNING
    backlog.leave(begun)
    assert list(backlog.expired(0.9)) == []
    assert list(backlog.expired(1.0)) == [late]
    assert list(backlog.expired(5.0)) == []


async def test_a_deadline_that_passes_in_the_queue_drops_the_request() -> None:
    async with engine(fake(step_delay_ms=10, seqs=1), max_num_seqs=1) as core:
        running = asyncio.create_task(run(core, request([1], 30)))
        await asyncio.sleep(0.03)
        mailbox = Mailbox()
        core.submit(replace(request([2], 5), deadline=core.clock() + 0.05), mailbox)
        delta = await read(mailbox)
        assert isinstance(delta.error, DeadlinePassed)
        assert delta.error.status == 429 and delta.error.retry_after >= 1
        assert not running.done()
        assert (await running)[0] == expected_tokens([1], 30)


async def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    async with engine(fake(step_delay_ms=10, seqs=1), max_num_seqs=1) as core:
        await run(core, request([5], 5))
        running = asyncio.create_task(run(core, request([1], 20)))
        waiting = [asyncio.create_task(run(core, request([i], 20))) for i in range(5)]
        await asyncio.sleep(0.02)
        with pytest.raises(DeadlinePassed) as refused:
            core.submit(replace(request([2], 5), deadline=core.clock() + 0.02), Mailbox())
        assert refused.value.code == "deadline_exceeded"
        core.submit(replace(request([2], 1), deadline=core.clock() + 60), Mailbox())
        await asyncio.gather(running, *waiting)


async def test_a_deadline_passes_while_the_executor_is_away() -> None:
    made = fake(seqs=2)
    made.failures.append(Failure("die", token=9, times=1))
    begin, away, back = made.begin_epoch, asyncio.Event(), asyncio.Event()

    async def slow(epoch: int) -> None:
        if epoch > 1:
            away.set()
            await back.wait()
        await begin(epoch)

    made.begin_epoch = slow  # type: ignore[method-assign]
    async with engine(made, recovery_timeout=30) as core:
        running = asyncio.create_task(run(core, request([9], 5)))
        await away.wait()
        mailbox = Mailbox()
        core.submit(replace(request([2], 5), deadline=core.clock() + 0.05), mailbox)
        assert isinstance((await read(mailbox)).error, DeadlinePassed)
        back.set()
        assert (await running)[0] == expected_tokens([9], 5)


async def test_too_many_tokens_in_the_queue_are_refused_with_a_time() -> None:
    async with engine(fake(step_delay_ms=5, seqs=1), max_num_seqs=1, max_queued_tokens=50) as core:
        running = asyncio.create_task(run(core, request([1], 20)))
        await asyncio.sleep(0.02)
        core.submit(request([1] * 200, 1), Mailbox())  # nothing waits: it may come, however long it is
        with pytest.raises(Overloaded) as refused:
            core.submit(request([1], 1), Mailbox())
        assert isinstance(refused.value.retry_after, int) and refused.value.retry_after >= 1
        await running
        await core.drain(5)
