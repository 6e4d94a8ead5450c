"""How weights that a file holds quantized lie in a device's memory, so that Triton kernels dequantize them while they multiply.

A weight is scale * (code - offset) - minimum, or scale * (code - zero), or scale * table[code]: the numbers of the file, not
rounded again. Three parts of a code lie apart:

    codes   uint8 [rows, columns / 2]     4 bits, in words: of every 32 columns the bits 4n .. 4n + 3 of word w have column 4n + w
            uint8 [rows, columns / 2]     4 bits, with a table: of every 32 columns byte i has column i in its low half, 16 + i in
                                          its high half
            int8 [rows, columns]          8 bits
    high    uint8 [rows, columns / 8]     the fifth bits of a word's codes, of the one at 4n in bit n
            int16 [rows, columns / 8]     bits 5 and 6, of the one at 4n in bits 2n and 2n + 1

Scales, minima and zeros are [rows, columns / group]. Nested ones are a small whole number each, times a float16 (or float32) for
every 256 columns. Codes of 2 and 3 bits take 4 here. A word has 32 bits, the lowest byte first: shifted alike, all words of a row
have the codes of neighbouring columns where a matrix instruction takes them (`triton/stored_tiles.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

BLOCK = 32
"""Columns that lie together; a matrix has a multiple of it."""
NEST = 256
"""Columns that share the factor of nested scales."""
HIGH_DTYPES = {5: torch.uint8, 6: torch.int16}
"""Of what codes have above their lowest four bits, by their bits."""
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Values of a code of IQ4_NL and IQ4_XS, and of MXFP4 and NVFP4 (twice e2m1)."""
IQ2 = (8, 25, 43, 1, 7, 9, 0, 0, -8, -25, -43, -1, -7, -9, 0, 0)
IQ3_XXS = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
IQ3_S = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)
"""Values of IQ2's types and (the middle three) of IQ1's, and of IQ3's: sizes, and then the same negated."""


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """`bits` of a code: 4, 5, 6 or 8. `group`: columns that share a scale. `nested`: scales and minima are."""

    bits: int
    group: int
    offset: int = 0
    nested: bool = False
    extra: Literal["", "minimum", "zero"] = ""
    table: tuple[int, ...] = ()
    scale_dtype: torch.dtype = torch.float16
    factor_dtype: torch.dtype = torch.float16

    @property
    def by_words(self) -> bool:
        """Whether four bits of a code lie in words."""
        return self.bits < 8 and not self.table

    @property
    def small_dtype(self) -> torch.dtype:
        """Dtype of the whole numbers of nested scales."""
        return torch.uint8 if self.extra else torch.int8


LAYOUTS: dict[str, DeviceLayout] = {
    "Q4_0": DeviceLayout(4, 32, 8),
    "Q4_1": DeviceLayout(4, 32, extra="minimum"),
    "Q5_0": DeviceLayout(5, 32, 16),
    "Q5_1": DeviceLayout(5, 32, extra="minimum"),
    "Q8_0": DeviceLayout(8, 32),
    "Q2_K": DeviceLayout(4, 16, nested=True, extra="minimum"),
    "Q3_K": DeviceLayout(4, 16, 4, nested=True),
    "Q4_K": DeviceLayout(4, 32, nested=True, extra="minimum"),
    "Q5_K": DeviceLayout(5, 32, nested=True, extra="minimum"),
    "Q6_K": DeviceLayout(6, 16, 32, nested=True),
    "IQ4_NL": DeviceLayout(4, 32, table=IQ4),
    "IQ4_XS": DeviceLayout(4, 32, nested=True, table=IQ4),
    "MXFP4": DeviceLayout(4, 32, table=FP4, scale_dtype=torch.float32),
    "int4-g64": DeviceLayout(4, 64, 8),
    "int4-g128": DeviceLayout(4, 128, 8),
    "uint4-g32": DeviceLayout(4, 32, extra="zero"),
    "uint4-g64": DeviceLayout(4, 64, extra="zero"),
    "uint4-g128": DeviceLayout(4, 128, extra="zero"),
    "uint4-f32": DeviceLayout(4, 32, extra="zero", scale_dtype=torch.float32),
    "uint8-f32": DeviceLayout(8, 32, extra="zero", scale_dtype=torch.float32),
    "lut4-iq2": DeviceLayout(4, 16, nested=True, table=IQ2, factor_dtype=torch.float32),
    "lut4-iq3xxs": DeviceLayout(4, 16, nested=True, table=IQ3_XXS, factor_dtype=torch.float32),
    "lut4-iq3s": DeviceLayout(4, 16, nested=True, table=IQ3_S, factor_dtype=torch.float32),
    "lut4-fp4": DeviceLayout(4, 16, table=FP4, scale_dtype=torch.float32),
}
"""By the names of STORED_KINDS (executors/kernels/cpu.py)."""


