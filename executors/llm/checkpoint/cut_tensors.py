"""A file of tensors as one rank sees it: of some tensors a part, see `Cut`. What is not kept is not read, as far as rows go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from executors.llm.checkpoint.tensor_file import FilePiece, TensorFile, beyond_float16
from executors.llm.model.cuts import Cut, Range


class CutTensors(TensorFile):
    """The tensors of `file`, those in `cuts` (by the file's names) cut."""

    def __init__(self, file: TensorFile, cuts: Mapping[str, Cut]) -> None:
        self.path = file.path  # nothing is mapped beside what `file` maps
        self._file = file
        self._cuts = cuts

    def names(self) -> list[str]:
        """Names of all tensors."""
        return self._file.names()

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor's part."""
        whole, cut = self._file.shape(name), self._cuts.get(name)
        if cut is None:
            return whole
        return cut.shape[::-1] if cut.turned else cut.shape

    def dtype(self, name: str) -> torch.dtype:
        """See `TensorFile`."""
        return self._file.dtype(name)

    def float_dtype(self, name: str) -> torch.dtype | None:
        """See `TensorFile`."""
        return self._file.float_dtype(name)

    def stored_as(self, name: str) -> str | None:
        """See `TensorFile`."""
        return self._file.stored_as(name)

    def is_fp8(self, name: str) -> bool:
        """See `TensorFile`."""
        return self._file.is_fp8(name)

    def num_bytes(self, name: str) -> int:
        """Bytes of the whole tensor's data in the file."""
        return self._file.num_bytes(name)

    def is_finite(self, name: str) -> bool:
        """See `TensorFile`; of the whole tensor."""
        return self._file.is_finite(name)

    def equals(self, name: str, other: TensorFile, other_name: str) -> bool:
        """See `TensorFile`; of the whole tensor."""
        return self._file.equals(name, other, other_name)

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """See `TensorFile`."""
        cut = self._cuts.get(name)
        if cut is None:
            self._file.copy_into(name, target)
        elif cut.zeros:
            target.zero_()
        elif target.dim() != 2:
            whole = torch.empty(self._file.shape(name), dtype=target.dtype)
            self._file.copy_into(name, whole)
            target.copy_(torch.cat([whole[begin:end] for begin, end in cut.rows or ((0, len(whole)),)]))
        else:
            by_rows = target.T if cut.turned else target
            for begin, rows in self.rows(name, cut.turned):
                part = by_rows[begin : begin + len(rows)]
                part.copy_(rows)
                if target.dtype is torch.float16 and not torch.isfinite(part).all():
                    raise beyond_float16(self.path, name)

    def pieces(self, name: str, target: torch.Tensor) -> Iterator[FilePiece] | None:
        """See `TensorFile`."""
        return self._file.pieces(name, target) if name not in self._cuts else None

    def open_again(self) -> int:
        """See `TensorFile`."""
        return self._file.open_again()

    def can_map(self, name: str) -> bool:
        """See `TensorFile`."""
        return self._file.can_map(name) and self._one_range(name)

    def mapped(self, name: str) -> torch.Tensor:
        """See `TensorFile`."""
        whole, cut = self._file.mapped(name), self._cuts.get(name)
        return whole if cut is None or cut.rows is None else whole[slice(*cut.rows[0])]

    def rows(
        self, name: str, turned: bool, within: Range | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TensorFile`."""
        cut = self._cuts.get(name)
        if cut is None:
            yield from self._file.rows(name, turned, within)
            return
        columns = slice(None) if cut.columns is None else slice(*cut.columns)
        for begin, rows in selected_rows(self._file.rows(name, turned, _span(cut)), cut.rows):
            yield begin, rows[:, columns]

    def stored_kind(self, name: str) -> str | None:
        """See `TensorFile`."""
        return self._file.stored_kind(name)

    def stored_order(self, name: str) -> torch.Tensor | None:
        """See `TensorFile`. Columns in another order are not cut."""
        return self._file.stored_order(name)

    def raw_rows(self, name: str, within: Range | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TensorFile`. Columns are cut between blocks."""
        cut = self._cuts.get(name)
        if cut is None:
            yield from self._file.raw_rows(name, within)
            return
        for begin, rows in selected_rows(self._file.raw_rows(name, _span(cut)), cut.rows):
            if cut.columns is None:
                yield begin, rows
                continue
            width = self._file.shape(name)[1]
            first, last = (rows.shape[1] * column // width for column in cut.columns)
            yield begin, rows[:, first:last].contiguous()

    def mapped_rows(self, name: str) -> torch.Tensor | None:
        """See `TensorFile`."""
        cut = self._cuts.get(name)
        whole = self._file.mapped_rows(name) if self._one_range(name) else None
        return whole if whole is None or cut is None or cut.rows is None else whole[slice(*cut.rows[0])]

    def _one_range(self, name: str) -> bool:
        cut = self._cuts.get(name)
        return cut is None or (cut.columns is None and not cut.turned and len(cut.rows or ((0, 0),)) == 1)

    def close(self) -> None:
        """Nothing to unmap."""


def _span(cut: Cut) -> Range | None:
    """Return the range from the first row that is kept to the last."""
    return (cut.rows[0][0], cut.rows[-1][1]) if cut.rows else None


def selected_rows(
    pieces: Iterable[tuple[int, torch.Tensor]], ranges: tuple[Range, ...] | None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield what of the pieces lies in the ranges, with the number of its first row among all rows that are kept."""
    for first, rows in pieces:
        if ranges is None:
            yield first, rows
            continue
        before = 0
        for begin, end in ranges:
            low, high = max(begin, first), min(end, first + len(rows))
            if low < high:
                yield before + low - begin, rows[low - first : high - first]
            before += end - begin
