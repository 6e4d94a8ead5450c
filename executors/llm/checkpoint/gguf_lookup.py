"""Unpacks blocks of GGUF's types below 3.5 bits and of NVFP4, and lays their rows out for the kernels.

    type                     of 256 values: code, scales                               rows of kind    bits of a value in memory
    IQ2_XXS, IQ2_XS, IQ2_S   points of 8 values from 8, 25, 43, with signs; 16 scales  lut4-iq2        4.63
    IQ1_S, IQ1_M             points of 8 values from -1, 0, 1, plus or less 1/8        lut4-iq2        4.63
    IQ3_XXS                  points of 4 values from 4, 12, ... 52, 62, with signs     lut4-iq3xxs     4.63
    IQ3_S                    points of 4 values from 1, 3, ... 15, with signs          lut4-iq3s       4.63
    TQ1_0, TQ2_0             -1, 0, 1; one scale                                       Q2_K            3.13
    Q1_0                     of 128 values: -1, 1; one scale                           int4-g128       4.13
    NVFP4                    of 16 values: e2m1; a scale in ue4m3                      lut4-fp4        6

No value is rounded: `quantized_layouts.h` says what a row of each kind holds, and the numbers of a file are in it as they
are. Four bits name each value of a point, so that the kernels need no grid. The formats are those of ggml's `block_*` structs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from executors.gguf.types import BY_NAME
from executors.kernels.device_layouts import BLOCK, FP4, LAYOUTS
from executors.llm.checkpoint.gguf_grids import points

_NEGATIVE = 8
"""Bit of a code whose value is negative."""


@dataclass(frozen=True, slots=True)
class Looked:
    """`codes`: uint8 [blocks, 256], places in the table of a kind. The scale of 16 values is the block's, float32 [blocks, 1],
    times a whole number, int8 [blocks, 16]."""

    codes: torch.Tensor
    scale: torch.Tensor
    small: torch.Tensor


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _words(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes as words, int32 [blocks, n] with the bits of unsigned ones of 16."""
    words = (
        raw.clone(memory_format=torch.contiguous_format).view(dtype).int()
    )  # a view of one block has an odd offset
    return words & 0xFFFF if dtype is torch.int16 else words


def _fields(words: torch.Tensor, shifts: tuple[int, ...], mask: int) -> torch.Tensor:
    """Return fields of each word, the lowest first: [blocks, words * fields]."""
    return (words[:, :, None] >> torch.tensor(shifts, dtype=words.dtype) & mask).flatten(1)


@cache
def _spread_signs() -> torch.Tensor:
    """int64 [256]: bit i of a byte as the sign's bit in byte i."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return (bits * _NEGATIVE).to(torch.uint8).view(torch.int64)[:, 0]


@cache
def _even_signs() -> torch.Tensor:
    """int64 [128]: as `_spread_signs` of seven bits and an eighth that makes the number of negative values even."""
    low = torch.arange(128)
    parity = sum(low >> i & 1 for i in range(7)) % 2
    return _spread_signs()[low | parity << 7]


@cache
def _grid(kind: str) -> torch.Tensor:
    """Codes of a grid's points: int64 (IQ2, eight bytes) or int32 (IQ3, four) [points]."""
    table = torch.tensor(points(kind), dtype=torch.uint8)
    return table.view(torch.int64 if table.shape[1] == 8 else torch.int32)[:, 0]


@cache
def _grid_of_iq1() -> torch.Tensor:
    """int64 [4096]: codes of the points plus 1/8 and then of those less 1/8, in the table of lut4-iq2: eight times -1, 0 or 1
    plus or less 1 is 1 (3), 7 (4) or 9 (5), or less than 0."""
    of_value = {1: 3, 7: 4, 9: 5}
    codes = torch.tensor(
        [
            [(of_value[abs(one)] | (_NEGATIVE if one < 0 else 0)) for one in (8 * (place - 1) + delta for place in (0, 1, 2))]
            for delta in (1, -1)
        ],
        dtype=torch.uint8,
    )  # fmt: skip
    table = torch.tensor(points("IQ1_S"))
    return torch.cat([codes[side][table] for side in (0, 1)]).view(torch.int64)[:, 0]


def _bytes(words: torch.Tensor) -> torch.Tensor:
    """Return words [blocks, n] as uint8 [blocks, 256]."""
    return words.contiguous().view(torch.uint8).flatten(1)


def _odd(scales: torch.Tensor, copies: int = 1) -> torch.Tensor:
    """Return 2 s + 1, int8, each as often as groups of 16 have it."""
    small = (2 * scales + 1).to(torch.int8)
    return small if copies == 1 else small.repeat_interleave(copies, 1)


def _iq2_xxs(blocks: torch.Tensor) -> Looked:
    # d 2 | of 32 values each: points 4, then signs of 7 bits of each point and the scale in the top four 4
    pairs = _words(blocks[:, 2:], torch.int32).view(-1, 8, 2)
    signs = _even_signs()[_fields(pairs[:, :, 1], (0, 7, 14, 21), 127)]
    index = pairs[:, :, 0].contiguous().view(torch.uint8).view(len(blocks), 32).int()
    codes = _grid("IQ2_XXS")[index] | signs
    return Looked(_bytes(codes), _half(blocks, 0) * 0.125, _odd(pairs[:, :, 1] >> 28 & 15, 2))


