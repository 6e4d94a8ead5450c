"""Engines that share cores take turns, one step at a time, and steps are cut while another engine waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.config import EngineConfig
from engine.core.core_lease import LEAST_TOKENS, STEP_SECONDS, CoreLease
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
    """What computes now. Two at once raise."""

    def __init__(self) -> None:
        self.busy: str | None = None
        self.steps: list[tuple[str, int]] = []

    def share(self, name: str, made: FakeExecutor) -> None:
        works = made.unified_decode

        async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
            assert self.busy is None, f"{name} computes beside {self.busy}"
            self.busy = name
            self.steps.append((name, batch.total_q_tokens()))
            try:
                await asyncio.sleep(TOKEN * batch.total_q_tokens())
                return await works(batch)
            finally:
                self.busy = None

        made.unified_decode = unified_decode  # type: ignore[method-assign]


@asynccontextmanager
async def engines(*made: FakeExecutor, **config: float) -> AsyncIterator[tuple[Cores, list[EngineCore]]]:
    cores, lease = Cores(), CoreLease()
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
        core = EngineCore(executor, EngineConfig(**settings), clock=clock, cores=lease)  # type: ignore[arg-type]
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
    assert order[:60] == ["a", "b", "c"] * 20


@in_virtual_time
async def test_an_engine_alone_has_all_turns() -> None:
    async with engines(fake(), fake()) as (cores, [a, b]):
        assert (await run(b, request([1], 20)))[0] == expected_tokens([1], 20)
        assert {name for name, _ in cores.steps} == {"b"}
        assert (await run(a, request([2], 20)))[0] == expected_tokens([2], 20)


@in_virtual_time
async def test_a_long_prompt_is_cut_while_another_engine_waits() -> None:
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


@pytest.mark.parametrize("ends", ["dies", "parks", "stops", "aborts"])
@in_virtual_time
async def test_an_engine_that_does_not_compute_holds_up_no_other(ends: str) -> None:
    made = fake()
    async with engines(made, fake()) as (_, [a, b]):
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
        if ends == "parks":
            await a.resume()
            assert (await run(a, request([3], 10)))[0] == expected_tokens([3], 10)
