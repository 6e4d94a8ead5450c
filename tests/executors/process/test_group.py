"""Ranks live and die together: one call for all, one answer, one verdict."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.contract import ConfigError, ExecutorDied, ParallelConfig, StepFailed, replace
from executors.process import connect
from executors.process.client import RemoteExecutor
from executors.process.watch import Limits
from tests.executors.process import stub
from tests.executors.process.helpers import QUICK, SHORT, CountedExecutor, config, log_of, state_of, step

pytestmark = pytest.mark.long

Make = Callable[..., CountedExecutor]


@pytest.fixture
async def ranks() -> AsyncIterator[Make]:
    """Makes executors of two ranks; `rank`: which of them misbehaves."""
    made: list[CountedExecutor] = []

    def make(limits: Limits | None = None, **options: Any) -> CountedExecutor:
        parallel = ParallelConfig(2)
        of_two = replace(config(**options), parallel=parallel, executor_type=parallel.executor_type)
        made.append(CountedExecutor(of_two, limits=limits))
        return made[-1]

    yield make
    for executor in made:
        await executor.shutdown()


def titles(executor: RemoteExecutor) -> list[str]:
    """As ps shows them."""
    return [Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0") for pid in executor.pids]


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("cohort-ranks-*"))


async def died(executor: RemoteExecutor, *tokens: int) -> ExecutorDied:
    with pytest.raises(ExecutorDied) as caught:
        await executor.unified_decode(step(*tokens))
    return caught.value


async def test_all_ranks_get_every_call_and_the_first_one_answers(ranks: Make) -> None:
    executor = ranks(QUICK)
    await executor.warmup()
    assert len(executor.pids) == 2 and executor.pid == executor.pids[0]
    assert titles(executor) == ["cohort: executor rank 0", "cohort: executor rank 1"]
    await executor.begin_epoch(1)
    outputs = await asyncio.gather(*(executor.unified_decode(step(i, epoch=1)) for i in (3, 7)))
    assert [one.token_ids.tolist() for one in outputs] == [[4], [8]]
    executor.release_cache(5)
    executor.release_memory(1, np.array([1, 2], np.int32))
    assert (await executor.unified_decode(step(1, epoch=1, step_id=9))).token_ids.tolist() == [2]
    assert await log_of(executor) == "epoch1 step0 step0 release5 memory1[1,2] step9"


@pytest.mark.long(every=3)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("number", "cause"), [(signal.SIGKILL, "signal"), (signal.SIGSTOP, "hang")])
async def test_the_death_of_one_rank_is_the_death_of_all(
    ranks: Make, rank: int, number: signal.Signals, cause: str
) -> None:
    executor = ranks(SHORT)
    await executor.warmup()
    before = executor.pids
    call = asyncio.ensure_future(died(executor, stub.SLEEP))
    await asyncio.sleep(0.05)
    os.kill(before[rank], number)
    death = await call
    assert death.cause == cause and death.from_outside and str(death).startswith(f"rank {rank}: ")
    await executor.begin_epoch(2)
    assert not set(before) & set(executor.pids) and [state_of(pid) for pid in before] == [None, None]
    assert executor.restarts == {cause: 1}
    assert (await executor.unified_decode(step(5, epoch=2))).token_ids.tolist() == [6]


async def test_a_failure_of_all_ranks_is_a_failed_step(ranks: Make) -> None:
    executor = ranks()
    await executor.warmup()
    with pytest.raises(StepFailed, match="asked for"):
        await executor.unified_decode(step(stub.STEP_FAILED))
    await executor.begin_epoch(2)
    assert (await executor.unified_decode(step(5, epoch=2))).token_ids.tolist() == [6]
    assert not executor.restarts


async def test_a_cancelled_caller_changes_nothing(ranks: Make) -> None:
    executor = ranks()
    await executor.warmup()
    call = asyncio.ensure_future(executor.unified_decode(step(stub.COMPILE)))
    await asyncio.sleep(0.1)
    call.cancel()
    assert (await executor.unified_decode(step(5))).token_ids.tolist() == [6]
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not executor.restarts


@pytest.mark.long(every=2)
@pytest.mark.parametrize("rank", [0, 1])
async def test_ranks_that_disagree_are_ended(ranks: Make, rank: int) -> None:
    executor = ranks(rank=rank)
    await executor.warmup()
    death = await died(executor, stub.STEP_FAILED)
    assert "the ranks answered differently" in str(death) and f"rank {rank}: step_failed asked for" in str(
        death
    )


async def test_a_rank_that_fails_while_the_others_wait_ends_all(ranks: Make) -> None:
    """As one without memory in the middle of a forward, while the other waits for its part of a sum."""
    executor = ranks(replace(SHORT, slow_call_s=60.0, step_floor_s=60.0), rank=1, others="wait")
    await executor.warmup()
    death = await died(executor, stub.NO_MEMORY)
    assert death.cause == "exit" and "rank 1 failed alone: asked for" in str(death)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_cannot_load_says_why(ranks: Make, rank: int) -> None:
    executor = ranks(load="config", rank=rank)
    with pytest.raises(ConfigError, match="model: no such folder"):
        await executor.warmup()
    await executor.wait_dead()


async def test_shutdown_ends_all(ranks: Make) -> None:
    executor = ranks()
    await executor.warmup()
    before, found = executor.pids, folders()
    await executor.shutdown()
    assert found - folders(), "the folder in which they met is gone"
    assert [state_of(pid) for pid in before] == [None, None]
    assert not executor.restarts


def test_several_ranks_are_processes() -> None:
    parallel = ParallelConfig(2)
    with pytest.raises(ConfigError, match="several ranks need a process each"):
        connect(replace(config(), parallel=parallel, executor_type=parallel.executor_type), "inline")
