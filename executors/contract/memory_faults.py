"""Whether an exception says that memory was not there. torch is not imported: its classes are told by name.

What asks for memory on a device says so in its own words: torch's allocator, the runtime, the driver, cuBLAS, cuDNN, NCCL,
Triton, and a capture, which hides the first error behind one of its own. An address that is illegal, a launch that failed or
wanted more registers or shared memory than there are is none of these, though the word "memory" may be in it: memory that is
given back cures none of them.
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
"""torch's allocator for CPUs raises a bare RuntimeError: these are its words, and those of C and C++."""
_HIDDEN = re.compile(
    "previous error during capture|cudaErrorStreamCaptureInvalidated|CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
)


def no_device_memory(error: BaseException) -> str | None:
    """In a line, what memory of a device was not there; None where that is not what the error says."""
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
    """The same of memory of any kind, the host's too."""
    if isinstance(error, OutOfMemory | MemoryError):
        return _line(error)
    if isinstance(error, RuntimeError) and _OF_HOST.search(str(error)):
        return f"{type(error).__name__}: {_line(error)}"
    return no_device_memory(error)


def _line(error: BaseException | None) -> str:
    # torch goes on about its allocator's figures, and where to read about them.
    return str(error).split(" GPU ")[0].strip().split("\n")[0] or "no memory"
