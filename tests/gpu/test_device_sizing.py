"""Sizing KV by steps that take the device's way: packed, launched, sampled there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.contract import OutOfMemory
from executors.contract.batch import SamplingParams
from executors.contract.config import ExecutorMemoryConfig
from executors.llm.step.launched.steps import LaunchedSteps
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.devices import Device, Once
from tests.executors.llm.driver import GREEDY, Driver, config, start
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor

SMALL = {
    **QWEN3,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
DRAWN = SamplingParams(temperature=0.8, seed=5)


class Sized(FakeDeviceExecutor):
    """Takes the CPU for a GPU with memory of its own, and counts what its runners computed on the device."""

    memory = Device()


async def test_the_largest_steps_run_as_steps_do_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path, SMALL)
    packed: list[tuple[int, int]] = []
    put = LaunchedSteps._put

    def watched(self: LaunchedSteps, batch: Any, *more: Any) -> Any:
        packed.append((len(batch), batch.total_q_tokens()))
        return put(self, batch, *more)

    monkeypatch.setattr(LaunchedSteps, "_put", watched)
    chosen = config(path, max_num_seqs=3, max_num_batched_tokens=16, max_model_len=32)
    executor = Sized.from_config(replace(chosen, memory=ExecutorMemoryConfig()))
    await executor.warmup()
    assert packed == 2 * [(3, 16), (3, 16), (3, 3), (3, 3), (1, 16)], (
        "once to measure, once with the pool; the others need the host"
    )
    assert executor.kv_layout().capacity_tokens == 3 * 32 and not len(executor.slot_table())
    await executor.begin_epoch(1)

    driver, plain = Driver(executor), Driver(await start(path))
    found, wanted = [
        await one.generate([one.add([5, 9, 100], GREEDY), one.add([1, 2], DRAWN)], 5)
        for one in (driver, plain)
    ]
    assert found == wanted
    await executor.shutdown()


async def test_a_launch_that_finds_no_memory_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path, SMALL)
    executor = Sized.from_config(config(path, max_num_seqs=3, max_num_batched_tokens=16, max_model_len=32))
    executor.memory = memory = Device()
    executor.device = FakeDevice(captures=False)  # what is replayed allocates nothing
    await executor.warmup()
    await executor.begin_epoch(1)
    program, emptied = executor.launched.program, memory.emptied
    once = Once(program.forward, 1)
    monkeypatch.setattr(program, "forward", once)
    driver, plain = Driver(executor), Driver(await start(path))
    long = list(range(1, 14))
    assert await driver.generate([driver.add(long, DRAWN)], 1) == await plain.generate(
        [plain.add(long, DRAWN)], 1
    )
    assert once.calls == 2 and memory.emptied == emptied + 1
    once.calls, once.failing = 0, 2
    with pytest.raises(OutOfMemory):
        await driver.generate([driver.add(long)], 1)
    await executor.shutdown()


async def test_a_start_tells_each_of_its_stages(tmp_path: Path) -> None:
    """From these reports the seconds of a restart are told by stage: one that is missing counts to the one before it."""
    path = write_checkpoint(tmp_path, SMALL)
    chosen = config(path, max_num_seqs=3, max_num_batched_tokens=16, max_model_len=32)
    executor = Sized.from_config(replace(chosen, load_format="dummy", memory=ExecutorMemoryConfig()))
    stages: list[str] = []
    executor.set_progress(lambda stage, done, total: stages.append(stage))
    await executor.warmup()
    in_order = [stage for stage, before in zip(stages, ["", *stages], strict=False) if stage != before]
    pool = ["KV cache", "checking kernels", "trying the largest steps"]
    assert in_order[:3] == ["opening the device", "dummy weights", "preparing the layers"]
    assert in_order[3:9] == 2 * pool, "once to measure, once with the pool"
    assert in_order[9] == "warmup" and in_order[-1] == "measuring the pace"
    await executor.shutdown()