def _iq2_xs(blocks: torch.Tensor) -> Looked:
    # d 2 | points and signs 64: 9 and 7 bits each | scales of 16 values each 8
    words = _words(blocks[:, 2:66], torch.int16)
    codes = _grid("IQ2_XS")[words & 511] | _even_signs()[words >> 9]
    return Looked(_bytes(codes), _half(blocks, 0) * 0.125, _odd(_fields(blocks[:, 66:], (0, 4), 15)))


def _iq2_s(blocks: torch.Tensor) -> Looked:
    # d 2 | low bits of the points 32 | signs 32 | high two bits of the points 8 | scales of 16 values each 8
    index = blocks[:, 2:34].int() | _fields(blocks[:, 66:74].int(), (0, 2, 4, 6), 3) << 8
    codes = _grid("IQ2_S")[index] | _spread_signs()[blocks[:, 34:66].int()]
    return Looked(_bytes(codes), _half(blocks, 0) * 0.125, _odd(_fields(blocks[:, 74:], (0, 4), 15)))


def _iq3_xxs(blocks: torch.Tensor) -> Looked:
    # d 2 | points 64 | of 32 values each: signs of 7 bits of eight values and the scale in the top four 4
    words = _words(blocks[:, 66:], torch.int32)
    signs = _even_signs()[_fields(words, (0, 7, 14, 21), 127)]
    codes = _grid("IQ3_XXS")[blocks[:, 2:66].int()].view(torch.int64) | signs
    return Looked(_bytes(codes), _half(blocks, 0) * 0.25, _odd(words >> 28 & 15, 2))


def _iq3_s(blocks: torch.Tensor) -> Looked:
    # d 2 | low bits of the points 64 | ninth bits of the points 8 | signs 32 | scales of 32 values each 4
    index = blocks[:, 2:66].int() | _fields(blocks[:, 66:74].int(), tuple(range(8)), 1) << 8
    codes = _grid("IQ3_S")[index].view(torch.int64) | _spread_signs()[blocks[:, 74:106].int()]
    return Looked(_bytes(codes), _half(blocks, 0), _odd(_fields(blocks[:, 106:], (0, 4), 15), 2))


def _iq1_s(blocks: torch.Tensor) -> Looked:
    # d 2 | low bits of the points 32 | of 32 values each 2: three high bits of each point, the scale, the sign of 1/8
    words = _words(blocks[:, 34:], torch.int16)
    high = _fields(words, (0, 3, 6, 9), 7) | (words >> 15).repeat_interleave(4, 1) << 3
    codes = _grid_of_iq1()[blocks[:, 2:34].int() | high << 8]
    return Looked(_bytes(codes), _half(blocks, 0) * 0.125, _odd(words >> 12 & 7, 2))


def _iq1_m(blocks: torch.Tensor) -> Looked:
    # low bits of the points 32 | of each point three high bits and the sign of 1/8 16 | scales of 16 values each, three bits, 8
    # The top four bits of the four words of scales make the float16 of the block.
    words = _words(blocks[:, 48:], torch.int16)
    high = _fields(blocks[:, 32:48].int(), (0, 4), 15)
    codes = _grid_of_iq1()[blocks[:, :32].int() | high << 8]
    tops = (words >> 12 & 15) << torch.tensor((0, 4, 8, 12), dtype=torch.int32)
    scale = tops.sum(1, keepdim=True).to(torch.int32).to(torch.int16).view(torch.float16).float()
    return Looked(_bytes(codes), scale * 0.125, _odd(_fields(words, (0, 3, 6, 9), 7)))


_POINTS: dict[str, tuple[str, Callable[[torch.Tensor], Looked]]] = {
    "IQ2_XXS": ("lut4-iq2", _iq2_xxs), "IQ2_XS": ("lut4-iq2", _iq2_xs), "IQ2_S": ("lut4-iq2", _iq2_s),
    "IQ1_S": ("lut4-iq2", _iq1_s), "IQ1_M": ("lut4-iq2", _iq1_m), "IQ3_XXS": ("lut4-iq3xxs", _iq3_xxs),
    "IQ3_S": ("lut4-iq3s", _iq3_s),
}  # fmt: skip
"""By type: the kind of its rows, and what unpacks its blocks."""


def _valued(codes: torch.Tensor, table: tuple[int, ...]) -> torch.Tensor:
    """Return the values of codes, int8 of their shape."""
    raw = codes.numpy().tobytes().translate(bytes(value & 255 for value in table) * 16)
    return torch.frombuffer(bytearray(raw), dtype=torch.int8).view(codes.shape)


