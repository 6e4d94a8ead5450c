"""Recovery in its corners: what is counted, what is heard while a restart is under way, what need not be tried again."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.config import MAX_FRUITLESS_RESTARTS, EngineConfig
from engine.core.engine import EngineCore
from engine.errors import BrokeExecutor, ExecutorFailed
from engine.metrics_sink import MetricsSink
from engine.request import Stage
from executors.contract import (
    ConfigError,
    DeviceLost,
    ExecutorDied,
    ExecutorError,
    Int32Array,
    InvalidInput,
    SealedBlocks,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.process.inline import InlineExecutor
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, request, run
from tests.sim.virtual_loop import in_virtual_time


class Restarts(MetricsSink):
    """Their causes, in order."""

    def __init__(self) -> None:
        self.causes: list[str] = []

    def restarted(self, cause: str) -> None:
        self.causes.append(cause)


def failing_restarts(made: FakeExecutor, *errors: ExecutorError) -> None:
    """The first tries to begin another epoch end so."""
    works, left = made.begin_epoch, list(errors)

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        if epoch > 1 and left:
            raise left.pop(0)
        return await works(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]


@pytest.mark.parametrize("inline", [False, True])
async def test_each_start_is_counted_by_the_death_before_it(inline: bool) -> None:
    """Also of those that did not get ready: `load` would stay 0 otherwise, whatever happens."""
    made, seen = fake(), Restarts()
    made.failures.append(Failure("die", step=3))
    failing_restarts(made, ExecutorDied("killed again", "load"), ExecutorDied("and again", "load"))
    executor = InlineExecutor(made.config, made) if inline else made
    async with engine(executor, seen, recovery_timeout=5.0) as core:  # type: ignore[arg-type]
        assert (await run(core, request([1], 20)))[0] == expected_tokens([1], 20)
    assert seen.causes == ["fake", "load", "load"]


async def test_a_failed_step_of_an_executor_that_lives_is_no_restart() -> None:
    made, seen = fake(), Restarts()
    made.failures.append(Failure("step_failed", step=3))
    async with engine(made, seen) as core:
        assert (await run(core, request([1], 20)))[0] == expected_tokens([1], 20)
        assert core.stats().epoch == 2
    assert seen.causes == []


async def test_a_device_that_only_another_process_can_use_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As an inline executor's, whose process is the server's: the first try says so, and every request hears why."""
    made = fake()
    tried = 0

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        nonlocal tried
        tried += 1
        raise DeviceLost("CUDA error: gone; a process that has lost its device cannot use it again")

    async with engine(made, recovery_timeout=60.0) as core:
        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        made.failures.append(Failure("die", token=1))
        with pytest.raises(ExecutorFailed, match="cannot use it again"):
            await asyncio.wait_for(run(core, request([1], 5)), 5)
        assert tried == 1 and core.stage is Stage.FAILED
    assert "restart failed: CUDA error: gone" in caplog.text


async def test_a_death_right_behind_a_restart_is_heard() -> None:
    """It is known before the engine has taken in that the restart worked: nobody would ever look at it again."""
    made, seen = fake(), Restarts()
    works, deaths = made.begin_epoch, [ExecutorDied("as soon as it was back", "signal")]
    async with engine(made, seen) as core:

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            adopted = await works(epoch, adopt)
            if deaths:
                core._inbox.report_death(deaths.pop())
            return adopted

        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        core._inbox.report_death(ExecutorDied("of itself", "exit"))
        async with asyncio.timeout(5):
            while core.stats().epoch < 3 or core.stats().stage is not Stage.READY:  # noqa: ASYNC110  (nothing is told of stages)
                await asyncio.sleep(0.01)
        assert (await run(core, request([1], 20)))[0] == expected_tokens([1], 20)
    assert seen.causes == ["exit", "signal"]


async def test_a_model_that_cannot_be_loaded_again_counts_as_tried() -> None:
    made, seen = fake(), Restarts()
    made.failures.append(Failure("die", step=2))
    async with engine(made, seen, recovery_timeout=5.0) as core:
        works, left = made.begin_epoch, [ConfigError("config.json is gone")]

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            if left:
                core._inbox.report_death(
                    ExecutorDied("config.json is gone", "load")
                )  # as a process that ended over it
                raise left.pop()
            return await works(epoch, adopt)

        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        assert (await run(core, request([1], 20)))[0] == expected_tokens([1], 20)
    assert seen.causes == ["fake", "load"]


@pytest.mark.parametrize(("between", "fails"), [(10.0, True), (90.0, False)])
async def test_deaths_of_an_idle_executor_are_a_loop_only_if_they_follow_each_other(
    between: float, fails: bool
) -> None:
    """Nobody asks for anything, so no token comes in between: seventeen deaths in a month are not for giving up."""
    ahead = 0.0
    made = fake()
    core = EngineCore(made, EngineConfig(restart_pause=0.0), clock=lambda: time.monotonic() + ahead)
    await core.start()
    try:
        for epoch in range(2, 2 + MAX_FRUITLESS_RESTARTS):
            ahead += between
            core._inbox.report_death(ExecutorDied("of itself", "exit"))
            async with asyncio.timeout(5):
                while core.stats().epoch < epoch or core.stats().stage is Stage.RECOVERING:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        ahead += between
        core._inbox.report_death(ExecutorDied("once more", "exit"))
        await asyncio.sleep(0.05)
        assert core.failed.is_set() == fails
    finally:
        await core.stop()


