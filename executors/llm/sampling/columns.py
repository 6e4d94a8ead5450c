"""`SamplingColumns`: how to choose a token of each row, a column per setting, in NumPy on the host or in torch on a device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch

from executors.contract.sampling import MIN_TEMPERATURE

PADDING = -1.0
"""Temperature that marks a padding row: nothing is read and nothing written for it."""

Column = TypeVar("Column", np.ndarray, torch.Tensor)


@dataclass(frozen=True, slots=True)
class SamplingColumns(Generic[Column]):
    """Settings of n rows, each column [n].

    - `temperature`: 0 is greedy, and so is anything below MIN_TEMPERATURE. The writer of a float32 column keeps above it what
      float32 would make 0. PADDING marks a row whose token is meaningless.
    - `top_k`: 0, or the width and more, for no limit. `top_p`: 1 for no limit. `min_p`: 0 for no limit.
    - `u`: float64, at least 0 and below 1, the noise that draws the row's token, from `executors.contract.noise.uniform`.

    Host columns are float64 and int64. Device columns may be float32 and int32; they are contiguous, and a captured graph
    takes what they hold when it is replayed.
    """

    temperature: Column
    top_k: Column
    top_p: Column
    min_p: Column
    u: Column

    def take(self, rows: Any) -> Self:
        """The columns of some rows: an index array, a mask or a slice."""
        return type(self)(*(getattr(self, one.name)[rows] for one in fields(self)))

    def __len__(self) -> int:
        return len(self.temperature)


__all__ = ["MIN_TEMPERATURE", "PADDING", "SamplingColumns"]
