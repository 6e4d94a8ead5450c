"""Names of a step's parts for profilers: which there are, how they nest, and that nothing is named unless it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.contract import ConfigError
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.device.cpu import CpuDevice
from executors.llm.device.cuda import CudaDevice
from executors.llm.device.ranges import no_ranges
from executors.llm.factory import LlmFactory
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import GREEDY, Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, PagedTorch


class NamingDevice(FakeDevice):
    """Writes down the ranges that begin, each behind those that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._open: list[str] = []

    @contextlib.contextmanager
    def range(self, name: str, number: int | None = None) -> Iterator[None]:
        self._open.append(name if number is None else f"{name} {number}")
        self.names.append(" / ".join(self._open))
        yield
        self._open.pop()


async def names_of(
    path: Path, order: tuple[str, ...], tokens: int, graphs: bool, **options: Any
) -> list[str]:
    """The ranges of one step with a prompt, or of a decode step after it."""
    backend = PagedTorch.name if order else "triton"
    made = config(
        path,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        attention=ExecutorAttentionConfig(16, "auto" if order else backend),
    )
    made = replace(made, options=options, optimization=replace(made.optimization, enforce_eager=not graphs))
    executor = FakeDeviceExecutor.from_config(made)
    executor.order, executor.device = order, (device := NamingDevice())
    await executor.warmup()
    await executor.begin_epoch(1)
    executor._idle.stop()
    driver = Driver(executor)
    sequence = driver.add(list(range(1, tokens + 1)), GREEDY)
    device.names.clear()
    await driver.generate([sequence], 1)
    found = list(device.names)
    await executor.shutdown()
    return found


LAYERS = ["forward / layer 0", "forward / layer 1"]


async def test_phases_and_layers_of_a_step_that_is_launched_one_by_one(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, {**QWEN3, "num_hidden_layers": 2})
    found = await names_of(path, (PagedTorch.name,), 9, graphs=False, profile_ranges=True)
    assert found == ["copy in", "forward", *LAYERS, "sample", "copy out"]


@pytest.mark.long
async def test_each_graph_of_a_step_is_one_range(tmp_path: Path) -> None:
    """What is within is named again by the graph that is played, which calls what was captured."""
    path = write_checkpoint(tmp_path, {**QWEN3, "num_hidden_layers": 2})
    found = await names_of(path, (PagedTorch.name,), 1, graphs=True, profile_ranges=True)
    assert [name for name in found if "/" not in name] == ["copy in", "replay", "replay", "copy out"]


async def test_nothing_is_named_without_the_option(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, {**QWEN3, "num_hidden_layers": 1})
    assert await names_of(path, (PagedTorch.name,), 9, graphs=False) == []
    assert no_ranges("layer", 3) is no_ranges("sample"), "one context for all: nothing is made"


@pytest.mark.interpreted
@pytest.mark.long(every=2)
@pytest.mark.parametrize("tokens", [1, 20])
async def test_parts_of_a_layer_of_the_fused_forward(tokens: int, tmp_path: Path) -> None:
    """Steps of few tokens, and others."""
    path = write_checkpoint(tmp_path, {**QWEN3, "num_hidden_layers": 2})
    found = await names_of(path, (), tokens, graphs=False, profile_ranges=True)
    parts = [f"{layer}{part}" for layer in LAYERS for part in ("", " / attention", " / feed-forward")]
    assert found == ["copy in", "forward", *parts, "sample", "copy out"]


def test_torchs_profiler_shows_them() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with CpuDevice(torch.device("cpu")).range("layer", 3):
            torch.ones(2) + 1
    assert "layer 3" in {event.key for event in profile.key_averages()}


def test_a_gpu_names_them_for_nsight_too(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range", lambda name: names.append(name) or contextlib.nullcontext())
    with CudaDevice(torch.device("cuda")).range("layer", 3), CudaDevice(torch.device("cuda")).range("sample"):
        pass
    assert names == ["layer 3", "sample"]


def test_the_option_is_a_switch(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, QWEN3)
    LlmFactory().validate_config(config(path, options={"profile_ranges": True}))
    with pytest.raises(ConfigError, match="option profile_ranges: 2 is not true or false"):
        LlmFactory().validate_config(config(path, options={"profile_ranges": 2}))
    with pytest.raises(
        ConfigError, match="option 'profile' is unknown; llm has no options but profile_ranges"
    ):
        LlmFactory().validate_config(config(path, options={"profile": True}))