def refusing(made: FakeExecutor, token: int, times: int = 1000) -> list[list[int]]:
    """Steps with that token are refused; returns the sequences of each, in the making."""
    works, refused = made.unified_decode, list[list[int]]()

    async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
        if token in batch.token_ids.tolist() and len(refused) < times:
            refused.append(batch.seq_ids.tolist())
            raise InvalidInput("not this one")
        return await works(batch)

    made.unified_decode = unified_decode  # type: ignore[method-assign]
    return refused


async def test_what_is_refused_is_tried_once_more_alone() -> None:
    """A refusal has a reason in the step itself: a third try can only be refused, too."""
    made = fake()
    refused = refusing(made, 77)
    async with engine(made, max_in_flight=1) as core:
        innocents = [run(core, request([i, i + 1], 12)) for i in range(5)]
        *good, bad = await asyncio.gather(*innocents, run(core, request([77], 12)), return_exceptions=True)
        assert isinstance(bad, ExecutorFailed) and bad.code == "invalid_input"
        assert [one[0] for one in good] == [expected_tokens([i, i + 1], 12) for i in range(5)]  # type: ignore[index]
    assert [len(seqs) for seqs in refused] == [6, 1]


async def test_who_is_refused_once_goes_on() -> None:
    made = fake()
    refused = refusing(made, 77, times=1)
    async with engine(made) as core:
        assert (await run(core, request([77], 12)))[0] == expected_tokens([77], 12)
    assert len(refused) == 1


def killed(made: FakeExecutor, token: int, times: int) -> list[list[int]]:
    """The process is killed from outside whenever it computes a step with that token; returns who was in these steps."""
    works, deaths = made.unified_decode, list[list[int]]()

    async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
        if token in batch.token_ids.tolist() and len(deaths) < times:
            deaths.append(batch.seq_ids.tolist())
            raise ExecutorDied("killed by SIGKILL", "signal", from_outside=True)
        return await works(batch)

    made.unified_decode = unified_decode  # type: ignore[method-assign]
    return deaths


async def test_five_quick_kills_beside_each_other_blame_nobody() -> None:
    """Two in company, three more while somebody is computed alone: each time somebody else."""
    made = fake()
    deaths = killed(made, 77, times=5)
    async with engine(made, max_in_flight=1, restart_pause=0.0) as core:
        asked = [request([i, 77]) for i in range(8)]
        found = await asyncio.gather(*(run(core, one) for one in asked))
        for one, (ids, _) in zip(asked, found, strict=True):
            assert ids == expected_tokens(one.prompt_token_ids.tolist(), 8)
    assert [len(seqs) for seqs in deaths] == [8, 8, 1, 1, 1]


async def test_who_was_there_at_kills_from_outside_is_not_to_blame_at_once() -> None:
    """Kills that come faster than a token: twice in company, twice more while it is computed alone."""
    made = fake()
    deaths = killed(made, 77, times=4)
    async with engine(made, max_in_flight=1, restart_pause=0.0) as core:
        asked = [request([77]), *(request([i, 77]) for i in range(3))]
        found = await asyncio.gather(*(run(core, one) for one in asked))
        for one, (ids, _) in zip(asked, found, strict=True):
            assert ids == expected_tokens(one.prompt_token_ids.tolist(), 8)
    assert [len(seqs) for seqs in deaths] == [4, 4, 1, 1]
    assert deaths[2] != deaths[3], "whoever was alone at a death is looked at again after the others"


async def test_who_is_killed_each_time_fails_alone_in_the_end() -> None:
    made = fake()
    deaths = killed(made, 77, times=1000)
    async with engine(made, max_in_flight=1, restart_pause=0.0) as core:
        innocents = [run(core, request([i, i + 1], 12)) for i in range(5)]
        *good, bad = await asyncio.gather(*innocents, run(core, request([77], 12)), return_exceptions=True)
        assert isinstance(bad, ExecutorFailed) and bad.code == "executor_died"
        assert [one[0] for one in good] == [expected_tokens([i, i + 1], 12) for i in range(5)]  # type: ignore[index]
    assert [len(seqs) for seqs in deaths] == [6, 6, 1, 1, 1]


async def test_one_culprit_that_comes_again_and_again_ends_no_server() -> None:
    """Idle but for it: no token comes in between, and each time it costs three restarts."""
    made = fake()
    made.failures.append(Failure("die", token=77, times=10**6))
    async with engine(made, restart_pause=0.0) as core:
        for _ in range(2 * MAX_FRUITLESS_RESTARTS // 3):
            with pytest.raises(BrokeExecutor):
                await run(core, request([77], 5))
        assert (await run(core, request([1], 5)))[0] == expected_tokens([1], 5)


@in_virtual_time
async def test_a_restart_that_hangs_is_cut_at_the_end_of_the_time_for_it() -> None:
    """Heartbeats may go on meanwhile: nothing but this clock would ever end it."""
    made = fake()
    made.failures.append(Failure("die", step=2))
    async with engine(made, recovery_timeout=0.2) as core:
        works, cut = made.begin_epoch, list[int]()

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            if epoch == 1:
                return await works(epoch, adopt)
            try:
                await asyncio.Event().wait()
            finally:
                cut.append(epoch)

        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        async with asyncio.timeout(5):
            with pytest.raises(ExecutorFailed, match=r"load had not ended after 1 s") as caught:
                await run(core, request([1], 20))
        assert core.failed.is_set() and cut == [2]
        assert not caught.value.repeats, "elsewhere it may well be served"
