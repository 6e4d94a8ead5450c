"""`Place`: where a checkpoint tensor goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from executors.llm.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Place:
    """Destination of a checkpoint tensor: `tensor`, which has its shape (for the norms of heads see `parameters.places`).

    If `linear` is given and has given up its weight, `tensor` is a shape without memory and the rows go to `linear.fill`,
    starting at row `begin`; if `turned`, the rows are the checkpoint's columns. A tied embedding goes to both its tensor and
    the head.
    """

    tensor: torch.Tensor
    linear: Linear | None = None
    begin: int = 0
    turned: bool = False

    @property
    def packed(self) -> bool:
        """Whether the rows go to a linear layer that stores them in another format."""
        return self.linear is not None and self.linear.given_up


NamedPlaces = Iterator[tuple[str, Place]]
"""Places with the names of their tensors in a checkpoint; `{i}` stands for the layer's index."""


def of_linear(linear: Linear, *parts: tuple[str, int]) -> NamedPlaces:
    """Yield rows of one linear layer under the names of its parts, (name, rows); -1 means all rows."""
    assert linear.weight is not None, "packed weights cannot be loaded into"
    begin = 0
    for name, rows in parts:
        end = len(linear.weight) if rows < 0 else begin + rows
        yield f"{name}.weight", Place(linear.weight[begin:end], linear, begin)
        if linear.bias is not None:
            yield f"{name}.bias", Place(linear.bias[begin:end])
        begin = end
