"""What an exception means: memory ran out, the device is lost, or the step failed.

torch is not imported: its classes are told by name.

What asks for memory on a device says so in its own words: torch's allocator, the runtime, the driver, cuBLAS, cuDNN, NCCL,
Triton, and a capture, which hides the first error behind one of its own. An address that is illegal, a launch that failed or
wanted more registers or shared memory than there are is none of these, though the word "memory" may be in it: memory that is
given back cures none of them.
"""

from __future__ import annotations

import re

from executors.contract.errors import ExecutorDied, ExecutorError, OutOfMemory, StepFailed

_OF_DEVICE = re.compile(
    r"CUDA out of memory|CUDA (?:driver )?error: out of memory|Triton Error \[CUDA\]: out of memory|"
    "cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|"
    # NCCL's last error stands lines below its first, and newer versions leave the number out.
    r"Cuda failure (?:2 )?'out of memory'|NCCL [^\n]*: out of memory"
)
_OF_HOST = re.compile("not enough memory|[Cc]an(?:no|')t allocate memory|bad_alloc")
"""torch's allocator for CPUs raises a bare RuntimeError: these are its words, and those of C and C++."""
_HIDDEN = re.compile(
    "previous error during capture|cudaErrorStreamCaptureInvalidated|CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
)
_LOST_DEVICE = re.compile(
    r"CUDA (?:driver )?error|Triton Error \[CUDA\]|CUBLAS_STATUS_|CUDNN_STATUS_|device-side assert"
)
"""After one of these nothing that the process has on its device can be trusted, and most calls fail: the process has to be a new
one."""


def executor_error(error: BaseException) -> ExecutorError:
    """The error of the contract that stands for any exception; one of the contract stands for itself.

    OutOfMemory where memory was not there, ExecutorDied where the device is lost, else StepFailed.
    """
    if isinstance(error, ExecutorError):
        return error
    if (why := no_memory(error)) is not None:
        return OutOfMemory(why)
    message = f"{type(error).__name__}: {_joined(error)}"
    # Of other kinds, a text may quote what a client wrote.
    is_lost_device = isinstance(error, RuntimeError) and _LOST_DEVICE.search(str(error)) is not None
    if is_lost_device or type(error).__name__ == "AcceleratorError":
        return ExecutorDied(message, "device")
    return StepFailed(message)


def no_device_memory(error: BaseException) -> str | None:
    """In a line, what memory of a device was not there; None where that is not what the error says."""
    cause: BaseException | None = error
    for _ in range(8):  # no chain of errors is as long, and one may be a circle
        if type(cause).__name__ == "OutOfMemoryError":
            return _line(cause)
        if not isinstance(cause, RuntimeError):  # of other kinds, a text may quote what a client wrote
            return None
        if _OF_DEVICE.search(str(cause)):
            return f"{type(cause).__name__}: {_line(cause)}"
        if not _HIDDEN.search(str(cause)):
            return None
        cause = cause.__cause__ or cause.__context__
    return None


def no_memory(error: BaseException) -> str | None:
    """The same of memory of any kind, the host's too."""
    if isinstance(error, OutOfMemory | MemoryError):
        return _line(error)
    if isinstance(error, RuntimeError) and _OF_HOST.search(str(error)):
        return f"{type(error).__name__}: {_line(error)}"
    return no_device_memory(error)


def _line(error: BaseException | None) -> str:
    # torch goes on about its allocator's figures, and where to read about them.
    return str(error).split(" GPU ")[0].strip().split("\n")[0] or "no memory"


def _joined(error: BaseException) -> str:
    """The first line, for torch explains how to debug in those below it; all lines of an error that is not of a device."""
    text = str(error)
    return (
        text.split("\n")[0] if isinstance(error, RuntimeError) and "CUDA" in text else " ".join(text.split())
    )
