"""Slots that the fair queue keeps for other keys: who may take one is let in, who may not is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import Overloaded
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from engine.story import Story
from engine.waiting.fair import RESERVED_FOR, Fair
from tests.engine.harness import GREEDY
from tests.engine.waiting.test_admitted_in_time import Burst, executor
from tests.engine.waiting.test_fair import seq
from tests.sim.virtual_loop import run
from tests.tiers import sweep

Call = Callable[[str, int], Awaitable[str]]


async def with_core(slots: int, calls: Callable[[Call], Awaitable[None]]) -> None:
    """Run `calls` on a fair queue with 5 s of patience; each call tells how it ended."""
    clock = asyncio.get_running_loop().time
    config = EngineConfig(
        max_num_seqs=slots, max_num_batched_tokens=512, max_queue_wait=5.0, scheduling_policy="fair"
    )
    core = EngineCore(executor(Burst(slots=slots)), config, clock=clock)
    await core.start()

    async def call(tenant: str, tokens: int) -> str:
        context = RequestContext("r", clock(), story=Story(clock()), tenant=tenant)
        mailbox, ids = Mailbox(), np.full(50, 7, np.int32)
        try:
            core.submit(Request(context, ids, GREEDY, tokens, frozenset()), mailbox)
        except Overloaded:
            return "refused"
        while True:
            delta = (await mailbox.take())[0]
            if delta.error is not None:
                return "dropped"
            if delta.finish_reason is not None:
                return "served"

    await calls(call)
    assert await core.drain(1e6)
    await core.stop()
    core.check_integrity()


@sweep(every=2)
@pytest.mark.parametrize("slots", [2, 8])
def test_a_key_is_let_into_the_slot_that_is_kept_for_it_whoever_queues(slots: int) -> None:
    """The other key holds all that it may have, for 40 s, and has more calls waiting: the slot is free all the same."""

    async def calls(call: Call) -> None:
        assert await call("rare", 2) == "served"
        busy = [asyncio.ensure_future(call("busy", 2000)) for _ in range(slots)]
        await asyncio.sleep(1.0)
        assert await call("rare", 20) == "served"
        assert await call("new", 20) == "served"
        await asyncio.gather(*busy)

    run(with_core(slots, calls))


@sweep(every=2)
@pytest.mark.parametrize("slots", [2, 8])
def test_a_key_with_all_it_may_hold_is_refused_although_a_slot_is_free(slots: int) -> None:
    async def calls(call: Call) -> None:
        assert await call("rare", 2) == "served"
        busy = [asyncio.ensure_future(call("busy", 2000)) for _ in range(slots - 1)]
        await asyncio.sleep(1.0)
        assert await call("busy", 20) == "refused"
        assert await asyncio.gather(*busy) == ["served"] * (slots - 1)

    run(with_core(slots, calls))


def test_the_room_of_a_tenant_is_that_of_the_candidates() -> None:
    now = [0.0]
    fair = Fair(lambda: now[0])
    assert fair.room("a", 8) == 8, "alone"
    one = seq(1, "a")
    fair.add(one)
    fair.remove(one)
    fair.took_slot(one)
    assert (fair.room("a", 8), fair.room("b", 8), fair.room("b", 1)) == (7, 7, 1)
    other = seq(2, "b")
    fair.add(other)
    assert (fair.room("a", 8), fair.room("b", 8)) == (6, 7)
    fair.remove(other)
    fair.gone(other)
    assert fair.room("a", 8) == 6, "kept for a minute"
    now[0] = RESERVED_FOR + 1
    assert fair.room("a", 8) == 7
