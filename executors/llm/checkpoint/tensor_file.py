"""What a file of tensors is to the loader, whatever its format."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from executors.contract.errors import ConfigError
from executors.llm.model.cuts import Range

PIECE = 8 << 20
"""Tensors are read in pieces of about this many bytes, so that only one piece is resident beside the copy. A whole embedding
would be a third of a small model, and twice that when float32 is cast to bfloat16."""
ROWS = 64
"""Pieces of a matrix are multiples of this many rows, because packing works on whole groups of rows."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a file from `begin` on that are those of `target`: as many, of its dtype and in its order."""

    target: torch.Tensor
    begin: int


class TensorFile(ABC):
    """The tensors of one memory-mapped file. Raises ConfigError, which names the file, if it cannot be read.

    Reading a tensor gives its pages back on the way, except for `mapped`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # A private mapping: torch wants writable memory, and nothing is ever written.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                self._identity = _identity(file.fileno())
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ConfigError(f"{path}: cannot be read ({error})") from None
        self._is_mapped = False

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all tensors."""

    @abstractmethod
    def __contains__(self, name: object) -> bool: ...

    def own_name(self, name: str) -> str:
        """Return the name that the file itself has for a tensor, for messages."""
        return name

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Dtype in which a tensor is read. Raises ConfigError, which names the tensor, for a format that is not supported."""

    @abstractmethod
    def float_dtype(self, name: str) -> torch.dtype | None:
        """Dtype of a tensor, None for one that is not a plain float."""

    @abstractmethod
    def stored_as(self, name: str) -> str | None:
        """Name of a weight's dtype or block type in the file (`bfloat16`, `Q4_K`), None for what is no weight, such as a mask."""

    @abstractmethod
    def is_fp8(self, name: str) -> bool:
        """Whether the tensor is e4m3."""

    @abstractmethod
    def num_bytes(self, name: str) -> int:
        """Bytes of the tensor's data in the file."""

    @abstractmethod
    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Copy (and cast, and broadcast) a tensor into `target`.

        Raises ConfigError if float16 cannot represent a number, because infinite weights would make every result an error.
        """

    def pieces(self, name: str, target: torch.Tensor) -> Iterator[FilePiece] | None:
        """Return the pieces of at most `PIECE` bytes that `copy_into` would copy, in the order of the file; None if the file has
        other bytes than the target."""
        return None

    def open_again(self) -> int:
        """Return a descriptor of the file, to read from. Raises ConfigError if another file is there now."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror})") from None
        if _identity(descriptor) != self._identity:
            os.close(descriptor)
            raise ConfigError(f"{self.path}: was replaced while it was read")
        return descriptor

    @abstractmethod
    def is_finite(self, name: str) -> bool:
        """Return whether all numbers of a tensor are finite."""

    @abstractmethod
    def equals(self, name: str, other: TensorFile, other_name: str) -> bool:
        """Return whether two tensors have the same shape, format and bytes."""

    @abstractmethod
    def can_map(self, name: str) -> bool:
        """Whether `mapped` is possible: the file has the tensor's numbers as torch has them."""

    @abstractmethod
    def mapped(self, name: str) -> torch.Tensor:
        """Return the tensor as a view of the file, which stays open for it. Pages are read on first access."""

    @abstractmethod
    def rows(
        self, name: str, turned: bool, within: Range | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first row, rows [count, columns]) of a matrix in pieces; with `turned`, those of its transpose. Pieces that have
        no row of `within` may be left out."""

    def stored_kind(self, name: str) -> str | None:
        """Return the format of a matrix whose rows the file holds quantized and `raw_rows` returns, such as Q4_K; None for
        others."""
        return None

    def raw_rows(self, name: str, within: Range | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first row, uint8 [count, bytes of a row]) of a matrix with a `stored_kind`, in pieces, in the usual order. A
        piece is valid until the next is asked for. Pieces that have no row of `within` may be left out."""
        raise NotImplementedError

    def stored_order(self, name: str) -> torch.Tensor | None:
        """Return which column of the matrix each column of `raw_rows` is, int64 [columns]; None if they are in order."""
        return None

    def maps_rows(self, name: str) -> bool:
        """Whether `mapped_rows` is possible: the file has the rows as `raw_rows` has them."""
        return False

    def mapped_rows(self, name: str) -> torch.Tensor | None:
        """Return all of `raw_rows` as a view of the file, which stays open for it; None if the file has them in another order or
        form."""
        return None

    def _give_back(self, begin: int, end: int) -> None:
        """Drop the pages that end within bytes [begin, end) of the file; the page that contains `end` is still to be read."""
        page = mmap.PAGESIZE
        first = begin // page * page
        length = end // page * page - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def _same_bytes(self, at: int, other: TensorFile, other_at: int, length: int) -> bool:
        """Return whether `length` bytes of two files are equal."""
        for done in range(0, length, PIECE):
            here, there, count = at + done, other_at + done, min(PIECE, length - done)
            if self._map[here : here + count] != other._map[there : there + count]:
                return False
            self._give_back(here, here + count)
            other._give_back(there, there + count)
        return True

    def close(self) -> None:
        """Unmap the file. If a tensor still refers to it, the file is unmapped when that tensor is freed."""
        if not self._is_mapped:
            self._map.close()


def _identity(descriptor: int) -> tuple[int, int]:
    stat = os.fstat(descriptor)
    return stat.st_dev, stat.st_ino


def lies_outside(first: int, count: int, within: Range | None) -> bool:
    """Return whether none of `count` rows from the `first` on is within the range."""
    return within is not None and (first >= within[1] or first + count <= within[0])


def beyond_float16(path: Path, name: str) -> ConfigError:
    """Return the error for a tensor with numbers that float16 cannot represent."""
    return ConfigError(
        f"{path}: tensor {name} has numbers beyond float16; take another --dtype, such as bfloat16"
    )
