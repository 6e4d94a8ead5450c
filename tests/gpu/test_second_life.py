"""A second life on a device believes what the first has found right there, on that device and under those conditions only."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import executors.llm.assembly.parts as parts
from executors.contract.config import ExecutorConfig, OptimizationConfig
from executors.contract.status import DeviceChecks
from executors.kernels import triton_build
from executors.llm.device.cuda import CudaDevice
from executors.llm.executor import LlmExecutor
from executors.llm.fused import few_rows
from executors.llm.kernel_support import (
    fp8_support,
    kernel_check,
    kernel_choice,
    passed_checks,
    stored_support,
)
from executors.llm.kernel_support.kernel_choice import choose_adapters, choose_attention, fuse
from executors.llm.kernel_support.passed_checks import PassedChecks, conditions, name_of
from executors.llm.runtime import ExecutorRuntime
from executors.llm.sampling import triton_sampler
from executors.llm.step.launched.captures import StepCaptures
from executors.process.client import RemoteExecutor
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import Driver, config, start
from tests.gpu.attention_fakes import flash_3, pretend
from tests.gpu.second_life import NUMBER, CheckedTorch, NumberedDevice, NumberedExecutor
from tests.gpu.test_kernel_check import MODEL, decoder
from tests.gpu.workloads import PLAIN, SMALL

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
]  # each check of both kernels of prompts is interpreted
TRIAL, KERNELS, GRAPH, CHECK = "largest steps", "kernels", "graph", "check"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


def settings(path: Path, **changes: Any) -> ExecutorConfig:
    return config(path, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, **changes)


async def lived(
    given: ExecutorConfig, number: str | None, patch: pytest.MonkeyPatch
) -> tuple[Any, list[str]]:
    """A life of an executor on the device of that number, and what it has done before it was ready."""
    done: list[str] = []
    executor = NumberedExecutor.from_config(given)
    executor.device = NumberedDevice(number)
    with patch.context() as here:
        largest, small, compiled = (
            LlmExecutor._try_largest,
            ExecutorRuntime._run_small_steps,
            StepCaptures._compile,
        )
        before = CheckedTorch.checks
        here.setattr(LlmExecutor, "_try_largest", lambda *a: (done.append(TRIAL), largest(*a))[1])
        here.setattr(
            ExecutorRuntime, "_run_small_steps", lambda *a: (done.append("small steps"), small(*a))[1]
        )
        here.setattr(StepCaptures, "_compile", lambda *a: (done.append(KERNELS), compiled(*a))[1])
        await executor.warmup()
    executor._idle.stop()
    done += [CHECK] * (CheckedTorch.checks - before) + [GRAPH] * len(executor.device.graphs)
    return executor, sorted(set(done))


def next_config(executor: Any) -> ExecutorConfig:
    """What the server gives the next life."""
    return replace(executor.config, pace=executor.pace(), checks=executor.device_checks())


ALL = sorted([CHECK, GRAPH, KERNELS, TRIAL, "small steps"])


async def test_a_second_life_captures_graphs_and_does_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, done = await lived(settings(path), "1", monkeypatch)
    assert done == ALL
    second, done = await lived(next_config(first), "1", monkeypatch)
    assert done == [GRAPH] and len(second.device.graphs) == len(first.device.graphs)
    assert second.device_checks() == first.device_checks()
    third, done = await lived(next_config(second), "1", monkeypatch)
    assert done == [GRAPH]
    plain = Driver(await start(path))
    expected = await plain.generate([plain.add([1, 2, 3], one) for one in PLAIN], 6)
    await third.begin_epoch(1)
    driver = Driver(third)
    assert await driver.generate([driver.add([1, 2, 3], one) for one in PLAIN[:4]], 6) == expected[:4]


async def test_a_second_life_does_not_trust_another_devices_checks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await lived(settings(path), "1", monkeypatch)
    second, done = await lived(next_config(first), "2", monkeypatch)
    assert done == ALL
    _, done = await lived(next_config(second), "1", monkeypatch)
    assert done == ALL  # and it is the last life's device that counts


async def test_a_device_that_cannot_be_told_from_others_is_always_checked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await lived(settings(path), None, monkeypatch)
    assert first.device_checks() is None
    known, _ = await lived(settings(path), "1", monkeypatch)
    for given in (next_config(first), next_config(known)):
        assert (await lived(given, None, monkeypatch))[1] == ALL


async def test_a_fault_is_looked_for_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedTorch, "wrong", "a tenth too large")
    first, _ = await lived(settings(path), "1", monkeypatch)
    assert "attention: a tenth too large" in first.status().notes
    second, done = await lived(next_config(first), "1", monkeypatch)
    assert done == [CHECK, GRAPH] and "attention: a tenth too large" in second.status().notes
    monkeypatch.setattr(CheckedTorch, "wrong", None)
    third, done = await lived(next_config(second), "1", monkeypatch)
    assert done == [CHECK, GRAPH] and "attention: right" in third.status().notes
    assert (await lived(next_config(third), "1", monkeypatch))[1] == [GRAPH]


async def test_other_sizes_are_tried_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial says nothing of larger steps, or of another pool."""
    first, _ = await lived(settings(path), "1", monkeypatch)
    given = next_config(first)
    larger = replace(given, max_num_seqs=6, max_num_batched_tokens=24)
    assert (await lived(larger, "1", monkeypatch))[1] == [GRAPH, KERNELS, TRIAL]
    memory = replace(given.memory, kv_cache_memory_bytes=first.kv_layout().num_bytes // 2)
    assert (await lived(replace(given, memory=memory), "1", monkeypatch))[1] == [GRAPH, TRIAL]


async def test_kernels_that_were_not_all_compiled_are_compiled_by_the_next_life(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StepCaptures, "_compile", lambda self: False)
        first, _ = await lived(settings(path), "1", patch)
    assert (await lived(next_config(first), "1", monkeypatch))[1] == [GRAPH, KERNELS]


# -- conditions ------------------------------------------------------------------------------------------------------------


def test_what_checks_depend_on(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, device = settings(path), NumberedDevice("1")
    same = conditions(given, device)
    assert same is not None and same == conditions(given, NumberedDevice("1"))
    chosen = replace(
        given, max_num_seqs=2, max_num_batched_tokens=8, max_model_len=32, default_limits=("max_num_seqs",),
        memory=replace(given.memory, kv_cache_memory_bytes=1 << 20, kv_on_demand=False), checks=DeviceChecks("x", ()),
    )  # fmt: skip
    assert conditions(chosen, device) == same, "a first life chooses these"
    others = [
        conditions(given, NumberedDevice("2")),
        conditions(replace(given, seed=1), device),
        conditions(replace(given, attention=replace(given.attention, block_size=8)), device),
        conditions(
            replace(given, optimization=OptimizationConfig(num_threads=1, quantization="fp8")), device
        ),
        conditions(replace(given, memory=replace(given.memory, kv_cache_dtype="fp8")), device),
        conditions(replace(given, model=str(write_checkpoint(tmp_path, SMALL))), device),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(passed_checks, "code_digest", lambda folders: b"other kernels")
        others.append(conditions(given, device))
    right = passed_checks._version
    for library in ("torch", "triton"):
        with monkeypatch.context() as patch:
            patch.setattr(
                passed_checks, "_version", lambda name, other=library: "9" if name == other else right(name)
            )
            others.append(conditions(given, device))
    file = next(path.glob("*.safetensors"))
    os.utime(file, ns=(1, 1))
    others.append(conditions(given, device))
    assert len({same, *others}) == 1 + len(others)


def test_ranks_are_checked_in_each_life(path: Path) -> None:
    """Their trials are common: one alone may not leave them out."""
    given = settings(path)
    for sizes in ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}):
        assert (
            conditions(replace(given, parallel=replace(given.parallel, **sizes)), NumberedDevice("1")) is None
        )


def test_a_gpu_by_its_number_and_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        "name": "H",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 9,
        "uuid": "GPU-1",
    }
    module = tmp_path / "version"
    module.write_text("NVRM version: 570")
    monkeypatch.setattr("executors.llm.device.cuda._DRIVER_FILE", module)
    libraries = {"libcuda.so.1": 12080}

    def library(name: str) -> Any:
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")

        def version(into: Any) -> int:
            into._obj.value = libraries[name]
            return 0 if libraries[name] else 3

        return SimpleNamespace(cuDriverGetVersion=version)

    monkeypatch.setattr("executors.llm.device.cuda.ctypes.CDLL", library)

    def identity(**changes: Any) -> tuple[str, ...] | None:
        properties = SimpleNamespace(**{**facts, **changes})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)
        return CudaDevice(torch.device("cuda:0")).identity()

    same = identity()
    assert same is not None and same == identity() and "GPU-1" in same and "NVRM version: 570" in same
    found = [identity(**{name: "2" if name in ("name", "uuid") else 2}) for name in facts]
    module.write_text("NVRM version: 580")
    found.append(identity())
    libraries["libcuda.so.1"] = 13000
    found.append(identity())
    assert len({same, *found}) == 1 + len(found)
    module.unlink()
    assert identity() is not None
    assert identity(uuid=None) is None, "it may be any"
    libraries["libcuda.so.1"] = 0
    assert identity() is None, "an error of the driver's"
    libraries.clear()
    assert identity() is None


