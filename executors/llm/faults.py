"""torch's exceptions, and Python's, in the contract's words."""

from __future__ import annotations

import torch

from executors.contract import OutOfMemory, StepFailed

_NO_MEMORY = ("not enough memory", "can't allocate memory", "bad_alloc")
"""torch's allocator for CPUs raises a bare RuntimeError: these are its words, and those of C++."""


def step_fault(error: Exception) -> StepFailed:
    """What a step that raised `error` is to raise: OutOfMemory where that is what it was."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return OutOfMemory(str(error) or "no memory")
    text = f"{type(error).__name__}: {error}"
    return OutOfMemory(text) if any(words in text for words in _NO_MEMORY) else StepFailed(text)
