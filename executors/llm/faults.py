"""Translation of exceptions of torch and Python into the errors of the contract."""

from __future__ import annotations

import traceback

from executors.contract import ExecutorDied, ExecutorError, OutOfMemory, StepFailed
from executors.contract.memory_faults import no_memory

_DEVICE_IS_LOST = (
    "CUDA error",
    "CUDA driver error",
    "Triton Error [CUDA]",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "device-side assert",
)
"""Texts of errors after which no data of this process on the device can be trusted and most calls fail. The process must be
restarted."""


def step_fault(error: Exception) -> ExecutorError:
    """Return the error that a step should raise after `error`: OutOfMemory if memory ran out, ExecutorDied if the device is
    lost.

    Clears the local variables of the step's functions. On a device they hold the memory of a whole step, which would stay
    allocated for as long as something refers to the error.
    """
    why = no_memory(error)
    if why is None:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, RuntimeError) and any(words in said for words in _DEVICE_IS_LOST):
            return ExecutorDied(said.split("\n")[0])
        return StepFailed(said)
    traceback.clear_frames(error.__traceback__)
    return OutOfMemory(why)
