"""Parking: the executor is put away in the middle of streams, and they go on as if it had not been."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.core.engine import EngineCore
from engine.errors import DeadlinePassed, Unavailable
from engine.mailbox import Mailbox
from engine.request import Stage
from executors.contract import ExecutorError, Int32Array, SealedBlocks
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, request, run
from tests.sim.virtual_loop import in_virtual_time

PROMPTS = ([1], [2, 3, 4, 5, 6], [7] * 40)


async def steps_done(core: EngineCore, count: int) -> None:
    """Return in the turn in which so many steps have landed."""
    while core.stats().steps < count:  # noqa: ASYNC110  (a sleep of 0 is a turn of the loop)
        await asyncio.sleep(0)


@pytest.mark.parametrize("executor", ["echo", "paged_fake"])
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 13])
async def test_streams_go_on_after_a_pause_at_any_step(executor: str, in_flight: int, after: int) -> None:
    made = fake(executor)
    async with engine(made, max_in_flight=in_flight) as core:
        reads = [asyncio.create_task(run(core, request(prompt, 20))) for prompt in PROMPTS]
        await steps_done(core, after)
        await core.park()
        steps, running = core.stats().steps, core.stats().running
        assert running == 0 and core.stage is Stage.RECOVERING
        late = asyncio.create_task(run(core, request([9, 9], 5)))
        await asyncio.sleep(0.05)
        assert core.stats().steps == steps and not late.done(), "nothing is computed while it is away"
        await core.resume()
        for prompt, read in zip(PROMPTS, reads, strict=True):
            assert (await read)[0] == expected_tokens(prompt, 20)
        assert (await late)[0] == expected_tokens([9, 9], 5)
        assert core.stage is Stage.READY and core.detail == ""


async def test_it_may_be_parked_again_and_again() -> None:
    async with engine(fake()) as core:
        reading = asyncio.create_task(run(core, request([1], 40)))
        for step in range(1, 6):
            await steps_done(core, 3 * step)
            await core.park()
            await core.resume()
        assert (await reading)[0] == expected_tokens([1], 40)
        assert core.stats().epoch == 6


async def test_a_client_may_leave_while_the_executor_is_away() -> None:
    async with engine(fake()) as core:
        seq_id = core.submit(request([1], 40), Mailbox())
        await steps_done(core, 3)
        await core.park()
        core.abort(seq_id)
        async with asyncio.timeout(5):
            while core.stats().waiting:  # noqa: ASYNC110  (nothing is told of aborts)
                await asyncio.sleep(0.01)
        await core.resume()
        assert (await run(core, request([2], 5)))[0] == expected_tokens([2], 5)


@in_virtual_time
async def test_time_while_parked_counts_for_deadlines_and_not_for_the_queue() -> None:
    async with engine(fake(seqs=1), max_queue_wait=2.0) as core:
        stream = asyncio.create_task(run(core, request([1], 5)))
        await steps_done(core, 1)
        await core.park()
        waiting = asyncio.create_task(run(core, request([2], 5)))
        late = request([3], 5)
        late = replace(late, context=replace(late.context, deadline=core.clock() + 30.0))
        impatient = asyncio.create_task(run(core, late))
        await asyncio.sleep(60)
        assert isinstance((await asyncio.gather(impatient, return_exceptions=True))[0], DeadlinePassed)
        assert not waiting.done() and not stream.done()
        await core.resume()
        assert (await stream)[0] == expected_tokens([1], 5)
        assert (await waiting)[0] == expected_tokens([2], 5)


async def test_an_executor_that_does_not_come_back_fails_the_streams() -> None:
    made = fake()
    async with engine(made) as core:
        reading = asyncio.create_task(run(core, request([1], 40)))
        await steps_done(core, 3)
        await core.park()

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            raise ExecutorError("no memory")

        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="no memory"):
            await core.resume()
        assert core.failed.is_set()
        [error] = await asyncio.gather(reading, return_exceptions=True)
        assert isinstance(error, Exception)


async def test_a_parked_engine_stops_at_once() -> None:
    async with engine(fake()) as core:
        reading = asyncio.create_task(run(core, request([1], 40)))
        await steps_done(core, 3)
        await core.park()
        async with asyncio.timeout(1):
            await core.stop()
        [error] = await asyncio.gather(reading, return_exceptions=True)
        assert isinstance(error, Unavailable)
