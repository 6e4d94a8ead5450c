"""A restarted child gets the KV pool of the one before it, whatever the box would allow by then."""

from __future__ import annotations

import os
import signal

import pytest

from executors.contract import DeviceChecks, ExecutorConfig, Pace
from executors.process.client import RemoteExecutor
from tests.executors.process.helpers import Make


@pytest.mark.parametrize("span", [0, 4])
async def test_the_next_life_has_the_same_number_of_blocks(span: int) -> None:
    remote = RemoteExecutor(ExecutorConfig("paged_fake", options={"blocks_per_span": span}))
    await remote.warmup()
    try:
        first = remote.kv_layout()
        assert remote.config.memory.kv_cache_memory_bytes == first.num_bytes
        # Its memory is taken as that of the first, although the number of blocks is now a given one.
        assert remote.config.memory.kv_on_demand is (span > 0)
        assert remote.config.max_model_len == remote.info().max_model_len
        assert remote.pid is not None
        os.kill(remote.pid, signal.SIGKILL)
        await remote.wait_dead()
        await remote.begin_epoch(2)
        assert remote.kv_layout() == first
    finally:
        await remote.shutdown()


async def test_the_next_life_is_told_the_pace_that_the_first_has_measured(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    assert executor.config.pace == executor.pace() == Pace(0.25, ((1, 0.5), (8, 1.5)))
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGKILL)
    await executor.wait_dead()
    await executor.begin_epoch(2)
    snapshot = executor.cache_metrics_snapshot()
    assert snapshot is not None and snapshot["told_pace"] == 0.25


@pytest.mark.parametrize(
    ("cause", "believed"), [("signal", True), ("hang", False), ("device", False), ("load", False)]
)
async def test_what_the_first_life_has_checked_is_believed_unless_it_lost_its_device(
    cause: str, believed: bool, remote: Make
) -> None:
    executor = remote()
    await executor.warmup()
    assert executor.config.checks == executor.device_checks() == DeviceChecks("here", ("one",))
    assert executor._life is not None
    executor._life.kill(cause, "of whatever")  # type: ignore[union-attr]
    await executor.wait_dead()
    assert (executor.config.checks is not None) is believed
    await executor.begin_epoch(2)
    snapshot = executor.cache_metrics_snapshot()
    assert snapshot is not None and ("told_checks" in snapshot) is believed
    assert executor.config.checks == executor.device_checks()
