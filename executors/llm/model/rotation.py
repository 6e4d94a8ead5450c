"""`Rotation`: the Hadamard products before and after a linear layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executors.llm.model.hadamard import Hadamard


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a linear layer multiplies its input and its output with. `after`: of columns begin..end of the output."""

    before: Hadamard | None
    after: tuple[tuple[int, int, Hadamard], ...]

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the weight is multiplied with, [m, in]."""
        return x if self.before is None else self.before(x)

    def leave(self, y: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
        """Return the result of the whole for the product `y` [m, out], which is overwritten; `extra`, float32, is added."""
        for begin, end, transform in self.after:
            y[:, begin:end] = transform(y[:, begin:end])
        return y if extra is None else (y.float() + extra).to(y.dtype)

    def be_steady(self) -> None:
        """See `Hadamard`."""
        for one in (self.before, *(transform for _, _, transform in self.after)):
            if one is not None:
                one.be_steady()
