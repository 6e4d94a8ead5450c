"""The tensors of one GGUF file under a family's usual names, memory-mapped, in the order and form of a Hugging Face checkpoint.

Quantized tensors are read as float32, dequantized by rows. The rows of a model whose file has them in another order are put
into the usual one, and those of merged tensors are taken apart: block types quantize each row alone, so that the same holds for
rows of blocks as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from executors.contract.errors import ConfigError
from executors.gguf.types import BY_NAME
from executors.llm.checkpoint.gguf_blocks import DEQUANTIZED, dequantize
from executors.llm.checkpoint.gguf_lookup import ROW_KINDS, kernel_rows
from executors.llm.checkpoint.tensor_file import PIECE, ROWS, TensorFile, beyond_float16, lies_outside
from executors.llm.model.cuts import Range
from executors.llm.model.gguf_names import Stored

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SUPPORTED = (*_PLAIN, *DEQUANTIZED)
"""Types that are read."""


class GgufTensors(TensorFile):
    """The tensors `stored`, which lie in the file `path`."""

    def __init__(self, path: Path, stored: Mapping[str, Stored]) -> None:
        super().__init__(path)
        self._stored = stored
        ends = (one.tensor.offset + one.tensor.num_bytes for one in stored.values())
        if max(ends, default=0) > len(self._map):
            raise ConfigError(f"{path}: truncated since its header was read")

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor under its usual name."""
        return self._stored[name].shape

    def block_type(self, name: str) -> str:
        """Name of the type in which the tensor is stored, such as Q4_K."""
        return self._stored[name].tensor.type

    def dtype(self, name: str) -> torch.dtype:
        """Dtype in which a tensor is read: float32 for blocks. Raises ConfigError for a type that is not supported."""
        one = self._stored[name]
        kind = one.tensor.type
        alone = BY_NAME[kind].values == 1
        in_parts = one.heads or one.rows is not None
        if kind not in SUPPORTED or (in_parts and len(one.shape) == 1 and not alone):
            supported = SUPPORTED if kind not in SUPPORTED else _PLAIN
            raise ConfigError(
                f"{self.path}: tensor {one.tensor.name} has type {kind}; supported: {', '.join(supported)}"
            )
        return torch.float32 if one.plus_one or one.decays else _PLAIN.get(kind, torch.float32)

    def float_dtype(self, name: str) -> torch.dtype | None:
        """Dtype in which a tensor is read, None for a type that is not supported."""
        return self.dtype(name) if self._stored[name].tensor.type in SUPPORTED else None

    def stored_as(self, name: str) -> str | None:
        """See `TensorFile`."""
        kind = self.block_type(name)
        return str(_PLAIN[kind]).removeprefix("torch.") if kind in _PLAIN else kind

    def is_fp8(self, name: str) -> bool:
        """Whether the tensor is e4m3: never."""
        return False

    def num_bytes(self, name: str) -> int:
        """Bytes of the tensor's data in the file."""
        return self._span(name)[1]

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """See `TensorFile`."""
        one = self._stored[name]
        to = target.T if one.turned else target
        narrows = target.dtype is torch.float16 and self.dtype(name) is not torch.float16
        for first, piece in self._pieces(name):
            part = to[first : first + len(piece)] if len(one.shape) > 1 else to
            part.copy_(piece if len(one.shape) < 3 else piece.view(part.shape))
            if narrows and not torch.isfinite(part).all():
                raise beyond_float16(self.path, one.tensor.name)

    def is_finite(self, name: str) -> bool:
        """See `TensorFile`."""
        return all(bool(torch.isfinite(piece).all()) for _, piece in self._pieces(name))

    def equals(self, name: str, other: TensorFile, other_name: str) -> bool:
        """See `TensorFile`."""
        if not isinstance(other, GgufTensors):
            return False
        mine, theirs = self._stored[name], other._stored[other_name]
        if self._form(mine) != self._form(theirs):
            return False
        (here, length), (there, _) = self._span(name), other._span(other_name)
        return self._same_bytes(here, other, there, length)

    def can_map(self, name: str) -> bool:
        """Whether `mapped` is possible: for plain numbers in the usual order."""
        one = self._stored[name]
        dtype = _PLAIN.get(one.tensor.type)
        changed = one.heads or one.plus_one or one.turned or one.decays
        return dtype is not None and not changed and self._span(name)[0] % dtype.itemsize == 0

    def mapped(self, name: str) -> torch.Tensor:
        """See `TensorFile`; `can_map` must be true."""
        self._is_mapped = True
        begin, length = self._span(name)
        dtype = self.dtype(name)
        flat = torch.frombuffer(self._map, dtype=dtype, count=length // dtype.itemsize, offset=begin)
        return flat.view(self.shape(name))

    def rows(
        self, name: str, turned: bool, within: Range | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TensorFile`. Plain numbers come in their dtype, blocks in float32."""
        if turned == self._stored[name].turned:
            yield from self._pieces(name, within)
            return
        whole = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.copy_into(name, whole)
        yield 0, whole.T.contiguous() if turned else whole

    def raw_rows(self, name: str, within: Range | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TensorFile`. Rows of types that the kernels do not take as they are come in the kind that `stored_kind` names."""
        kind, scale = self.block_type(name), self._stored[name].scale
        for first, piece in self._file_rows(name, within):
            yield first, kernel_rows(piece, kind, scale) if kind in ROW_KINDS else piece

    def _file_rows(self, name: str, within: Range | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first row, uint8 [count, bytes of a row]) of a tensor as it is stored, whole rows in the usual order, in pieces.

        A vector is one row, unless the rows of its matrix are in another order: then each element is one. A piece is valid
        until the next is asked for.
        """
        self.dtype(name)
        one = self._stored[name]
        begin, length = self._span(name)
        block = BY_NAME[one.tensor.type]
        vector = len(one.shape) == 1
        height = 1 if vector and not one.heads else one.shape[-1] if one.turned else one.shape[0]
        size = length // height
        group = math.lcm(ROWS, height // one.heads) if one.heads else ROWS
        wide = size // block.num_bytes * block.values * 4  # as float32
        count = max(1, PIECE // wide // group) * group
        for first in range(0, height, count):
            number = min(count, height - first)
            if lies_outside(first, number, within):
                continue
            at = begin + first * size
            piece = torch.frombuffer(self._map, dtype=torch.uint8, count=number * size, offset=at).view(
                number, size
            )
            yield first, _halves_apart(piece, height // one.heads) if one.heads else piece
            self._give_back(at, at + number * size)

    def stored_kind(self, name: str) -> str | None:
        """See `TensorFile`."""
        one = self._stored[name]
        kind = one.tensor.type
        return ROW_KINDS.get(kind, kind) if len(one.shape) == 2 and kind in DEQUANTIZED else None

    def maps_rows(self, name: str) -> bool:
        """See `TensorFile`."""
        one = self._stored[name]
        return self.stored_kind(name) == one.tensor.type and not one.heads and not one.turned

    def mapped_rows(self, name: str) -> torch.Tensor | None:
        """See `TensorFile`."""
        one = self._stored[name]
        if not self.maps_rows(name):
            return None
        self._is_mapped = True
        begin, length = self._span(name)
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=length, offset=begin)
        return raw.view(one.shape[0], -1)

    def _pieces(self, name: str, within: Range | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first row, rows) of the tensor as it is stored, a vector as one piece without rows."""
        one, dtype = self._stored[name], self.dtype(name)
        vectors: list[torch.Tensor] = []
        for first, raw in self._file_rows(name, None if len(one.shape) == 1 else within):
            piece = self._numbers(raw, one)
            if len(one.shape) == 1:
                vectors.append(piece.flatten().clone())
            else:
                yield first, piece
        if vectors:
            yield 0, torch.cat(vectors).to(dtype)

    def _numbers(self, raw: torch.Tensor, one: Stored) -> torch.Tensor:
        plain = _PLAIN.get(one.tensor.type)
        if plain is not None:
            aligned = raw if raw.data_ptr() % plain.itemsize == 0 else raw.clone()
            numbers = aligned.view(plain)
        else:
            block = BY_NAME[one.tensor.type]
            numbers = torch.empty(len(raw), raw.shape[1] // block.num_bytes * block.values)
            dequantize(raw, one.tensor.type, numbers)
            if one.scale != 1.0:
                numbers *= one.scale
        if one.decays:
            return torch.log(-numbers.float())
        return numbers.float() - 1.0 if one.plus_one else numbers

    def _span(self, name: str) -> tuple[int, int]:
        """Return where the data begin, and their length in bytes."""
        one = self._stored[name]
        begin, length = one.tensor.offset, one.tensor.num_bytes
        height = one.tensor.shape[0]
        if one.expert is not None:
            length, height = length // height, one.tensor.shape[1]
            begin += one.expert * length
        if one.rows is not None:
            row = length // height
            begin, length = begin + one.rows[0] * row, (one.rows[1] - one.rows[0]) * row
        return begin, length

    @staticmethod
    def _form(one: Stored) -> tuple[object, ...]:
        return one.tensor.type, one.shape, one.heads, one.plus_one, one.turned, one.scale, one.decays


def _halves_apart(rows: torch.Tensor, head: int) -> torch.Tensor:
    """Return [rows, bytes] in the usual order; `head`: rows of a head, of which there are whole ones. Row 2 j + p of a head
    becomes row p * head / 2 + j."""
    return rows.view(-1, head // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
