"""torch's exceptions, and Python's, in the contract's words."""

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
"""After one of these nothing that the process has on its device can be trusted, and most calls fail: it has to be a new one."""


def step_fault(error: Exception) -> ExecutorError:
    """What a step that raised `error` is to raise: OutOfMemory where that is what it was, ExecutorDied where the device is lost.

    What the step's functions held, they hold no more then: on a device that is the memory of a whole step, which would be
    kept for as long as anybody looks at the error.
    """
    why = no_memory(error)
    if why is None:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, RuntimeError) and any(words in said for words in _DEVICE_IS_LOST):
            return ExecutorDied(said.split("\n")[0])
        return StepFailed(said)
    traceback.clear_frames(error.__traceback__)
    return OutOfMemory(why)
