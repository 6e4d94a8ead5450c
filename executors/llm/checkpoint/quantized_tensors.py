"""Linear layers that a safetensors checkpoint holds in whole numbers, as tensors of the usual names: `X.weight` [rows, columns].

    gptq             qweight int32 [columns / n, rows], qzeros int32 [groups, rows / n], scales [groups, rows], g_idx int32
                     [columns] (optional): n = 32 / bits numbers in a word, the first in the lowest bits. See
                     `IntScheme` for zeros
    awq              qweight int32 [columns, rows / 8], qzeros int32 [groups, rows / 8], scales [groups, rows]: a word has rows
                     0, 2, 4, 6, 1, 3, 5, 7 of eight
    pack-quantized   weight_packed int32 [rows, columns / n rounded up], weight_shape [2], weight_scale [rows, groups],
                     weight_zero_point int32 [rows / n rounded up, groups] or int8 [rows, groups] (optional), weight_g_idx int32
                     [columns] (optional): numbers are stored plus half of their range
    int-quantized    weight int8 [rows, columns], weight_scale and weight_zero_point int8 [rows, groups] or a single number,
                     weight_g_idx (optional)

A weight is scale * (number - zero) with the scale and zero of its column's group: `g_idx` names it, without there are groups of
equal size. Here all numbers count from 0; the zero that is not stored is half of their range. `fp4_weights.py` has those in FP4.

The formats are those that AutoGPTQ, AutoAWQ and compressed-tensors write and read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.fp4_weights import ModelOptFp4Weight, MxFp4Weight, NvFp4Weight
from executors.llm.checkpoint.quantized_weight import FileOf, IntWeight, QuantizedWeight, StoredForm
from executors.llm.checkpoint.tensor_file import PIECE, ROWS, TensorFile, beyond_float16, lies_outside
from executors.llm.model.cuts import Range
from executors.llm.model.quantization import IntScheme

_FLOATS = ("F16", "BF16", "F32")
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word of AWQ each of eight rows is."""


