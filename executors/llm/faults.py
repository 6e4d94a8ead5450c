"""What a step that raised an exception is to raise."""

from __future__ import annotations

import traceback

from executors.contract.errors import ExecutorError, OutOfMemory
from executors.contract.faults import executor_error


def step_fault(error: Exception) -> ExecutorError:
    """`executor_error` of what a step raised.

    Where memory ran out, the local variables of the step's functions are cleared: on a device they hold the memory of a whole
    step, which would stay taken for as long as the error is kept.
    """
    fault = executor_error(error)
    if isinstance(fault, OutOfMemory):
        traceback.clear_frames(error.__traceback__)
    return fault