# -- each check ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the checks that are made, each of which passes. Kernels count as compiled for a GPU."""
    made: list[str] = []
    for name in ("attention", "forward", "few_rows", "adapters", "fp8", "stored", "sampler"):
        monkeypatch.setattr(kernel_check, f"{name}_fault", lambda *given, name=name: made.append(name))
    monkeypatch.setattr(kernel_check, "wanted", lambda device: True)
    monkeypatch.setattr(kernel_choice, "fault", lambda *given: made.append("library"))
    monkeypatch.setattr(triton_build, "missing", lambda: None)
    monkeypatch.setattr(triton_sampler, "TritonSampler", lambda *given: object())
    monkeypatch.setattr(few_rows, "why_not", lambda model: None)
    monkeypatch.setattr(few_rows, "FewRows", lambda model: object())
    for support in (fp8_support, stored_support):
        support._fault.cache_clear()
        monkeypatch.setattr(support, "_fault", support._fault.__wrapped__)
    return made


def check_all(checks: PassedChecks | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is checked, as a load does it."""
    cuda = torch.device("cuda:0")
    assert stored_support.why_not(cuda, "auto", checks) is None
    assert fp8_support.why_no_triton(cuda, "auto", checks) is None
    with monkeypatch.context() as patch:
        pretend(patch, flash_3())
        choose_attention(MODEL, checks=checks)
    with monkeypatch.context() as patch:
        pretend(patch)
        backend = choose_attention(MODEL, "triton", checks=checks)
    model = decoder(QWEN3)
    fuse(backend, model, checks)
    choose_adapters(model, backend, 2, 8, on_device=True, checks=checks)
    parts.device_sampler(cuda, 4, 300, torch.float32, checks)


def test_each_check_is_left_out_once_it_has_passed(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = sorted(["adapters", "attention", "few_rows", "forward", "fp8", "library", "sampler", "stored"])
    checks = PassedChecks("here")
    check_all(checks, monkeypatch)
    assert sorted(counted) == once
    counted.clear()
    check_all(PassedChecks("here", checks.record()), monkeypatch)
    assert counted == []
    for not_here in (PassedChecks("there", checks.record()), PassedChecks(None, checks.record()), None):
        counted.clear()
        check_all(not_here, monkeypatch)
        assert sorted(counted) == once


def test_a_check_of_another_shape_is_made(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    checks = PassedChecks("here")
    check_all(checks, monkeypatch)
    counted.clear()
    pretend(monkeypatch)
    for number, other in enumerate((replace(MODEL, head_dim=32), replace(MODEL, windows=(7,))), 1):
        choose_attention(other, "triton", checks=checks)
        assert counted == ["attention"] * number
    choose_attention(MODEL, "triton", block_size=32, checks=checks)
    choose_attention(MODEL, "triton", deterministic=True, checks=checks)
    assert counted == ["attention"] * 4
    counted.clear()
    parts.device_sampler(torch.device("cuda:0"), 5, 300, torch.float32, checks)
    model = decoder({**QWEN3, "rms_norm_eps": 1e-4})
    backend = choose_attention(MODEL, "triton", checks=checks)
    fuse(backend, model, checks)
    choose_adapters(model, backend, 3, 8, on_device=True, checks=checks)
    assert counted == ["sampler", "forward", "few_rows", "adapters"]


def test_names_tell_what_they_depend_on() -> None:
    assert name_of("a", 1) == name_of("a", 1) != name_of("a", 2) != name_of("b", 2)
    assert name_of("a", MODEL) != name_of("a", replace(MODEL, scale=0.5))


# -- a child ---------------------------------------------------------------------------------------------------------------


async def test_a_child_that_was_killed_is_followed_by_one_that_believes_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then by one that finds another device."""
    monkeypatch.setenv(NUMBER, "1")
    remote = RemoteExecutor(settings(path, executor="tests.gpu.second_life:Factory"))
    stages: list[str] = []
    remote.set_progress(lambda stage, done, total: stages.append(stage))
    trial, graph = "trying the largest steps", "CUDA graph for 1 sequences"

    async def again(epoch: int) -> set[str]:
        assert remote.pid is not None
        stages.clear()
        os.kill(remote.pid, signal.SIGKILL)
        await remote.wait_dead()
        await remote.begin_epoch(epoch)
        return {trial, KERNELS, graph} & set(stages)

    try:
        await remote.warmup()
        assert {trial, KERNELS, graph} <= set(stages)
        assert remote.config.checks == remote.device_checks() is not None
        assert await again(2) == {graph}
        monkeypatch.setenv(NUMBER, "2")
        assert await again(3) == {trial, KERNELS, graph}
    finally:
        await remote.shutdown()