class _Gptq(IntWeight):
    def __init__(self, stem: str, file_of: FileOf, scheme: IntScheme) -> None:
        super().__init__(stem, file_of, scheme)
        assert scheme.bits is not None
        self.bits, per_word = scheme.bits, 32 // scheme.bits
        self._codes = self._part("qweight", ("I32",), (None, None))
        words, self.rows = self._shape(self._codes)
        self.columns = words * per_word
        indexed = self._has("g_idx")
        self._index = self._part("g_idx", ("I32", "I64"), (self.columns,)) if indexed else None
        self._scales = self._part("scales", _FLOATS, (None, self.rows))
        groups = self._shape(self._scales)[0]
        self._zeros = self._part("qzeros", ("I32",), (groups, -(-self.rows // per_word)))
        self._settle(groups, indexed)

    def numbers(self, begin: int, end: int) -> torch.Tensor:
        return _unpacked(self._tensor(self._codes)[:, begin:end].T.contiguous(), self.bits)

    @cached_property
    def zeros(self) -> torch.Tensor:
        if self._scheme.zeros == "half":
            return torch.full((1, 1), self.half, dtype=torch.int16)
        words = self._tensor(self._zeros)
        if self._scheme.zeros == "plus_one":
            # Savers subtract this from the word: a zero of 0 borrows from the number above it, and the carry gives it back.
            words = words + sum(1 << at for at in range(0, 32, self.bits))  # int32, modulo 2**32
        return _one_if_equal(_unpacked(words, self.bits)[:, : self.rows].T.to(torch.int16))

    @property
    def _scales_name(self) -> str:
        return self._scales

    @property
    def _group_name(self) -> str | None:
        return self._index

    def _by_rows(self, values: torch.Tensor) -> torch.Tensor:
        return values.T.contiguous()


class _Awq(IntWeight):
    bits = 4

    def __init__(self, stem: str, file_of: FileOf, scheme: IntScheme) -> None:
        super().__init__(stem, file_of, scheme)
        self._codes = self._part("qweight", ("I32",), (None, None))
        self.columns, words = self._shape(self._codes)
        self.rows = words * 8
        self._scales = self._part("scales", _FLOATS, (None, self.rows))
        groups = self._shape(self._scales)[0]
        self._zeros = self._part("qzeros", ("I32",), (groups, words))
        self._settle(groups, indexed=False)

    def numbers(self, begin: int, end: int) -> torch.Tensor:
        return self._in_order(self._tensor(self._codes)[:, begin // 8 : end // 8])

    @cached_property
    def zeros(self) -> torch.Tensor:
        return _one_if_equal(self._in_order(self._tensor(self._zeros)).to(torch.int16))

    @staticmethod
    def _in_order(words: torch.Tensor) -> torch.Tensor:
        """Unpack int32 [n, rows / 8] to uint8 [rows, n]."""
        codes = _unpacked(words.contiguous(), 4).view(len(words), -1, 8)
        return codes[:, :, list(_AWQ_PLACES)].flatten(1).T.contiguous()

    @property
    def _scales_name(self) -> str:
        return self._scales

    def _by_rows(self, values: torch.Tensor) -> torch.Tensor:
        return values.T.contiguous()


class _Compressed(IntWeight):
    """What "pack-quantized" and "int-quantized" have in common."""

    def _read_scales(self) -> None:
        indexed = self._has("weight_g_idx")
        self._index = self._part("weight_g_idx", ("I32", "I64"), (self.columns,)) if indexed else None
        self._scales = self._part("weight_scale", _FLOATS)
        shape = self._shape(self._scales)
        if math.prod(shape) == 1:
            groups = 1
        elif len(shape) == 2 and shape[0] == self.rows:
            groups = shape[1]
        elif shape == (self.rows,):
            groups = 1
        else:
            raise ConfigError(
                f"{self._path(self._scales)}: tensor {self._scales} has shape {list(shape)}, which does not fit a weight of "
                f"shape {[self.rows, self.columns]}"
            )
        self._settle(groups, indexed)

    def _read_zeros(self) -> None:
        self._zeros: str | None = None
        if not self._has("weight_zero_point"):
            return
        name = self._zeros = self._part("weight_zero_point", ("I8", "I32"))
        shape, per_word = self._shape(name), 32 // self.bits
        packed = self._file(name).type_name(name) == "I32"
        one = not packed and math.prod(shape) == 1
        expected = (-(-self.rows // per_word) if packed else self.rows, self.groups)
        if not one and shape != expected and not (not packed and shape == (self.rows,) and self.groups == 1):
            raise ConfigError(
                f"{self._path(name)}: tensor {name} has shape {list(shape)}; {list(expected)} fits the others"
            )

    @cached_property
    def zeros(self) -> torch.Tensor:
        if self._zeros is None:
            return torch.full((1, 1), self.half, dtype=torch.int16)
        zeros = self._tensor(self._zeros)
        if zeros.dtype is torch.int32:
            # Words of the numbers of several rows.
            numbers = _unpacked(zeros.T.contiguous(), self.bits)[:, : self.rows].T.to(torch.int16)
        else:
            numbers = zeros.to(torch.int16).reshape(1 if zeros.numel() == 1 else self.rows, -1) + self.half
        if int(numbers.min()) < 0 or int(numbers.max()) > 2 * self.half:
            raise ConfigError(
                f"{self._path(self._zeros)}: tensor {self._zeros} has zeros beyond {self.bits} bits: "
                f"{int(numbers.min()) - self.half} to {int(numbers.max()) - self.half}"
            )
        return _one_if_equal(numbers)

    @property
    def _scales_name(self) -> str:
        return self._scales

    def _by_rows(self, values: torch.Tensor) -> torch.Tensor:
        return (
            values.reshape(1, 1).expand(self.rows, 1) if values.numel() == 1 else values.view(self.rows, -1)
        )

    @property
    def _group_name(self) -> str | None:
        return self._index


class _PackQuantized(_Compressed):
    def __init__(self, stem: str, file_of: FileOf, scheme: IntScheme) -> None:
        super().__init__(stem, file_of, scheme)
        self._codes = self._part("weight_packed", ("I32",), (None, None))
        shape = self._part("weight_shape", ("I32", "I64"), (2,))
        self.rows, self.columns = (int(size) for size in self._tensor(shape))
        actual = self._shape(self._codes)
        for bits in (4, 8):
            if self.columns > 0 and actual == (self.rows, -(-self.columns * bits // 32)):
                self.bits = bits
                break
        else:
            raise ConfigError(
                f"{self._path(self._codes)}: tensor {self._codes} has shape {list(actual)}, which does not fit a weight of "
                f"shape {[self.rows, self.columns]} in 4 or 8 bits"
            )
        self._read_scales()
        self._read_zeros()

    def numbers(self, begin: int, end: int) -> torch.Tensor:
        return _unpacked(self._tensor(self._codes)[begin:end], self.bits)[:, : self.columns]


class _IntQuantized(_Compressed):
    bits = 8

    def __init__(self, stem: str, file_of: FileOf, scheme: IntScheme) -> None:
        super().__init__(stem, file_of, scheme)
        self._codes = self._part("weight", ("I8",), (None, None))
        self.rows, self.columns = self._shape(self._codes)
        self._read_scales()
        self._read_zeros()

    def numbers(self, begin: int, end: int) -> torch.Tensor:
        return self._tensor(self._codes)[begin:end].view(torch.uint8) ^ 0x80


FORMS: dict[str, tuple[str, type[QuantizedWeight]]] = {
    "gptq": ("qweight", _Gptq), "awq": ("qweight", _Awq), "pack-quantized": ("weight_packed", _PackQuantized),
    "int-quantized": ("weight", _IntQuantized), "mxfp4-pack-quantized": ("weight_packed", MxFp4Weight),
    "nvfp4-pack-quantized": ("weight_packed", NvFp4Weight), "modelopt-nvfp4": ("weight", ModelOptFp4Weight),
}  # fmt: skip
"""By `IntScheme.form`: the tensor by which a weight is found, and how it is read."""


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack the numbers of contiguous int32 [n, m], the lowest bits first: uint8 [n, m * 32 / bits]."""
    octets = words.view(torch.uint8)
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), 2).flatten(1)


def _one_if_equal(zeros: torch.Tensor) -> torch.Tensor:
    first = zeros[:1, :1]
    return first if bool((zeros == first).all()) else zeros.contiguous()


class QuantizedTensors(TensorFile):
    """The weights whose numbers lie in the file `path`; scales and the like may lie in others."""

    def __init__(self, path: Path, weights: dict[str, QuantizedWeight]) -> None:
        self.path = path  # nothing is mapped beside what the safetensors files map
        self._weights = weights
        self._forms: dict[str, StoredForm | None] = {}

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight, [rows, columns]."""
        return self._weights[name].rows, self._weights[name].columns

    def dtype(self, name: str) -> torch.dtype:
        """Dtype in which a tensor is read: float32."""
        return torch.float32

    def float_dtype(self, name: str) -> torch.dtype | None:
        """Dtype in which a tensor is read."""
        return torch.float32

    def stored_as(self, name: str) -> str | None:
        """See `TensorFile`."""
        return self._weights[name].stored_as

    def is_fp8(self, name: str) -> bool:
        """Whether the tensor is e4m3: never."""
        return False

    def num_bytes(self, name: str) -> int:
        """Bytes of a weight's numbers and zeros. Its scales are tensors of their own."""
        return self._weights[name].num_bytes

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """See `TensorFile`."""
        for begin, rows in self.rows(name, turned=False):
            part = target[begin : begin + len(rows)]
            part.copy_(rows)
            if target.dtype is torch.float16 and not torch.isfinite(part).all():
                raise beyond_float16(self.path, name)

    def is_finite(self, name: str) -> bool:
        """See `TensorFile`."""
        try:
            return bool(torch.isfinite(self._weights[name].scales).all())
        except ConfigError:
            return False  # which is what reading them says

    def equals(self, name: str, other: TensorFile, other_name: str) -> bool:
        """See `TensorFile`."""
        return False

    def can_map(self, name: str) -> bool:
        """Whether `mapped` is possible: never."""
        return False

    def mapped(self, name: str) -> torch.Tensor:
        """See `TensorFile`."""
        raise NotImplementedError

    def rows(
        self, name: str, turned: bool, within: Range | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TensorFile`."""
        if turned:
            whole = torch.empty(self.shape(name))
            self.copy_into(name, whole)
            yield 0, whole.T.contiguous()
            return
        weight = self._weights[name]
        for begin, end in _pieces(weight):
            if not lies_outside(begin, end - begin, within):
                yield begin, weight.dequantized(begin, end)
        weight.release()

    def stored_kind(self, name: str) -> str | None:
        """See `TensorFile`: None where groups are no multiples of 32 columns or, if columns are assigned to them, of different
        sizes."""
        form = self._form(name)
        return None if form is None else form.kind

    def stored_order(self, name: str) -> torch.Tensor | None:
        """See `TensorFile`."""
        form = self._form(name)
        return None if form is None else form.order

    def raw_rows(self, name: str, within: Range | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TensorFile`."""
        weight, form = self._weights[name], self._form(name)
        assert form is not None
        for begin, end in _pieces(weight):
            if not lies_outside(begin, end - begin, within):
                yield begin, weight.raw(begin, end, form)
        weight.release()

    def _form(self, name: str) -> StoredForm | None:
        if name not in self._forms:
            weight = self._weights[name]
            self._forms[name] = weight.form()
            weight.release()
        return self._forms[name]

    def close(self) -> None:
        """Nothing to unmap."""


def _pieces(weight: QuantizedWeight) -> Iterator[tuple[int, int]]:
    """Yield (first row, row behind the last) of pieces of about `PIECE` bytes as float32."""
    count = max(ROWS, PIECE // (4 * weight.columns) // ROWS * ROWS)
    for begin in range(0, weight.rows, count):
        yield begin, min(begin + count, weight.rows)
