"""Limits of a step that are not set: a device's own, from the executor to the engine and to the process's next life."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.policies.budget import LatencyBudget
from executors.contract import BATCH_LIMITS
from executors.devices import DEVICES, GPU
from executors.llm.assembly.device_sizing import GRAPH_BYTES, graph_bytes
from executors.llm.device.cpu import CpuDevice
from executors.llm.device.table import class_of
from executors.llm.executor import LlmExecutor
from executors.llm.tools.describe import describe
from executors.process.client import RemoteExecutor
from server.commands import info
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import GREEDY, Driver, config, start
from tests.gpu.device_fakes import Factory, FakeDevice, FakeDeviceExecutor

SMALL = {
    **QWEN3,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


class BusyDevice(FakeDevice):
    """Has limits of its own."""

    batch_limits = (24, 96)


class BusyExecutor(FakeDeviceExecutor):
    """Computes on such a device."""

    async def warmup(self) -> None:
        self.device = self.device or BusyDevice()
        await super().warmup()


class BusyFactory(Factory):
    """Named in `ExecutorConfig.executor` for the child process."""

    def executor_class(self) -> type[LlmExecutor]:
        return BusyExecutor


def unset(path: Path):
    """A configuration that names no limits."""
    return replace(config(path, max_num_seqs=2, max_num_batched_tokens=8), default_limits=BATCH_LIMITS)


async def test_executor_graphs_and_engine_take_the_devices_limits(tmp_path: Path) -> None:
    executor = BusyExecutor.from_config(unset(write_checkpoint(tmp_path, SMALL)))
    core = EngineCore(executor, EngineConfig())
    await core.start()
    limits = executor.capabilities()
    assert (limits.max_batch_size, limits.max_batched_tokens) == (24, 96)
    assert any(
        "24 sequences (max_num_seqs: default) and 96 tokens" in note for note in executor.status().notes
    )
    graphs = executor.launched.graphs
    assert graphs is not None
    assert max(shape.items for shape in graphs.shapes if not shape.listed) == 24
    assert max(shape.tokens for shape in graphs.shapes if shape.listed) == 64 + 8, (
        "the largest that 96 tokens fill"
    )
    scheduler = core._scheduler
    assert scheduler is not None
    assert scheduler.sequences.num_slots == 24 and scheduler.step_budget.most == 96
    await core.stop()


async def test_a_step_of_more_sequences_than_the_configuration_names_is_computed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, SMALL)
    executor = BusyExecutor.from_config(unset(path))
    await executor.warmup()
    await executor.begin_epoch(1)
    driver, plain = Driver(executor), Driver(await start(path))
    prompts = [[n + 1, n + 2, n + 3, n + 4] for n in range(16)]
    found, wanted = [
        await one.generate([one.add(prompt, GREEDY) for prompt in prompts], 3) for one in (driver, plain)
    ]
    assert found == wanted
    await executor.shutdown()


@pytest.mark.long
async def test_the_next_life_of_a_process_has_the_same_limits(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, SMALL)
    executor = RemoteExecutor(replace(unset(path), executor="tests.gpu.test_default_limits:BusyFactory"))
    await executor.warmup()
    assert (executor.config.max_num_seqs, executor.config.max_num_batched_tokens) == (24, 96)
    assert executor.config.default_limits == ()
    await executor.shutdown()


def test_a_description_names_the_limits_that_a_start_would_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path, SMALL)
    assert describe(unset(path))["limits"] == "", "a host's follow its threads"
    monkeypatch.setattr(CpuDevice, "batch_limits", (24, 96))
    facts = describe(unset(path))
    assert (facts["max_num_seqs"], facts["max_num_batched_tokens"]) == (24, 96)
    assert facts["limits"].startswith("steps: at most 24 sequences (max_num_seqs: default) and 96 tokens")
    assert ("steps", facts["limits"].removeprefix("steps: ")) in info._memory_lines(facts)
    fewer = describe(replace(unset(path), max_num_seqs=5, default_limits=BATCH_LIMITS[1:]))
    assert (fewer["max_num_seqs"], fewer["max_num_batched_tokens"]) == (5, 96)


def test_a_gpu_has_the_limits_that_the_settings_name() -> None:
    device = class_of(GPU)(torch.device(GPU))
    assert device.batch_limits == DEVICES[GPU].batch_limits == (256, 8192)


def test_memory_of_graphs_follows_the_limits() -> None:
    """35 shapes of decodes up to 256 rows, 12 of up to 2,048 tokens: larger steps compute longer than their launches take."""
    largest = replace(unset(Path("model")), max_num_seqs=256, max_num_batched_tokens=8192)
    assert graph_bytes(largest) == 47 * GRAPH_BYTES
    assert graph_bytes(replace(largest, max_num_seqs=64, max_num_batched_tokens=2048)) == 23 * GRAPH_BYTES


def test_streams_bear_no_larger_chunks_than_before() -> None:
    """The limit of a step decides only while nothing decodes. Beside streams the policy sizes a chunk by what it takes."""
    budget = LatencyBudget()
    assert budget.prompt_tokens(4, 8192) == budget.prompt_tokens(4, 2048) == 128, "nothing is measured yet"
    budget.observe(4, 0, 0.001)
    budget.observe(0, 8192, 0.048)
    assert (
        budget.prompt_tokens(4, 8192) == budget.prompt_tokens(4, 2048) == 128 == int(0.00075 / (0.048 / 8192))
    )
    assert budget.prompt_tokens(0, 8192) == 8192