def _ternary(blocks: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the values of TQ1_0 or TQ2_0 plus 1: uint8 [blocks, 256]."""
    if kind == "TQ2_0":
        # codes 64, of 128 values in 32 bytes, two bits each | d 2
        packed = blocks[:, :64].view(-1, 2, 1, 32) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8)[:, None]
        return (packed & 3).flatten(1)
    # Digits in base 3, five a byte: of 160 values in 32 bytes, of 80 in 16; four a byte, of 16 in 4 | d 2
    # A byte is 256/243 of the number that the digits make: times a power of 3, modulo 256, times 3 over 256 is a digit.
    parts = []
    for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = torch.tensor([3**i for i in range(digits)], dtype=torch.int32)[:, None]
        turned = blocks[:, None, begin:end].int() * powers & 255
        parts.append((turned * 3 >> 8).to(torch.uint8).flatten(1))
    return torch.cat(parts, 1)


def _signs(blocks: torch.Tensor) -> torch.Tensor:
    """Return the bits of Q1_0, uint8 [blocks, 128]."""
    # d 2 | bits 16, of eight values the first in the lowest
    return (blocks[:, 2:, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1)


@cache
def _ue4m3() -> torch.Tensor:
    """float32 [256]: half of each number in e4m3 without a sign, since the table has e2m1 twice. 127 and the like are 0."""
    byte = torch.arange(256)
    exponent, fraction = byte >> 3 & 15, (byte & 7).float()
    number = torch.where(exponent == 0, fraction / 512, (1 + fraction / 8) * 2.0 ** (exponent - 7).float())
    return torch.where(byte == 127, 0.0, number * 0.5)


def _nvfp4(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes, uint8 [blocks, 64], and the scales of 16 each, float32 [blocks, 4]."""
    # scales 4 | of 16 values each: codes 8, the first eight in the low halves
    packed = blocks[:, 4:].view(-1, 4, 8)
    return torch.cat((packed & 15, packed >> 4), 2).flatten(1), _ue4m3()[blocks[:, :4].int()]


def unpacked(blocks: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Unpack whole blocks, uint8 [blocks, bytes of a block], of one of `ROW_KINDS`: values int8 [blocks, groups, group size] and
    their scales float32 [blocks, groups, 1]."""
    if kind in _POINTS:
        row_kind, take = _POINTS[kind]
        looked = take(blocks)
        values = _valued(looked.codes, LAYOUTS[row_kind].table).view(-1, 16, 16)
        return values, (looked.scale * looked.small)[:, :, None], None
    if kind == "NVFP4":
        codes, scales = _nvfp4(blocks)
        return _valued(codes, FP4).view(-1, 4, 16), scales[:, :, None], None
    if kind == "Q1_0":
        values = (_signs(blocks) * 2).view(torch.int8) - 1
        return values[:, None], _half(blocks, 0)[:, :, None], None
    values = _ternary(blocks, kind).view(torch.int8) - 1
    return values[:, None], _half(blocks, blocks.shape[1] - 2)[:, :, None], None


def _halves(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes [blocks, columns] as Q4_0 has them: of 32, value i in the low half of byte i, value 16 + i in the high one."""
    pairs = codes.view(len(codes), -1, 2, BLOCK // 2)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)


def kernel_rows(raw: torch.Tensor, kind: str, scale: float = 1.0) -> torch.Tensor:
    """Return rows, uint8 [count, bytes of a row in the file], of one of `ROW_KINDS` in the kind of rows that it names: uint8
    [count, bytes of a row], contiguous. `scale`: a factor of all numbers, of NVFP4 alone."""
    rows, width = len(raw), _BLOCK_BYTES[kind]
    blocks = raw.reshape(-1, width)
    if kind in _POINTS:
        looked = _POINTS[kind][1](blocks)
        parts = [looked.scale.view(torch.uint8), looked.small.view(torch.uint8), _halves(looked.codes)]
    elif kind == "NVFP4":
        codes, scales = _nvfp4(blocks)
        scales = scales * scale
        parts = [scales.view(-1, 2).view(torch.uint8), _halves(codes.view(-1, BLOCK))]
    elif kind == "Q1_0":
        parts = [blocks[:, :2], _halves(_signs(blocks) * 2 + 7)]
    else:
        # Q2_K: scale and minimum of each 16 values 1, codes, d, dmin; d * code - d is exact.
        codes = blocks[:, :64] if kind == "TQ2_0" else _pairs(_ternary(blocks, kind))
        ones, factor = torch.full((len(blocks), 16), 0x11, dtype=torch.uint8), blocks[:, width - 2 :]
        parts = [ones, codes, factor, factor]
    return torch.cat(parts, 1).view(rows, -1)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes of two bits, uint8 [blocks, 256], as Q2_K and TQ2_0 have them."""
    four = codes.view(-1, 2, 4, 32)
    return (four[:, :, 0] | four[:, :, 1] << 2 | four[:, :, 2] << 4 | four[:, :, 3] << 6).flatten(1)


ROW_KINDS = {kind: rows for kind, (rows, _) in _POINTS.items()} | {
    "TQ1_0": "Q2_K", "TQ2_0": "Q2_K", "Q1_0": "int4-g128", "NVFP4": "lut4-fp4",
}  # fmt: skip
"""By type: the kind of STORED_KINDS that its rows are laid out in."""
_BLOCK_BYTES = {kind: BY_NAME[kind].num_bytes for kind in ROW_KINDS}
