"""What has to be there before the first step comes, and what a failure at that time must not leave behind."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract.errors import ConfigError
from executors.llm.checkpoint import loader
from executors.llm.device.cuda import CudaSteps
from executors.llm.device.table import find_device
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.sampling import draw
from executors.llm.sampling.sampler import SamplingRows, sample
from executors.llm.step.launched.graphs import AT_START, decode_shapes
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.program import DeviceProgram
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.workloads import SMALL


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), {**SMALL, "num_hidden_layers": 1})


async def test_all_kernels_are_compiled_before_the_first_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeDeviceExecutor.from_config(config(path, max_num_seqs=4))
    device = executor.device = FakeDevice()
    device.compiles = True
    forward, ran = DeviceProgram.forward, list[StepShape]()

    def noted(self: DeviceProgram, step: Any, attend: Any, blocks: int) -> None:
        if not device.log:
            ran.append(step.shape)
        forward(self, step, attend, blocks)

    monkeypatch.setattr(DeviceProgram, "forward", noted)
    monkeypatch.setattr("executors.llm.step.idle.QUIET_S", 3600)
    stages: list[tuple[str, int, int]] = []
    executor.set_progress(lambda *stage: stages.append(stage))
    await executor.warmup()
    graphs = executor.launched.graphs
    assert graphs is not None and len(graphs._graphs) == AT_START and not graphs.failure
    samplers = {shape.samples for shape in graphs._graphs}
    assert len(device.graphs) == AT_START + len(samplers), (
        "shapes with as many samples share a sampler's graph"
    )
    assert set(ran) >= set(graphs.shapes)
    assert [replace(shape, pieces=0) for shape in graphs.shapes if not shape.listed] == decode_shapes(4)
    assert {shape.listed for shape in ran if shape not in graphs.shapes} == {False, True}
    assert all(shape.tiles and shape.decodes for shape in ran if shape.listed)
    assert all(shape.pieces >= shape.decodes for shape in ran)
    own = [stage for stage in stages if stage[0] == "kernels"]
    assert own[0][1] == 0 and own[-1][1] == own[-1][2] >= len(own) - 1, "a stage stood open"
    assert not executor.unified.states.pool[:-1].any(), "padding gave tokens to somebody"
    assert not any(layer.any() for layer in executor._ready().runner.cache.layers)


async def test_no_memory_for_kernels_of_large_steps_does_not_end_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = FakeDeviceExecutor.from_config(config(path, max_num_seqs=2))
    executor.device = FakeDevice()
    executor.device.compiles = True
    forward = DeviceProgram.forward

    def tight(self: DeviceProgram, step: Any, attend: Any, blocks: int) -> None:
        if step.shape.tokens > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        forward(self, step, attend, blocks)

    monkeypatch.setattr(DeviceProgram, "forward", tight)
    monkeypatch.setattr("executors.llm.step.idle.QUIET_S", 3600)
    await executor.warmup()
    await executor.begin_epoch(1)
    driver = Driver(executor)
    seq = driver.add([1, 2, 3])
    output = await driver.step([(seq, seq.tokens, True, 0)])
    assert len(output.token_ids) == 1 and "steps of 72 tokens" in caplog.text


def test_a_workspace_that_was_captured_is_nobody_elses() -> None:
    """A graph has its address and no reference."""
    pytest.importorskip("triton")
    spec = KvSpec(1, 2, 1, 16, torch.float32, torch.device("cpu"), 0.25, None, (None,))
    from executors.llm.attention.triton_attention import TritonAttention

    attention, cache = TritonAttention(spec), KvCache(spec, 4, 16)
    attention.reserve(100, 0, cache)
    meta: Any = SimpleNamespace(pieces=range(100), tile_pieces=())
    first = weakref.ref(attention.bind(meta, cache)._workspace)
    meta.pieces = range(200)
    second = attention.bind(meta, cache)._workspace
    gc.collect()
    assert first() is not None and first() is not second
    assert second.lse.numel() >= 200 * spec.num_heads and not second.arrived.any()


def test_a_capture_that_cannot_be_ended_leaves_no_other_stream_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch does not leave the stream where the end of the capture fails."""
    current, own = (
        SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None),
        SimpleNamespace(device=torch.device("cpu", 0)),
    )
    own.wait_stream = lambda other: None
    now = [current]

    @contextmanager
    def on(stream: Any) -> Any:
        before, now[0] = now[0], stream
        yield
        now[0] = before

    class Capture:
        def __init__(self, graph: Any, stream: Any, **_: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            now[0] = self.stream

        def __exit__(self, *_: object) -> None:
            if broken:
                raise RuntimeError("operation failed due to a previous error during capture")
            now[0] = current

    class Recorded:
        def replay(self) -> None:
            assert now == [current], "not where steps are queued"
            replays.append(self)

    replays = list[Any]()
    fakes = {
        "Stream": lambda device: own, "graph_pool_handle": lambda: (0, 1), "CUDAGraph": Recorded, "graph": Capture,
        "current_stream": lambda device=None: now[0], "stream": on, "set_stream": lambda stream: now.__setitem__(0, stream),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    ended = list[Any]()
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *given: ended.append(given), raising=False
    )
    device, streams = CudaSteps(torch.device("cpu")), list[Any]()
    broken = False
    device.reserve(4096)
    graph = device.capture(lambda: streams.append(now[0]))
    assert replays == [graph], "its first launch is a client's"
    assert streams == [own, own] and now == [current], "it is run where it is captured, then recorded"
    broken = True
    with pytest.raises(RuntimeError, match="previous error"):
        device.capture(lambda: None)
    assert now == [current]
    assert ended == [(0, (0, 1))]


def test_the_device_that_was_asked_for_is_the_threads_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taken(Exception):
        pass

    def take(device: torch.device) -> None:
        raise Taken(str(device))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", take)
    with pytest.raises(Taken, match="cuda:1"):
        loader.load_model(config(path, device="cuda:1"), lambda *_: None)
    with pytest.raises(ConfigError, match="there are 2 CUDA devices"):
        loader.load_model(config(path, device="cuda:2"), lambda *_: None)
    assert find_device("cuda").place.index is None


def test_the_hosts_sampler_draws_the_same_from_many_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does on a GPU."""
    rng = np.random.default_rng(5)
    n, width = 50, 1300
    logits = torch.from_numpy(rng.normal(0, 3, (n, width))).to(torch.float16)
    rows = SamplingRows(
        temperature=rng.choice([0.0, 0.5, 1.0], n), top_k=np.zeros(n, np.int64), top_p=rng.choice([1.0, 0.8], n),
        seed=rng.integers(0, 2**64, n, np.uint64), choice=np.zeros(n, np.uint64), logprobs=np.full(n, -1),
        min_p=np.zeros(n), typical_p=rng.choice([1.0, 0.7], n), positions=np.arange(n),
    )  # fmt: skip
    alone = sample(logits, rows).tokens
    monkeypatch.setattr(draw, "_DENSE_ROWS", draw._DEVICE_ROWS)
    assert sample(logits, rows).tokens.tolist() == alone.tolist()
