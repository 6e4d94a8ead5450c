"""The interface between a step and attention over paged KV. Once per step a backend makes the function that the model calls
per layer."""

from __future__ import annotations

from typing import Protocol

from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.api import Attend
from executors.llm.step_arrays import StepArrays

TRITON = "cohort-triton"
"""Name of the backend of Cohort's own Triton kernels."""


class AttentionBackend(Protocol):
    """A way to compute attention."""

    name: str
    note: str
    """Note for `status()`: the name, and remarks."""

    def begin(self, step: StepArrays, cache: KvCache) -> Attend:
        """Prepare a step: everything that is the same for all layers is computed here, once."""
