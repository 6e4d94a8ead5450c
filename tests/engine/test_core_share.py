"""Engines whose executors compute on the same cores: steps are cut while another engine has work, and waits measure nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.core.core_share import LEAST_TOKENS, STEP_SECONDS, SharedCores
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from executors.contract import UnifiedBatch, UnifiedOutput
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import fake, request, run
from tests.sim.virtual_loop import in_virtual_time

TOKEN = 0.001
"""Seconds of a token in these executors."""


class Cores:
    """Executors that take turns, as processes do, and tell how long they waited."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.steps: list[tuple[str, int]] = []

    def share(self, name: str, made: FakeExecutor) -> None:
        works, clock = made.unified_decode, asyncio.get_running_loop().time

        async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
            began = clock()
            async with self.turn:
                waited = clock() - began
                self.steps.append((name, batch.total_q_tokens()))
                await asyncio.sleep(TOKEN * batch.total_q_tokens())
                return replace(await works(batch), waited=waited)

        made.unified_decode = unified_decode  # type: ignore[method-assign]


@asynccontextmanager
async def engines(*made: FakeExecutor, **config: float) -> AsyncIterator[tuple[Cores, list[EngineCore]]]:
    cores, shared = Cores(), SharedCores()
    clock = asyncio.get_running_loop().time
    settings = {
        "max_num_seqs": 8,
        "restart_pause": 0.01,
        "recovery_timeout": 0.2,
        "target_itl": 0.0,
        **config,
    }
    running = []
    for name, executor in zip("abcd", made, strict=False):
        cores.share(name, executor)
        core = EngineCore(executor, EngineConfig(**settings), clock=clock, cores=shared)  # type: ignore[arg-type]
        await core.start()
        running.append(core)
    try:
        yield cores, running
    finally:
        for core in running:
            await core.stop()
    for core in running:
        core.check_integrity()


@pytest.mark.parametrize("in_flight", [1, 2])
@in_virtual_time
async def test_steps_alternate_and_tokens_are_right(in_flight: int) -> None:
    async with engines(fake(), fake(), fake("echo"), max_in_flight=in_flight) as (cores, [a, b, c]):
        texts = await asyncio.gather(*(run(core, request([n], 30)) for n, core in enumerate((a, b, c), 1)))
    for number, (tokens, _) in enumerate(texts, 1):
        assert tokens == expected_tokens([number], 30)
    order = [name for name, _ in cores.steps]
    assert sorted(order[:3]) == ["a", "b", "c"] and order[:60] == order[:3] * 20


@in_virtual_time
async def test_a_long_prompt_is_cut_while_another_engine_has_work() -> None:
    """A decode of the other engine waits for a tenth of a second of it, and not for all of it."""
    async with engines(fake(), fake(), max_num_batched_tokens=200) as (cores, [a, b]):
        await run(a, request([1] * 150, 2))  # measured
        assert cores.steps[0] == ("a", 150)
        stream = asyncio.create_task(run(b, request([2], 60)))
        await asyncio.sleep(0.01)
        await run(a, request([3] * 180, 2))
        await stream
        sizes = [count for name, count in cores.steps[2:] if name == "a"]
        assert max(sizes) <= STEP_SECONDS / TOKEN and sum(sizes) >= 180
        assert max(sizes) >= LEAST_TOKENS
        count = len(cores.steps)
        await run(a, request([4] * 190, 2))
        assert cores.steps[count] == ("a", 190), "alone again"


@in_virtual_time
async def test_what_a_step_waits_for_others_is_no_cost_of_its_tokens() -> None:
    """Both engines compute prompts: were waits measured, each would take tokens for twice as dear."""
    async with engines(fake(), fake(), max_num_batched_tokens=1000) as (cores, [a, b]):
        for core in (a, b):
            await run(core, request([1] * 150, 2))
        streams = [asyncio.create_task(run(core, request([7], 200))) for core in (a, b)]
        await asyncio.sleep(0.01)
        begin = len(cores.steps)
        prompts = [request([number] * 240, 2) for number in range(2, 6)]
        await asyncio.gather(*(run(core, prompt) for core in (a, b) for prompt in prompts))
        await asyncio.gather(*streams)
    sizes = [count for _, count in cores.steps[begin:] if count > LEAST_TOKENS]
    assert sizes.count(int(STEP_SECONDS / TOKEN)) >= 12, sizes


@pytest.mark.parametrize("ends", ["dies", "parks", "stops", "aborts"])
@in_virtual_time
async def test_an_engine_that_does_not_compute_cuts_no_other_engines_steps(ends: str) -> None:
    made = fake()
    async with engines(made, fake(), max_num_batched_tokens=200) as (cores, [a, b]):
        await run(b, request([1] * 150, 2))  # measured
        if ends == "dies":
            made.failures.append(Failure("die", step=5))
        mailbox = Mailbox()
        seq_id = a.submit(request([1], 200), mailbox)
        stream = asyncio.create_task(run(b, request([2], 100)))
        await asyncio.sleep(0.02)
        if ends == "parks":
            await a.park()
        elif ends == "stops":
            await a.stop()
        elif ends == "aborts":
            a.abort(seq_id)
        assert (await stream)[0] == expected_tokens([2], 100)
        if ends != "dies":
            count = len(cores.steps)
            await run(b, request([5] * 190, 2))
            assert cores.steps[count] == ("b", 190)
        if ends == "parks":
            await a.resume()
            assert (await run(a, request([3], 10)))[0] == expected_tokens([3], 10)
