"""No memory in everybody's words, and what is not that although it sounds like it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executors.contract import ExecutorDied, OutOfMemory, StepFailed
from executors.contract.faults import no_device_memory, no_memory
from executors.llm.checkpoint import loader
from executors.llm.faults import step_fault
from executors.llm.memory import kv_cache
from executors.llm.memory.device_memory import retried
from executors.llm.memory.kv_cache import KvCache
from executors.process.guard import typed
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.kernels.steps import spec
from tests.executors.llm.devices import Device, Once
from tests.executors.llm.driver import config

LATER = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Device-side assertion tracking was not enabled by user."
)
DEVICE: list[Exception] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 1 GiB"),
    torch.OutOfMemoryError(),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError(f"CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://x\n{LATER}"),
    RuntimeError(f"CUDA error: out of memory\n{LATER}"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("cudaMallocAsync failed: cudaErrorMemoryAllocation"),
    RuntimeError("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("NCCL error: unhandled cuda error, NCCL version 2.27.3\nLast error:\nCuda failure 2 'out of memory'"),
    RuntimeError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 'out of memory'"),
]  # fmt: skip
HOST: list[Exception] = [
    MemoryError(),
    MemoryError("none left"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] DefaultCPUAllocator: not enough memory: you tried"),
    RuntimeError("unable to mmap 123 bytes from file </x>: Cannot allocate memory (12)"),
    RuntimeError("std::bad_alloc"),
]
NEITHER: list[Exception] = [
    torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered\n{LATER}"),
    RuntimeError("CUDA error: misaligned address"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: too many resources requested for launch\nSearch for `cudaErrorLaunchOutOfResources'"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    # Of a program's shared memory there is always as much.
    RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
    RuntimeError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access was encountered'"),
    RuntimeError("CUDA error: operation failed due to a previous error during capture"),
    RuntimeError("boom"),
    ValueError("a client wrote: CUDA out of memory, std::bad_alloc"),
]  # fmt: skip


@pytest.mark.parametrize("error", DEVICE, ids=str)
def test_a_device_without_memory(error: Exception) -> None:
    said = no_device_memory(error)
    assert said and "\n" not in said and "GPU 0" not in said
    assert no_memory(error) == said
    assert type(step_fault(error)) is OutOfMemory
    assert type(typed(error)) is OutOfMemory
    compute = Once(lambda: 5, 0)
    device = Device()
    with pytest.raises(type(error)):
        retried(device, lambda: _raise(error))
    assert device.emptied == 1 and retried(device, compute) == 5


@pytest.mark.parametrize("error", HOST, ids=str)
def test_a_host_without_memory(error: Exception) -> None:
    """What a device's allocator had kept is none of the host's."""
    assert no_memory(error) and no_device_memory(error) is None
    assert type(step_fault(error)) is OutOfMemory
    assert type(typed(error)) is OutOfMemory
    device = Device()
    with pytest.raises(type(error)):
        retried(device, lambda: _raise(error))
    assert device.emptied == 0


@pytest.mark.parametrize("error", NEITHER, ids=str)
def test_what_only_sounds_like_it(error: Exception) -> None:
    assert no_memory(error) is None and no_device_memory(error) is None
    assert type(step_fault(error)) in (ExecutorDied, StepFailed)
    assert type(typed(error)) in (ExecutorDied, StepFailed)
    device = Device()
    with pytest.raises(type(error)):
        retried(device, lambda: _raise(error))
    assert device.emptied == 0


@pytest.mark.parametrize("said", ["CUDA error", "CUDA driver error"])
def test_after_an_illegal_access_the_device_is_lost(said: str) -> None:
    error = RuntimeError(f"{said}: an illegal memory access was encountered")
    assert type(step_fault(error)) is ExecutorDied
    assert type(typed(error)) is ExecutorDied


@pytest.mark.parametrize("first", [DEVICE[0], NEITHER[0]])
def test_a_capture_hides_what_went_wrong_first(first: Exception) -> None:
    """As `torch.cuda.graph` does when it ends one that is broken."""
    try:
        try:
            raise first
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        hiding = error
    assert no_device_memory(hiding) == no_device_memory(first)
    hiding.__context__ = hiding.__cause__ = None
    circle = RuntimeError("previous error during capture")
    circle.__cause__ = hiding
    hiding.__cause__ = circle
    assert no_device_memory(hiding) is None


@pytest.mark.parametrize(
    ("error", "kind"), [(DEVICE[4], OutOfMemory), (HOST[2], OutOfMemory), (NEITHER[0], torch.AcceleratorError)]
)  # fmt: skip
def test_kv_and_weights_tell_them_apart(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A lost device is no reason to try a smaller pool."""
    monkeypatch.setattr(kv_cache, "lazy_zeros", lambda *given: _raise(error))
    with pytest.raises(kind):
        KvCache(spec(2, 1, 16, torch.float32), 4, 16)
    monkeypatch.setattr(loader, "load_weights", lambda *given: _raise(error))
    path = write_checkpoint(tmp_path / "model", QWEN3)
    with pytest.raises(kind):
        loader.load_model(config(path), lambda *stage: None)


def _raise(error: BaseException) -> Any:
    raise error
