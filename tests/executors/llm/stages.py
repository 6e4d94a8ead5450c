"""Stages of steps for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executors.contract.batch import UnifiedOutput
from executors.llm.step.pipeline import Sample


class SampledBy:
    """The stage `Sample`, called by another function."""

    def __init__(self, stage: Sample, call: Callable[..., UnifiedOutput]) -> None:
        self.rows = stage.rows
        self._call = call

    def __call__(self, *given: Any) -> UnifiedOutput:
        return self._call(*given)