@dataclass(slots=True)
class DeviceRows:
    """Rows of one format in its layout. Tensors that the layout has not are None."""

    layout: DeviceLayout
    codes: torch.Tensor
    high: torch.Tensor | None
    scales: torch.Tensor
    factors: torch.Tensor | None
    """[rows, columns / 256] of the layout's `factor_dtype`, of nested scales."""
    extras: torch.Tensor | None
    """Minima or zeros."""
    extra_factors: torch.Tensor | None
    arrived: torch.Tensor | None = None
    """int32 [rows / 16], rounded up: counters of programs that share a product, 0 between products."""

    @classmethod
    def empty(cls, kind: str, rows: int, columns: int, device: torch.device) -> DeviceRows:
        """Memory for a matrix. Raises ValueError if `columns` is no multiple of what the format groups."""
        how = LAYOUTS[kind]
        unit = NEST if how.nested else max(BLOCK, how.group)
        if columns % unit:
            raise ValueError(f"rows of {columns} columns are no whole blocks of {unit}")

        def made(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(rows, count, dtype=dtype, device=device)

        groups, nests = columns // how.group, columns // NEST
        codes = made(columns, torch.int8) if how.bits == 8 else made(columns // 2, torch.uint8)
        extras = None
        if how.extra:
            extras = made(groups, how.small_dtype if how.nested else torch.float16)
        return cls(
            how,
            codes,
            made(columns // 8, HIGH_DTYPES[how.bits]) if how.bits in HIGH_DTYPES else None,
            made(groups, how.small_dtype if how.nested else how.scale_dtype),
            made(nests, how.factor_dtype) if how.nested else None,
            extras,
            made(nests, torch.float16) if how.nested and how.extra else None,
            _counters(rows, device) if how.by_words else None,
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those of the numbers that there are."""
        parts = (self.codes, self.high, self.scales, self.factors, self.extras, self.extra_factors)
        return [one for one in parts if one is not None]

    @property
    def rows(self) -> int:
        """Their number."""
        return len(self.codes)

    @property
    def columns(self) -> int:
        """Number of columns of the matrix."""
        return self.codes.shape[1] * (1 if self.layout.bits == 8 else 2)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that they take."""
        return sum(one.nbytes for one in self.tensors)

    def part(self, begin: int, end: int) -> DeviceRows:
        """Return rows `begin` to `end` as views."""
        parts = (self.codes, self.high, self.scales, self.factors, self.extras, self.extra_factors)
        rows = DeviceRows(self.layout, *(None if one is None else one[begin:end] for one in parts))  # type: ignore[arg-type]
        if self.arrived is not None:
            rows.arrived = _counters(end - begin, self.codes.device)
        return rows

    def put(self, part: DeviceRows, begin: int) -> None:
        """Copy rows of the same format as `device_blocks.py` gives them, from row `begin` on. Their codes lie in halves of bytes
        and come into words here: on a device that takes no time, on a CPU ten times as long as a copy."""
        end = begin + part.rows
        to: torch.Tensor
        for to, tensor in zip(self.tensors, part.tensors, strict=True):
            into: torch.Tensor = to[begin:end]
            if self.layout.by_words and to is self.codes:
                into.copy_(in_words(tensor.to(into.device)))
            elif self.layout.by_words and to is self.high:
                into.copy_(high_in_words(tensor.to(into.device), self.layout.bits))
            else:
                into.copy_(tensor)


def _counters(rows: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(-(-rows // 16), dtype=torch.int32, device=device)


def in_words(codes: torch.Tensor) -> torch.Tensor:
    """Return codes uint8 [rows, columns / 2] in words, of which byte i of 32 columns has column i in its low half, 16 + i in its
    high half."""
    first, second = codes.view(len(codes), -1, 2, 2, 4).unbind(3)
    low, high = first & 15 | second << 4, first >> 4 | second & 240
    return torch.stack((low, high), 2).view(len(codes), -1, 4, 4).transpose(2, 3).reshape(len(codes), -1)


def high_in_words(high: torch.Tensor, bits: int) -> torch.Tensor:
    """Return what codes of 5 or 6 `bits` have above their lowest four, as the layout has it, int32 [rows, columns / 8]. `high`:
    int32 [rows, columns / 32], column i's in bit i; or [rows, columns / 16], column i's in bits 2i and 2i + 1."""
    words = torch.arange(4, dtype=torch.int32, device=high.device)
    halves = high.view(len(high), -1, bits - 4, 1)
    packed = torch.zeros(len(high), halves.shape[1], 4, dtype=torch.int32, device=high.device)
    each = bits - 4
    for n in range(8):
        source, place = (halves[:, :, 0], 4 * n) if each == 1 else (halves[:, :, n // 4], 4 * (n % 4))
        packed |= (source >> (place + words) * each & (1 << each) - 1) << n * each
    return packed.view(len(high), -1)


def table_of(layout: DeviceLayout, device: torch.device) -> torch.Tensor | None:
    """Return the values of a layout's codes, int8 [16]; None where a code is a number itself."""
    return torch.tensor(layout.table, dtype=torch.int8, device=device) if layout.table else None


def widened(rows: DeviceRows) -> torch.Tensor:
    """Return float32 [rows, columns] by the definition, the products and the difference in the order of the formats' own."""
    how, count, columns = rows.layout, rows.rows, rows.columns
    if how.bits == 8:
        codes = rows.codes.int()
    elif how.by_words:
        words = rows.codes.view(count, -1, 4, 4, 1)
        codes = torch.cat((words & 15, words >> 4), 4).permute(0, 1, 3, 4, 2).reshape(count, columns).int()
    else:
        halves = rows.codes.view(count, -1, 1, BLOCK // 2)
        codes = torch.cat((halves & 15, halves >> 4), 2).view(count, columns).int()
    if rows.high is not None:
        each = how.bits - 4
        shifts = torch.arange(8, dtype=torch.int32, device=codes.device)[:, None] * each
        above = rows.high.int().view(count, -1, 1, 4) >> shifts & (1 << each) - 1
        codes = codes | above.reshape(count, columns) << 4
    table = table_of(how, codes.device)
    numbers = (codes - how.offset if table is None else table[codes]).float().view(count, -1, how.group)

    def full(small: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
        values = small.float()
        if factors is not None:
            values = factors.float().repeat_interleave(small.shape[1] // factors.shape[1], 1) * values
        return values[:, :, None]

    if how.extra == "zero" and rows.extras is not None:
        numbers = numbers - full(rows.extras, None)
    numbers = full(rows.scales, rows.factors) * numbers
    if how.extra == "minimum" and rows.extras is not None:
        numbers = numbers - full(rows.extras, rows.extra_factors)
    return numbers.view(count, columns)
