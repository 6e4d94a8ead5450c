"""Where the tensors of a checkpoint go in an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from executors.llm.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor goes: `fill` takes it, in its file's dtype. `name`: without the prefix of a model with a head. `dummy`: the
    number that all of it has where weights are random; None: random numbers. `table`: what is filled, where nothing but a copy is
    needed: the largest tensors are never widened as a whole then."""

    name: str
    shape: tuple[int, ...]
    fill: Callable[[torch.Tensor], object]
    dummy: float | None = None
    table: torch.Tensor | None = None


def linear_slots(linear: Linear, before: str, name: str, first: int, rows: int) -> Iterator[Slot]:
    """Yield what fills `rows` rows of a linear layer from the `first` on, and as much of its bias."""
    weight, bias = linear.weight, linear.bias
    assert weight is not None

    def fill(values: torch.Tensor) -> None:
        if linear.given_up:
            linear.fill(values, first)
        else:
            weight[first : first + rows].copy_(values)

    yield Slot(f"{before}{name}.weight", (rows, weight.shape[1]), fill)
    if bias is not None:
        yield Slot(f"{before}{name}.bias", (rows,), bias[first : first + rows].copy_)
