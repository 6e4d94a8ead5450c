"""`RowTable`: a matrix that is only looked up by rows, and stays in its file where that is possible."""

from __future__ import annotations

import torch

from executors.kernels.cpu import CpuKernels, StoredRows


class RowTable:
    """`weight` [rows, columns]: memory that is untouched until it is loaded, or a view of the file, in any float dtype; without
    memory if the file holds blocks, which `look_up` widens row by row.

    A table of a file takes no memory of its own: the system reads the pages of rows that are looked up, and drops them first.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(rows, columns, dtype=dtype, device=device)
        self.in_file = False
        self._dtype = dtype
        self._stored: StoredRows | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory it takes."""
        return 0 if self.in_file else self.weight.numel() * self.weight.element_size()

    def map(self, rows: torch.Tensor) -> None:
        """Look up rows in `rows`, a view of the file. This frees the table's own memory."""
        self.weight, self.in_file = rows, True

    def keep(self, kernels: CpuKernels, raw: torch.Tensor, kind: str) -> None:
        """Look up rows in `raw`, uint8 [rows, bytes of a row] in a format of STORED_KINDS, a view of the file. This frees the
        table's own memory."""
        self._stored = StoredRows(kernels, raw, self.weight.shape[1], kind)
        self.weight, self.in_file = torch.empty(self.weight.shape, dtype=self._dtype, device="meta"), True

    @property
    def rows(self) -> torch.Tensor | StoredRows:
        """The rows as they lie: a matrix, or blocks of a file."""
        return self.weight if self._stored is None else self._stored

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows `ids` [n] as [n, columns], in the model's dtype."""
        rows = self.weight.index_select(0, ids) if self._stored is None else self._stored.look_up(ids)
        return rows.to(self._dtype)
