"""`Cut`: which part of a checkpoint tensor a rank loads."""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[int, int]
"""First index, and the index behind the last."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Part of a tensor. Rows are a linear layer's outputs (of a vector: its elements) and columns its inputs, however the
    checkpoint stores them.

    `of`: shape of the whole, [rows, columns], [rows] or, of a convolution, [rows, 1, kernel]. `rows`: ranges that are kept,
    ascending; `columns`: the range that is kept; None for all. `turned`: the checkpoint stores [inputs, outputs]. `zeros`: the
    rank has zeros instead, because another rank adds the tensor to a sum over ranks.
    """

    of: tuple[int, ...]
    rows: tuple[Range, ...] | None = None
    columns: Range | None = None
    turned: bool = False
    zeros: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part, rows first."""
        rows = self.of[0] if self.rows is None else sum(end - begin for begin, end in self.rows)
        if len(self.of) == 1:
            return (rows,)
        columns = self.of[1] if self.columns is None else self.columns[1] - self.columns[0]
        return rows, columns, *self.of[2:]
