"""Whether an exception reports a lack of memory. torch is not imported: its classes are recognised by name.

Each allocator on a device reports it in its own words: torch's allocator, the runtime, the driver, cuBLAS, cuDNN, NCCL, Triton,
and a capture, which hides the first error behind one of its own. An illegal address, a failed launch, or a launch that needs
more registers or shared memory than exist is not a lack of memory, though its text may have the word "memory": freeing memory
does not help against these.
"""

from __future__ import annotations

import re

from executors.contract.errors import OutOfMemory

_OF_DEVICE = re.compile(
    r"CUDA out of memory|CUDA (?:driver )?error: out of memory|Triton Error \[CUDA\]: out of memory|"
    "cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|"
    # NCCL's last error stands lines below its first, and newer versions leave the number out.
    r"Cuda failure (?:2 )?'out of memory'|NCCL [^\n]*: out of memory"
)
_OF_HOST = re.compile("not enough memory|[Cc]an(?:no|')t allocate memory|bad_alloc")
"""Texts for host memory: torch's allocator for CPUs raises a bare RuntimeError with them, and so do C and C++."""
_HIDDEN = re.compile(
    "previous error during capture|cudaErrorStreamCaptureInvalidated|CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
)


def no_device_memory(error: BaseException) -> str | None:
    """A line that says which device memory was missing; None if the error reports something else."""
    found: BaseException | None = error
    for _ in range(8):  # no chain of errors is as long, and one may be a circle
        if type(found).__name__ == "OutOfMemoryError":
            return _line(found)
        if not isinstance(found, RuntimeError):  # of other kinds, a text may quote what a client wrote
            return None
        if _OF_DEVICE.search(str(found)):
            return f"{type(found).__name__}: {_line(found)}"
        if not _HIDDEN.search(str(found)):
            return None
        found = found.__cause__ or found.__context__
    return None


def no_memory(error: BaseException) -> str | None:
    """The same for any memory, including the host's."""
    if isinstance(error, OutOfMemory | MemoryError):
        return _line(error)
    if isinstance(error, RuntimeError) and _OF_HOST.search(str(error)):
        return f"{type(error).__name__}: {_line(error)}"
    return no_device_memory(error)


def _line(error: BaseException | None) -> str:
    # torch goes on about its allocator's figures, and where to read about them.
    return str(error).split(" GPU ")[0].strip().split("\n")[0] or "no memory"
