"""Rows of a table on the device that the host rewrites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int32))
"""An empty set of places in a table and their values."""


@dataclass(frozen=True, slots=True)
class RowImage:
    """New contents of a table row: int32 `values` at int64 `places` of the flattened table, `otherwise` at its other places;
    None: they stay as they are."""

    places: np.ndarray
    values: np.ndarray
    otherwise: int | None


class UnsentRows:
    """Rows of a `tensor` int32 [rows, words] on the device that must be written before the next step."""

    def __init__(self, tensor: torch.Tensor, header: int, used: int) -> None:
        """`header`: words at the start of a row that are 0 unless given; `used`: words of a row that are written."""
        self.tensor = tensor
        self._header = header
        self._used = used
        self._rows: dict[int, RowImage] = {}

    def put(self, row: int, image: RowImage) -> None:
        """Schedule a row to be written, replacing an earlier image of it."""
        self._rows[row] = image

    def __contains__(self, row: int) -> bool:
        """Whether the row is to be written."""
        return row in self._rows

    def unsent(self) -> tuple[np.ndarray, np.ndarray]:
        """See `DeviceTables`."""
        images = self._rows.values()
        if not images:
            return _NOTHING
        return (
            np.concatenate([np.empty(0, np.int64), *(image.places for image in images)]),
            np.concatenate([np.empty(0, np.int32), *(image.values for image in images)]),
        )

    def clean(self) -> None:
        """Fill the rows on the device before `unsent` is written."""
        for row, image in self._rows.items():
            if image.otherwise is None:
                continue
            self.tensor[row, : self._used].fill_(image.otherwise)
            if image.otherwise:
                self.tensor[row, : self._header].zero_()

    def sent(self) -> None:
        """See `DeviceTables`."""
        self._rows.clear()
