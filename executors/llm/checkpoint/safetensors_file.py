"""One safetensors file, memory-mapped. Headers are checked strictly, so that every fault has a specific error.

Format: u64 little-endian header length, a JSON object {name: {dtype, shape, data_offsets: [begin, end]}} with offsets
relative to the data that follows, then the data (https://huggingface.co/docs/safetensors). Cohort has its own reader for two
reasons: it releases pages as soon as they are copied, which keeps resident memory near the size of the result, and its errors
name the file and the fault.

A tensor is copied in pieces of at most `PIECE` bytes of the file.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch

from executors.contract.errors import ConfigError
from executors.gguf.not_whole import fetch_first
from executors.llm.checkpoint.tensor_file import (
    PIECE,
    ROWS,
    FilePiece,
    TensorFile,
    beyond_float16,
    lies_outside,
)
from executors.llm.model.cuts import Range

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
           "F8_E4M3": torch.float8_e4m3fn}  # fmt: skip
_ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2,
               "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip
_INTEGERS = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
             "BOOL": torch.bool, "F8_E8M0": torch.uint8}  # fmt: skip
_MAX_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    whole: str = ""
    """Name of the file's tensor that this is a part of, "" for a whole one."""
    strides: tuple[int, ...] | None = None
    """See `TensorPart`."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Elements of a tensor as a tensor of its own: the first one's index in the order of the file, and the shape. `strides`: how
    many elements of the file lie between neighbours in each dimension; None if they follow each other."""

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def span(self) -> int:
        """Number of elements of the file from the first one to the last."""
        if self.strides is None:
            return math.prod(self.shape)
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))


