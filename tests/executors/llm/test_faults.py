"""What a step raised, in the contract's words: memory that was not there is told from everything else."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from executors.contract import ExecutorDied, ExecutorError, OutOfMemory, StepFailed
from executors.llm.faults import step_fault


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (MemoryError(), OutOfMemory, "no memory"),
        (MemoryError("none left"), OutOfMemory, "none left"),
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory, "CUDA"),
        (RuntimeError("std::bad_alloc"), OutOfMemory, "bad_alloc"),
        (ValueError("a shape"), StepFailed, "ValueError: a shape"),
        (RuntimeError("boom"), StepFailed, "RuntimeError: boom"),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel"),
            ExecutorDied,
            "illegal",
        ),
        (RuntimeError("CUDA error: device-side assert triggered"), ExecutorDied, "device-side assert"),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling"), ExecutorDied, "CUBLAS"),
        (torch.OutOfMemoryError("CUDA error: out of memory"), OutOfMemory, "CUDA"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), OutOfMemory, "out of memory"),
        (
            RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
            ExecutorDied,
            "illegal",
        ),
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemory, "out of memory"),
        (ValueError("CUDA error: is what a client wrote"), StepFailed, "ValueError"),
    ],
)
def test_kinds(error: Exception, kind: type[ExecutorError], words: str) -> None:
    fault = step_fault(error)
    assert type(fault) is kind and words in str(fault)


def test_what_torch_and_numpy_really_raise() -> None:
    """For more than any machine has."""
    for allocate in (lambda: torch.empty(1 << 60, dtype=torch.uint8), lambda: np.empty(1 << 60, np.uint8)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        assert type(step_fault(caught.value)) is OutOfMemory, caught.value


def test_an_error_holds_nothing_of_the_step() -> None:
    """It may be kept for long, and what the step's functions had in hand would be kept with it."""
    held: list[weakref.ref[torch.Tensor]] = []

    def step() -> None:
        activations = torch.empty(10)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 1 GiB"
        )

    try:
        step()
    except torch.OutOfMemoryError as error:
        kept = error
        fault = step_fault(error)
    gc.disable()
    try:
        assert held[0]() is None
    finally:
        gc.enable()
    assert str(fault) == "CUDA out of memory. Tried to allocate 2.00 GiB." and kept.__traceback__ is not None
