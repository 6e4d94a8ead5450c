"""A worker whose executor takes a step while it computes another: begun and answered in the order of the messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from executors.contract import (
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ModelExecutor,
    StepFailed,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.process import messages as m
from executors.process.inline import InlineExecutor
from executors.process.worker import Worker
from tests.executors.process import stub
from tests.executors.process.helpers import step


class Overlapping(stub.Stub):
    """A step is begun at once and ends when its entry of `ends` does, whichever that is first."""

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self.ends = [asyncio.Event() for _ in range(4)]
        self.raises: dict[int, Exception] = {}

    def capabilities(self) -> ExecutorCapabilities:
        return replace(super().capabilities(), max_in_flight=2)

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self.log.append(f"step{batch.step_id}")
        await self.ends[batch.step_id].wait()
        self.log.append(f"end{batch.step_id}")
        if error := self.raises.get(batch.step_id):
            raise error
        return UnifiedOutput(np.ones(len(batch), np.int32), batch.token_ids + 1)


class Factory(stub.Factory):
    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        return Overlapping(config)


CONFIG = ExecutorConfig(f"{__name__}:Factory")


async def loaded() -> tuple[Worker, Overlapping, list[m.ToServer]]:
    sent: list[m.ToServer] = []
    worker = Worker(sent.append, sent.append)
    assert await worker.load(CONFIG)
    sent.clear()
    assert isinstance(worker._executor, Overlapping)
    return worker, worker._executor, sent


def answers(sent: list[m.ToServer]) -> list[tuple[int, str]]:
    """(call, kind) of all that is no heartbeat."""
    return [
        (one.call, one.kind if isinstance(one, m.Failed) else type(one).__name__)
        for one in sent
        if isinstance(one, m.StepDone | m.Failed | m.EpochBegun | m.PrefillDone)
    ]


def message(call: int, step_id: int) -> m.Step:
    return m.pack_batch(call, step(5, step_id=step_id))


async def test_begun_and_answered_in_order_whichever_ends_first() -> None:
    worker, executor, sent = await loaded()
    assert await worker.handle(message(1, 0)) and await worker.handle(message(2, 1))
    assert executor.log == ["step0", "step1"] and answers(sent) == []
    assert await worker.handle(m.Release(7))
    assert executor.log[2:] == ["release7"], "between those begun and those to come"
    worker.beat()
    assert isinstance(sent[-1], m.Heartbeat) and sent[-1].running_s is not None
    executor.ends[1].set()
    await asyncio.sleep(0.01)
    assert executor.log[3:] == ["end1"] and answers(sent) == []
    # What is no step waits for those before it.
    other = asyncio.create_task(worker.handle(m.BeginEpoch(3, 2)))
    await asyncio.sleep(0.01)
    assert "epoch2" not in executor.log
    executor.ends[0].set()
    assert await other
    assert answers(sent) == [(1, "StepDone"), (2, "StepDone"), (3, "EpochBegun")]
    worker.beat()
    assert isinstance(sent[-1], m.Heartbeat) and sent[-1].running_s is None


async def test_what_is_behind_a_failed_step_is_skipped_though_it_was_begun() -> None:
    worker, executor, sent = await loaded()
    executor.raises[0] = StepFailed("asked for")
    for call in (1, 2):
        await worker.handle(message(call, call - 1))
    executor.ends[0].set()
    await asyncio.sleep(0.01)
    executor.ends[1].set()
    assert await worker.handle(m.BeginEpoch(3, 2))
    executor.ends[2].set()
    await worker.handle(message(4, 2))
    await worker.handle(m.BeginEpoch(5, 3))
    assert answers(sent) == [
        (1, "step_failed"),
        (2, "skipped"),
        (3, "EpochBegun"),
        (4, "StepDone"),
        (5, "EpochBegun"),
    ]


async def test_an_executor_that_gives_up_ends_its_process_with_the_next_message() -> None:
    worker, executor, sent = await loaded()
    executor.raises[0] = ExecutorDied("gave up")
    for event in executor.ends:
        event.set()
    await worker.handle(message(1, 0))
    await asyncio.sleep(0.01)
    assert not await worker.handle(m.BeginEpoch(2, 2))
    assert [kind for _, kind in answers(sent)] == ["executor_died"]


async def test_shutdown_waits_for_steps_out() -> None:
    worker, executor, sent = await loaded()
    await worker.handle(message(1, 0))
    ending = asyncio.create_task(worker.shutdown())
    await asyncio.sleep(0.01)
    assert not ending.done()
    executor.ends[0].set()
    await ending
    assert answers(sent) == [(1, "StepDone")]


async def test_inline_begins_them_in_order_too() -> None:
    inner = Overlapping(CONFIG)
    executor = InlineExecutor(CONFIG, inner)
    await executor.warmup()
    first, second = (
        asyncio.create_task(executor.unified_decode(step(5, step_id=number))) for number in (0, 1)
    )
    await asyncio.sleep(0)
    executor.release_cache(7)
    epoch = asyncio.create_task(executor.begin_epoch(2))
    assert executor._thread is not None
    loop = executor._thread._loop

    async def until(entry: str) -> None:
        async with asyncio.timeout(10):
            while entry not in inner.log:  # noqa: ASYNC110 - on another thread
                await asyncio.sleep(0.005)

    await until("release7")
    loop.call_soon_threadsafe(inner.ends[1].set)
    await until("end1")
    assert not first.done() and "epoch2" not in inner.log
    loop.call_soon_threadsafe(inner.ends[0].set)
    await asyncio.gather(first, second, epoch)
    assert inner.log == ["step0", "step1", "release7", "end1", "end0", "epoch2"]
    # Whoever is abandoned in the middle of a step says so.
    stuck = asyncio.create_task(executor.unified_decode(step(5, step_id=2)))
    await until("step2")
    executor._shutdown_s = 0.05
    await executor.shutdown()
    (found,) = await asyncio.gather(stuck, return_exceptions=True)
    assert "shut down" in str(found)


async def test_what_cannot_be_read_is_refused_in_its_turn() -> None:
    worker, executor, sent = await loaded()
    assert await worker.handle(message(1, 0))
    refusal = asyncio.create_task(worker.handle(m.Unreadable(2, "a field of a wrong type")))
    await asyncio.sleep(0.01)
    assert answers(sent) == []
    executor.ends[0].set()
    assert await refusal
    assert answers(sent) == [(1, "StepDone"), (2, "invalid_input")]
