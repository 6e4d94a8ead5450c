"""`StoredTransform`: products with a matrix that the checkpoint has, such as a random Hadamard matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from executors.contract.errors import ConfigError
from executors.llm.model.hadamard import in_blocks
from executors.llm.model.transforms import Location


@dataclass(slots=True)
class StoredMatrix:
    """A matrix, float32 [size, size], which all modules share that have the transform `name` of that size. It is allocated here
    and filled by the loader.

    `scaled`: the file has it times the root of its size. `permuted`: the file has an order of its rows and columns beside it.
    `locations`: where it is used, which its tensor's name says.
    """

    name: str
    size: int
    scaled: bool
    permuted: bool
    matrix: torch.Tensor
    locations: set[Location] = field(default_factory=set)

    def fill(self, matrix: torch.Tensor, order: torch.Tensor | None) -> None:
        """Store what the file has: float32 [size, size], and int64 [size] if it is `permuted`."""
        if order is not None:
            matrix = matrix[order][:, order]
        self.matrix.copy_(matrix / math.sqrt(self.size) if self.scaled else matrix)


class StoredTransform:
    """x -> x M of each `size` columns, or x M^T if it is `turned`. Computed in float32."""

    __slots__ = ("_stored", "_turned", "size")

    def __init__(self, stored: StoredMatrix, turned: bool) -> None:
        self.size = stored.size
        self._stored = stored
        self._turned = turned

    def be_steady(self) -> None:
        """Raise ConfigError: torch's sums depend on the step's size."""
        raise ConfigError(
            f"deterministic: transform_config: the matrix of {self._stored.name} is multiplied by torch, whose sums depend on "
            "the size of a step; type hadamard without randomize is supported"
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[m, columns] -> the same, in the dtype of x; columns are a multiple of `size`."""
        matrix = self._stored.matrix
        return in_blocks(x, self.size, lambda blocks: blocks @ (matrix.T if self._turned else matrix))
