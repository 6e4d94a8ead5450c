"""`RowAdapters`: what a forward has to know of the LoRA adapters of its rows. `adapters/table.py` has the class."""

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


class RowAdapters(Protocol):
    """Adapters of the rows of a step."""

    @property
    def of_row(self) -> torch.Tensor:
        """int64 [T]: the place of each row's adapter among those of the step, -1 for none."""

    @property
    def addresses(self) -> Sequence[int]:
        """Of each adapter of the step: its layers, `LoraLayer` of lora.h."""

    def extra(self, linear: Product, x: torch.Tensor) -> torch.Tensor | None:
        """What is added to a linear layer's result for rows x [T, inputs]: float32 [T, outputs], None for nothing."""

    def subset(self, rows: np.ndarray) -> RowAdapters:
        """Of some rows, int64, in that order."""

    def padded(self, rows: int) -> RowAdapters:
        """With rows that have none behind them, `rows` in all."""
