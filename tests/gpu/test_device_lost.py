"""A device that is lost to its process, wherever that shows first: the process ends, or says that only another one can go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ExecutorFailed
from engine.request import Stage
from executors.contract import DeviceLost, ExecutorDied, ExecutorState
from executors.llm.step import pending_steps
from executors.llm.step.launched.graphs import MISSES
from executors.process.inline import InlineExecutor
from executors.process.worker import Worker
from tests.engine import harness
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, LateEvent
from tests.gpu.workloads import SMALL

pytestmark = pytest.mark.long
ILLEGAL = "CUDA error: an illegal memory access was encountered"
HIDING = "CUDA error: operation failed due to a previous error during capture"
REFUSED = "CUDA error: operation not permitted when stream is capturing"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def faked(path: Path) -> FakeDeviceExecutor:
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = FakeDevice()
    await executor.warmup()
    executor._idle.stop()
    await executor.begin_epoch(1)
    return executor


def lose(executor: FakeDeviceExecutor) -> None:
    device = executor.device
    assert isinstance(device, FakeDevice)
    device.broken, device.lost = HIDING, ILLEGAL


async def test_a_capture_that_meets_the_loss_at_rest_reports_it(path: Path) -> None:
    executor = await faked(path)
    deaths: list[ExecutorDied] = []
    executor.set_death_listener(deaths.append)
    lose(executor)
    executor._idle._piece()
    assert [str(death) for death in deaths] == [f"AcceleratorError: {ILLEGAL}"]
    assert executor.status().state is ExecutorState.ERROR and not executor.status().is_ready
    driver = Driver(executor)
    seq = driver.add([1, 2, 3])
    with pytest.raises(ExecutorDied, match="illegal"):
        await driver.step([(seq, seq.tokens, True, 0)])
    await asyncio.wait_for(executor.shutdown(), 5)


async def test_a_capture_between_two_steps_that_meets_the_loss_fails_its_step(path: Path) -> None:
    """It is no reason to launch kernels one by one."""
    executor = await faked(path)
    graphs = executor.launched.graphs
    assert graphs is not None
    driver = Driver(executor)
    seqs = [driver.add([i]) for i in range(11)]
    for _ in range(MISSES):
        await driver.step([(one, one.tokens[one.computed :], True, 0) for one in seqs])
    lose(executor)
    for _ in range(2):  # and those after it
        with pytest.raises(ExecutorDied, match="illegal"):
            await driver.step([(one, one.tokens[one.computed :], True, 0) for one in seqs])
    assert not graphs.failure


async def test_a_capture_that_is_refused_is_no_loss(path: Path) -> None:
    executor = await faked(path)
    executor.device.broken = REFUSED  # type: ignore[union-attr]
    executor._idle._piece()
    assert (
        executor.status().is_ready
        and "no more: RuntimeError: CUDA error: operation not permitted" in " ".join(executor.status().notes)
    )


async def test_the_worker_hears_of_a_loss_at_rest_and_in_a_snapshot(path: Path) -> None:
    """From the executor's report, and from the thread of the heartbeat, which asks the device for its memory's figures."""
    reasons: list[str] = []
    worker = Worker(lambda message: None, lambda message: None, reasons.append)
    assert await worker.load(config(path, executor="tests.gpu.device_fakes:Factory"))
    executor: Any = worker._executor
    executor._idle.stop()
    worker.beat()
    assert not reasons
    lose(executor)
    executor._idle._piece()
    assert reasons == [f"AcceleratorError: {ILLEGAL}"]

    class Memory:
        def usage(self) -> None:
            raise torch.AcceleratorError(ILLEGAL)

    executor.device.memory = Memory()
    worker.beat()
    assert reasons[1:] == [f"AcceleratorError: {ILLEGAL}"]


@pytest.mark.parametrize("where", ["step", "rest"])
async def test_inline_it_says_that_another_process_is_needed(path: Path, where: str) -> None:
    """At once: trying again for two minutes in the process that lost its device would be in vain."""
    inner = FakeDeviceExecutor.from_config(config(path))
    inner.device = FakeDevice()
    executor = InlineExecutor(inner.config, inner)
    async with harness.engine(executor, recovery_timeout=60.0) as core:  # type: ignore[arg-type]
        await harness.run(core, harness.request([1, 2], 3))
        inner._idle.stop()
        lose(inner)
        if where == "step":
            inner.launched.program.forward = lambda *_: inner.device.check()  # type: ignore[method-assign, assignment]
            inner.launched.captures.graphs = None
            work = harness.run(core, harness.request([3], 5))
            with pytest.raises(ExecutorFailed, match="--executor-mode process"):
                await asyncio.wait_for(work, 10)
        else:
            inner._idle._piece()
            async with asyncio.timeout(10):
                while core.stage is not Stage.FAILED:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert "--executor-mode process" in core._health.detail
    with pytest.raises(DeviceLost, match="--executor-mode process"):
        await inner.begin_epoch(9)


async def test_a_step_that_never_ends_loses_the_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for its queue would wait for ever: shutting down and beginning an epoch do not."""
    executor = await faked(path)
    monkeypatch.setattr(pending_steps, "PATIENCE_S", 0.05)
    monkeypatch.setattr("executors.llm.executor.patience", lambda pace, batch: 0.0)
    executor._ready().pace = object()  # type: ignore[assignment]
    monkeypatch.setattr(LateEvent, "query", lambda event: False)
    driver = Driver(executor)
    seq = driver.add([1, 2, 3])
    with pytest.raises(ExecutorDied, match="longer than its deadline"):
        await driver.step([(seq, seq.tokens, True, 0)])
    with pytest.raises(DeviceLost):
        await asyncio.wait_for(executor.begin_epoch(2), 5)
    await asyncio.wait_for(executor.shutdown(), 5)
