"""`Tensor`: the form in which arrays cross the contract without torch. Standard library and NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NUMPY = {
    "float32": np.float32, "float16": np.float16, "float64": np.float64, "bool": np.bool_,
    "int8": np.int8, "uint8": np.uint8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
}  # fmt: skip
ITEM_SIZES = {name: np.dtype(t).itemsize for name, t in _NUMPY.items()} | {"bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense, C-contiguous array: shape, dtype name and bytes. `bfloat16` is carried, though NumPy has no such type.

    Raises ValueError when the bytes do not fit the shape or the dtype is unknown.
    """

    shape: tuple[int, ...]
    dtype: str
    data: memoryview

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(ITEM_SIZES)}")
        need = math.prod(self.shape) * ITEM_SIZES[self.dtype]
        if self.data.nbytes != need:
            raise ValueError(
                f"{self.data.nbytes} bytes do not hold {self.dtype}{list(self.shape)} ({need} bytes)"
            )

    @staticmethod
    def of(values: ArrayLike, dtype: str | None = None) -> Tensor:
        """A tensor over a NumPy array (without a copy if it is contiguous) or nested lists."""
        array = np.ascontiguousarray(values, dtype=_NUMPY[dtype] if dtype else None)
        # An empty array cannot be cast to bytes by memoryview, hence tobytes for that one case.
        data = array.data.cast("B") if array.size else memoryview(array.tobytes())
        return Tensor(array.shape, array.dtype.name, data)

    def numpy(self) -> NDArray[np.generic]:
        """A NumPy view; bfloat16 is widened to float32 (a copy)."""
        if self.dtype == "bfloat16":
            wide = np.frombuffer(self.data, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(self.shape)
        return np.frombuffer(self.data, _NUMPY[self.dtype]).reshape(self.shape)