class SafetensorsFile(TensorFile):
    """The tensors of one file. Raises ConfigError, which names the file, if the file is truncated or corrupt."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._entries, self._data = _read_header(path, self._map)

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def divide(self, parts: Mapping[str, Mapping[str, TensorPart]]) -> None:
        """Replace tensors by parts of them: by a tensor's name its parts by theirs, which lie within it. Nothing is copied, and
        the parts take the place of the whole in the order of the file. Raises ConfigError for a dtype of unknown size."""
        entries: dict[str, _Entry] = {}
        for name, entry in self._entries.items():
            for part, one in parts[name].items() if name in parts else ():
                size = _ITEM_SIZES.get(entry.dtype)
                if size is None:
                    raise ConfigError(
                        f"{self.path}: tensor {name} has dtype {entry.dtype}; supported: {', '.join(_DTYPES)}"
                    )
                begin = entry.begin + one.first * size
                end = begin + one.span * size
                entries[part] = replace(
                    entry, shape=one.shape, begin=begin, end=end, whole=name, strides=one.strides
                )
            if name not in parts:
                entries[name] = entry
        self._entries = entries

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._entries[name].shape

    def own_name(self, name: str) -> str:
        """Return the name that the file has for a tensor, or for what it is a part of."""
        return self._entries[name].whole or name

    def dtype(self, name: str) -> torch.dtype:
        """Dtype of a tensor. Raises ConfigError for one that is neither a plain float nor e4m3."""
        dtype = _DTYPES.get(self._entries[name].dtype)
        if dtype is None:
            kind = self._entries[name].dtype
            raise ConfigError(
                f"{self.path}: tensor {self.own_name(name)} has dtype {kind}; supported: {', '.join(_DTYPES)}"
            )
        return dtype

    def float_dtype(self, name: str) -> torch.dtype | None:
        """Dtype of a tensor, None for one that is not a plain float. e4m3 does not count, because it has a meaning only with
        its scale."""
        dtype = _DTYPES.get(self._entries[name].dtype)
        return None if dtype is torch.float8_e4m3fn else dtype

    def stored_as(self, name: str) -> str | None:
        """See `TensorFile`."""
        dtype = _DTYPES.get(self._entries[name].dtype)
        return None if dtype is None else str(dtype).removeprefix("torch.")

    def is_fp8(self, name: str) -> bool:
        """Whether the tensor is e4m3."""
        return self._entries[name].dtype == "F8_E4M3"

    def type_name(self, name: str) -> str:
        """Name of a tensor's dtype in the file's header, such as I32."""
        return self._entries[name].dtype

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor of a plain float or integer dtype as a view of the file, valid until it is closed; `release` gives
        its pages back."""
        entry = self._entries[name]
        dtype = _INTEGERS.get(entry.dtype)
        return self._view(name) if dtype is None else self._view_as(entry, dtype)

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        entry = self._entries[name]
        self._give_back(self._data + entry.begin, self._data + entry.end)

    def num_bytes(self, name: str) -> int:
        """Bytes of the tensor's data in the file."""
        entry = self._entries[name]
        if entry.strides is not None:
            return math.prod(entry.shape) * _ITEM_SIZES[entry.dtype]
        return entry.end - entry.begin

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Copy (and cast, and broadcast) a tensor into `target` and release the file's pages on the way.

        Raises ConfigError if float16 cannot represent a number, because infinite weights would make every result an error.
        """
        source = self._view(name)
        narrows = target.dtype is torch.float16 and source.dtype is not torch.float16
        if not source.is_contiguous():
            target.copy_(source)
            if narrows and not torch.isfinite(target).all():
                raise beyond_float16(self.path, self.own_name(name))
            self.release(name)
            return
        at = self._data + self._entries[name].begin
        for to, piece in _pieces(target, source):
            to.copy_(piece)
            if narrows and not torch.isfinite(to).all():
                raise beyond_float16(self.path, self.own_name(name))
            self._give_back(at, at + piece.nbytes)
            at += piece.nbytes

    def pieces(self, name: str, target: torch.Tensor) -> Iterator[FilePiece] | None:
        """See `TensorFile`. A cast, a broadcast and strides are the host's."""
        source = self._view(name)
        if source.dtype != target.dtype or source.shape != target.shape or not source.is_contiguous():
            return None
        begins = accumulate(
            (piece.nbytes for _, piece in _pieces(target, source)),
            initial=self._data + self._entries[name].begin,
        )
        return (FilePiece(to, begin) for (to, _), begin in zip(_pieces(target, source), begins, strict=False))

    def is_finite(self, name: str) -> bool:
        """Return whether all numbers of a tensor are finite; releases the file's pages on the way."""
        source = self._view(name)
        if not source.is_contiguous():
            source = source.contiguous()
            self.release(name)
        at = self._data + self._entries[name].begin
        for _, piece in _pieces(source, source):
            if not torch.isfinite(piece.float() if self.is_fp8(name) else piece).all():
                return False
            self._give_back(at, at + piece.nbytes)
            at += piece.nbytes
        return True

    def equals(self, name: str, other: TensorFile, other_name: str) -> bool:
        """Return whether two tensors have the same shape, dtype and bytes; releases the files' pages on the way."""
        if not isinstance(other, SafetensorsFile):
            return False
        mine, theirs = self._entries[name], other._entries[other_name]
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            return False
        if mine.strides is not None or theirs.strides is not None:
            return torch.equal(self.view(name), other.view(other_name))
        here, there = self._data + mine.begin, other._data + theirs.begin
        return self._same_bytes(here, other, there, mine.end - mine.begin)

    def can_map(self, name: str) -> bool:
        """Whether `mapped` is possible: for elements that follow each other."""
        return self._entries[name].strides is None

    def mapped(self, name: str) -> torch.Tensor:
        """Return the tensor as a view of the file, which stays open for it. Pages are read on first access."""
        self._is_mapped = True
        return self._view(name)

    def _view(self, name: str) -> torch.Tensor:
        return self._view_as(self._entries[name], self.dtype(name))

    def _view_as(self, entry: _Entry, dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(entry.shape)
        if not count:
            return torch.empty(entry.shape, dtype=dtype)
        if entry.strides is not None:
            count = (entry.end - entry.begin) // _ITEM_SIZES[entry.dtype]
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._data + entry.begin)
        if entry.strides is not None:
            return flat.as_strided(entry.shape, entry.strides)
        return flat.view(entry.shape)

    def rows(
        self, name: str, turned: bool, within: Range | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first row, rows [count, columns]) of a matrix in pieces and release the file's pages after each. With
        `turned`, yield the transpose in one piece."""
        entry = self._entries[name]
        source, begin = self._view(name), self._data + entry.begin
        if turned:
            yield 0, source.T.contiguous()
            self.release(name)
            return
        row = source[0].nbytes if source.numel() else 1
        count = max(ROWS, PIECE // row // ROWS * ROWS)
        for first in range(0, len(source), count):
            piece = source[first : first + count]
            if lies_outside(first, len(piece), within):
                continue
            if entry.strides is not None:
                yield first, piece.contiguous()
                continue
            yield first, piece
            self._give_back(begin + first * row, begin + first * row + piece.nbytes)
        if entry.strides is not None:
            self.release(name)


def _pieces(target: torch.Tensor, source: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Split `source`, which is contiguous, into pieces of at most `PIECE` bytes in the order of the file, each with its part
    of `target`. A broadcast is one piece, because its source is small."""
    if source.nbytes <= PIECE or source.shape != target.shape:
        yield target, source
        return
    row = source[0].nbytes
    if row > PIECE:
        for i in range(len(source)):
            yield from _pieces(target[i], source[i])
        return
    rows = PIECE // row
    for i in range(0, len(source), rows):
        yield target[i : i + rows], source[i : i + rows]


def _read_header(path: Path, data: mmap.mmap) -> tuple[dict[str, _Entry], int]:
    """Return the entries by name and the offset of the data."""
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 2 <= length <= min(_MAX_HEADER, len(data) - 8):
        raise ConfigError(
            f"{path}: not a safetensors file, or truncated (header of {length} bytes in {len(data)}){fetch_first(data[:64])}"
        )
    try:
        header = json.loads(data[8 : 8 + length])
        if not isinstance(header, dict):
            raise ValueError("not an object")
        entries = {name: _entry(value) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: corrupt safetensors header ({str(error).splitlines()[0]})") from None
    room = len(data) - 8 - length
    for name, entry in entries.items():
        if not 0 <= entry.begin <= entry.end:
            raise ConfigError(f"{path}: corrupt safetensors header (offsets of {name})")
        if entry.end > room:
            raise ConfigError(f"{path}: truncated: tensor {name} ends at byte {entry.end} of {room}")
        size = _ITEM_SIZES.get(entry.dtype)
        if size is not None and math.prod(entry.shape) * size != entry.end - entry.begin:
            raise ConfigError(f"{path}: corrupt safetensors header (size of {name})")
    return entries, 8 + length


def _entry(value: dict) -> _Entry:
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError("a shape or an offset is not a natural number")
    return _Entry(str(value["dtype"]), shape, begin, end)
