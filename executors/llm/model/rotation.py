"""`Rotation`: the products before and after a linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Transform(Protocol):
    """x -> x M of each `size` columns."""

    size: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[m, columns] -> the same, in the dtype of x; columns are a multiple of `size`."""

    def be_steady(self) -> None:
        """Make a row's result the same in any batch, bit for bit. Raises ConfigError where that is not supported."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a linear layer multiplies its input and its output with. `after`: of columns begin..end of the output."""

    before: Transform | None
    after: tuple[tuple[int, int, Transform], ...]

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the weight is multiplied with, [m, in]."""
        return x if self.before is None else self.before(x)

    def leave(self, y: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
        """Return the result of the whole for the product `y` [m, out], which is overwritten; `extra`, float32, is added."""
        for begin, end, transform in self.after:
            y[:, begin:end] = transform(y[:, begin:end])
        return y if extra is None else (y.float() + extra).to(y.dtype)

    def be_steady(self) -> None:
        """See `Transform`."""
        for one in (self.before, *(transform for _, _, transform in self.after)):
            if one is not None:
                one.be_steady()
