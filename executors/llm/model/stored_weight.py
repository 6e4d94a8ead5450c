"""`StoredWeight`: a linear layer's weight on a GPU that stays as its file holds it, see `kernels/device_layouts.py`."""

from __future__ import annotations

from typing import Any

import torch

from executors.kernels.device_layouts import DeviceRows, table_of


def _kernels() -> Any:
    from executors.kernels.triton import stored

    return stored


class StoredWeight:
    """A weight [rows, columns], filled in parts. Rows of different formats are multiplied one part after the other."""

    def __init__(
        self,
        parts: list[tuple[int, str]],
        columns: int,
        order: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        """`parts`: (rows, kind of STORED_KINDS) from the first row on. `order`: which column of the matrix each of the stored
        ones is, int64 [columns], or None. Raises ValueError for columns that are no whole blocks."""
        self._take_memory([DeviceRows.empty(kind, rows, columns, device) for rows, kind in parts], order)

    @classmethod
    def of_rows(cls, rows: DeviceRows) -> StoredWeight:
        """Return a weight over memory that is there, of one format."""
        weight = cls.__new__(cls)
        weight._take_memory([rows], None)
        return weight

    def _take_memory(self, parts: list[DeviceRows], order: torch.Tensor | None) -> None:
        device = parts[0].codes.device
        self._kernels = _kernels()
        self._parts = parts
        self._begins = [sum(part.rows for part in parts[:i]) for i in range(len(parts))]
        self._order = None if order is None else order.to(device)
        self._tables = [table_of(part.layout, device) for part in parts]
        self.rows = sum(part.rows for part in parts)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory it takes."""
        of_parts = sum(part.num_bytes for part in self._parts)
        return of_parts + (0 if self._order is None else self._order.nbytes)

    def take(self, rows: DeviceRows, begin: int) -> None:
        """Store rows that belong to one part, from row `begin` on."""
        part = max(i for i, first in enumerate(self._begins) if first <= begin)
        self._parts[part].put(rows, begin - self._begins[part])

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[m, columns] -> [m, rows] in the dtype of x."""
        x = x.contiguous() if self._order is None else x.index_select(1, self._order)
        out = torch.empty(len(x), self.rows, dtype=x.dtype, device=x.device)
        for part, begin, table in zip(self._parts, self._begins, self._tables, strict=True):
            end = begin + part.rows
            self._kernels.matmul(x, part, table, None if bias is None else bias[begin:end], out[:, begin:end])
        return out

    def look_up(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return rows `ids`, int64 [n], in `dtype`: [n, columns]. The weight has one part."""
        [part], [table] = self._parts, self._tables
        rows: torch.Tensor = self._kernels.widened(part, table, ids, dtype)
        if self._order is None:
            return rows
        return torch.empty_like(rows).index_copy_(1, self._order, rows)


class StoredEmbedding:
    """An embedding that is the head's weight, looked up by rows."""

    def __init__(self, weight: StoredWeight, dtype: torch.dtype) -> None:
        self._weight = weight
        self._dtype = dtype

    def look_up(self, at: torch.Tensor) -> torch.Tensor:
        """Return [n, columns], the rows `at`, int64 [n]."""
        return self._weight.look_up(at, self._dtype)
