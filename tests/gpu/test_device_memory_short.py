"""A device whose memory another process takes: steps are tried again with an empty cache, then cut, and texts stay equal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.process.inline import InlineExecutor
from tests.engine import harness
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.devices import Device, Once
from tests.executors.llm.driver import Driver, config, start
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.workloads import PLAIN, SHAPED, SMALL

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def faked(path: Path, **changes: Any) -> FakeDeviceExecutor:
    executor = FakeDeviceExecutor.from_config(config(path, **changes))
    executor.memory = Device()
    executor.device = FakeDevice(captures=False)  # what is replayed allocates nothing
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


async def test_a_long_tail_that_finds_no_memory_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that changes more entries of block tables than the reserved input has room for takes memory of its own."""
    # The largest shape has room for pieces of keys that this step does not need.
    monkeypatch.setattr("executors.llm.step.launched.queueing._CHANGES", -100)
    sizes = {"max_num_seqs": 2, "max_num_batched_tokens": 16}
    executor = await faked(path, **sizes)
    launched, memory = executor.launched, executor.memory
    emptied, once = memory.emptied, Once(launched.queue._room, 1)
    monkeypatch.setattr(launched.queue, "_room", once)
    found = []
    for one in (executor, await start(path, **sizes)):
        driver = Driver(one)
        driver.slots = [1, 0]
        for layer in one._ready().runner.cache.layers:
            layer.zero_()  # what the trials of a start have written
        seq = driver.add(list(range(200)) * 2)
        seq.computed = 399  # a hundred blocks that are cached already
        await driver.step([(seq, seq.tokens[399:], True, 0)])
        found.append(seq.tokens[400:])
    assert found[0] == found[1]
    assert once.calls == 2 and memory.emptied == emptied + 1


class Neighbour:
    """Has taken so much that steps of more than `most` tokens find no memory, however often they are tried."""

    def __init__(self, executor: FakeDeviceExecutor, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, self.refused = most, 0
        forward = executor.launched.program.forward

        def tight(step: Any, *more: Any) -> None:
            if step.shape.tokens > self.most:
                self.refused += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full")
            forward(step, *more)

        monkeypatch.setattr(executor.launched.program, "forward", tight)


@pytest.mark.parametrize("out", [1, 2])
async def test_steps_are_cut_and_texts_stay_equal(
    path: Path, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = await faked(path)
    neighbour = Neighbour(inner, 12, monkeypatch)
    asked = [
        harness.request([number] * (1 + 5 * number), 9, (*SHAPED, *PLAIN)[number]) for number in range(9)
    ]
    found = []
    for one in (inner, await start(path)):
        executor = InlineExecutor(one.config, one)
        options = {"max_in_flight": out, "max_num_batched_tokens": 48}
        async with harness.engine(executor, **options) as core:  # type: ignore[arg-type]
            found.append(await asyncio.gather(*(harness.run(core, request) for request in asked)))
            stats = core.stats()
        if one is inner:
            assert stats.steps_cut > 0 and stats.resumed == 0
    assert found[0] == found[1]
    assert neighbour.refused >= 2 * stats.steps_cut, "each was tried again with an empty cache"
    assert inner.memory.emptied > 0
