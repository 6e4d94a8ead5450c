"""`RowLoras`: what a forward has to know of the LoRA adapters of its rows. `lora/` has the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch


class Product(Protocol):
    """A linear layer, by its identity."""

    @property
    def outputs(self) -> int:
        """Columns of its result, gate and up both counted."""


class RowLoras(Protocol):
    """Adapters of the rows of a step."""

    def extra(self, linear: Product, x: torch.Tensor) -> torch.Tensor | None:
        """What is added to a linear layer's result for rows x [T, inputs]: float32 [T, outputs], None for nothing."""

    def add(self, linear: Product, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to a linear layer's result `out` [T, outputs], of any float dtype, in place."""

    def padded(self, rows: int) -> RowLoras:
        """With rows that have none behind them, `rows` in all."""


class StepLoras(RowLoras, Protocol):
    """Those of a step that the host describes."""

    def subset(self, rows: np.ndarray) -> StepLoras:
        """Return the adapters of `rows`, int64, in that order."""


class KernelLoras(RowLoras, Protocol):
    """Those that Cohort's CPU kernels read."""

    @property
    def of_row(self) -> torch.Tensor:
        """int64 [T]: the place of each row's adapter among those of the step, -1 for none."""

    @property
    def addresses(self) -> Sequence[int]:
        """Address of the layers, `LoraLayer` of lora.h, of each adapter of the step."""
