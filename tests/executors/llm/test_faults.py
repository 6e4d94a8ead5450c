"""What a step raised, in the contract's words: memory that was not there is told from everything else."""

import numpy as np
import pytest
import torch

from executors.contract import OutOfMemory, StepFailed
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
    ],
)
def test_kinds(error: Exception, kind: type[StepFailed], words: str) -> None:
    fault = step_fault(error)
    assert type(fault) is kind and words in str(fault)


def test_what_torch_and_numpy_really_raise() -> None:
    """For more than any machine has."""
    for allocate in (lambda: torch.empty(1 << 60, dtype=torch.uint8), lambda: np.empty(1 << 60, np.uint8)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        assert type(step_fault(caught.value)) is OutOfMemory, caught.value
