"""Dequantizes the blocks of GGUF tensors: uint8 [blocks, bytes of a block] to float32 [blocks, values of a block].

Every value equals that of the format's reference, the Python package `gguf` (of Q1_0 ggml), bit for bit (a NaN may be another
NaN). Integers are exact in float32, and the few products and sums are done in the reference's order. Layouts are those of ggml's
`block_*` structs. The drawings below show a block's fields with their bytes; `d` and `m` are float16. `gguf_lookup.py` has the
types whose codes name points of a grid, and other small ones.

A block unpacks to integer codes of at most eight bits, a scale for each group of codes, and in some types a minimum:
value = scale * code - minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from executors.gguf.types import BY_NAME
from executors.llm.checkpoint import gguf_lookup

_CHUNK = 1 << 18
"""Values dequantized at a time: the steps' results stay in a core's cache."""

Unpacked = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Codes, uint8 or int8 [blocks, groups, group size]; scales, float32 [blocks, groups, 1]; minima of that shape or None."""


def dequantize(raw: torch.Tensor, kind: str, out: torch.Tensor) -> None:
    """Dequantize whole blocks. `raw`: contiguous uint8 of any shape; `out`: contiguous float32 with a value for each.

    `kind` is one of `DEQUANTIZED`.
    """
    block = BY_NAME[kind]
    blocks, values = raw.view(-1, block.num_bytes), out.view(-1, block.values)
    unpack, step = _UNPACK[kind], _CHUNK // block.values
    for begin in range(0, len(blocks), step):
        codes, scales, minima = unpack(blocks[begin : begin + step])
        to = values[begin : begin + step].view(codes.shape)
        to.copy_(codes)
        to.mul_(scales)
        if minima is not None:
            to.sub_(minima)


def unpacked(blocks: torch.Tensor, kind: str) -> Unpacked:
    """Unpack whole blocks, uint8 [blocks, bytes of a block], of one of `DEQUANTIZED`. Codes may be a view of `blocks`."""
    return _UNPACK[kind](blocks)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the float16 at byte `at` of each block, float32 [blocks, 1, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()[:, :, None]


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the low halves of [blocks, groups, bytes], then the high ones: [blocks, groups, 2, bytes]."""
    codes = torch.empty(*packed.shape[:2], 2, packed.shape[2], dtype=torch.uint8)
    torch.bitwise_and(packed, 15, out=codes[:, :, 0])
    torch.bitwise_right_shift(packed, 4, out=codes[:, :, 1])
    return codes


def _pairs(packed: torch.Tensor) -> torch.Tensor:
    """Return the four fields of two bits of [blocks, groups, bytes], the lowest first: [blocks, groups, 4, bytes]."""
    codes = torch.empty(*packed.shape[:2], 4, packed.shape[2], dtype=torch.uint8)
    for i in range(4):
        torch.bitwise_right_shift(packed, 2 * i, out=codes[:, :, i])
    return codes.bitwise_and_(3)


def _bits(packed: torch.Tensor, value: int) -> torch.Tensor:
    """Return the bits of [blocks, bytes], the lowest first, as 0 or `value`: [blocks, 8, bytes]."""
    codes = torch.empty(len(packed), 8, packed.shape[1], dtype=torch.uint8)
    for i in range(8):
        torch.bitwise_right_shift(packed, i, out=codes[:, i])
    codes.bitwise_and_(1)
    return codes if value == 1 else codes.mul_(value)


def _spread(value: int) -> torch.Tensor:
    """Return a table from a byte to its eight bits, each as a byte of 0 or `value`: int64 [256]."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return (bits * value).to(torch.uint8).view(torch.int64)[:, 0]


_SIXTEENS = _spread(16)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Return bit i of the four bytes [blocks, 4] as 0 or 16 in column i: uint8 [blocks, 32]."""
    return _SIXTEENS[packed.int()].view(torch.uint8)


def _less(codes: torch.Tensor, offset: int) -> torch.Tensor:
    """Subtract in place and return the result as int8."""
    return codes.view(torch.int8).sub_(offset)


def _q4_0(blocks: torch.Tensor) -> Unpacked:
    # d 2 | codes 16: value i is in the low half of byte i, value 16 + i in its high half; stored plus 8
    codes = _nibbles(blocks[:, None, 2:]).view(-1, 1, 32)
    return _less(codes, 8), _half(blocks, 0), None


def _q4_1(blocks: torch.Tensor) -> Unpacked:
    # d 2 | m 2 | codes 16
    return _nibbles(blocks[:, None, 4:]).view(-1, 1, 32), _half(blocks, 0), -_half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> Unpacked:
    # d 2 | fifth bits 4 | codes 16, stored plus 16
    codes = _nibbles(blocks[:, None, 6:]).view(-1, 32).bitwise_or_(_fifth_bits(blocks[:, 2:6]))
    return _less(codes.view(-1, 1, 32), 16), _half(blocks, 0), None


def _q5_1(blocks: torch.Tensor) -> Unpacked:
    # d 2 | m 2 | fifth bits 4 | codes 16
    codes = _nibbles(blocks[:, None, 8:]).view(-1, 32).bitwise_or_(_fifth_bits(blocks[:, 4:8]))
    return codes.view(-1, 1, 32), _half(blocks, 0), -_half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> Unpacked:
    # d 2 | codes 32, signed
    return blocks.view(torch.int8)[:, None, 2:], _half(blocks, 0), None


def _q2_k(blocks: torch.Tensor) -> Unpacked:
    # scale, and minimum in the high half, of 16 values each 16 | codes 64, of 128 values in 32 bytes | d 2 | dmin 2
    codes = _pairs(blocks[:, 16:80].view(-1, 2, 32)).view(-1, 16, 16)
    small = _nibbles(blocks[:, None, :16]).view(-1, 2, 16, 1).float()
    return codes, _half(blocks, 80) * small[:, 0], _half(blocks, 82) * small[:, 1]


def _q3_k(blocks: torch.Tensor) -> Unpacked:
    # high bits 32 | low two bits 64, of 128 values in 32 bytes | scales of 16 values each 12 | d 2
    # The value is the low bits, less 4 where the high bit is not set.
    low, high = _pairs(blocks[:, 32:96].view(-1, 2, 32)), _bits(blocks[:, :32], 4)
    codes = _less(low.view(-1, 8, 32).add_(high), 4).view(-1, 16, 16)
    # Six bits a scale, plus 32. Low four: of scales 0..7 in the low halves of bytes 0..7, of 8..15 in the high halves. High
    # two: of scales 4i + j in bits 2i of byte 8 + j.
    scales = _nibbles(blocks[:, None, 96:104]).view(-1, 16)
    scales |= _pairs(blocks[:, None, 104:108]).view(-1, 16) << 4
    return codes, _half(blocks, 108) * _less(scales, 32)[:, :, None].float(), None


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack the twelve bytes of Q4_K and Q5_K: six bits each, float32 [blocks, 8, 1].

    Of groups 0..3 the scales are in bytes 0..3 and the minima in 4..7. Of groups 4..7 the low four bits are in the halves of
    bytes 8..11, and the high two on top of bytes 0..7.
    """
    first, last = packed[:, :8], packed[:, 8:]
    high = first >> 2 & 0x30
    scales = torch.cat((first[:, :4] & 63, last & 15 | high[:, :4]), 1)
    minima = torch.cat((first[:, 4:] & 63, last >> 4 | high[:, 4:]), 1)
    return scales[:, :, None].float(), minima[:, :, None].float()


def _q4_k(blocks: torch.Tensor) -> Unpacked:
    # d 2 | dmin 2 | scales and minima of 32 values each 12 | codes 128, of 64 values in 32 bytes
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return codes, _half(blocks, 0) * scales, _half(blocks, 2) * minima


def _q5_k(blocks: torch.Tensor) -> Unpacked:
    # d 2 | dmin 2 | scales and minima 12 | fifth bits 32, of group g in bit g | codes 128
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32).bitwise_or_(_bits(blocks[:, 16:48], 16))
    return codes, _half(blocks, 0) * scales, _half(blocks, 2) * minima


def _q6_k(blocks: torch.Tensor) -> Unpacked:
    # low halves 128, of 128 values in 64 bytes | high two bits 64, of 128 values in 32 bytes | signed scales of 16 each 16 | d 2
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 256)
    high = _pairs(blocks[:, 128:192].view(-1, 2, 32)).view(-1, 256)
    codes = _less(high.bitwise_left_shift_(4).bitwise_or_(low), 32).view(-1, 16, 16)
    scales = blocks[:, 192:208].view(torch.int8)[:, :, None].float()
    return codes, _half(blocks, 208) * scales, None


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values of a code of IQ4_NL and IQ4_XS, and of MXFP4 (twice e2m1)."""


def _both_halves(values: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return the values of a byte's low half and of its high half, as tables of 256 signed bytes."""
    signed = bytes(value & 255 for value in values)
    return signed * 16, bytes(one for one in signed for _ in range(16))


_IQ4_TABLES, _FP4_TABLES = _both_halves(_IQ4), _both_halves(_FP4)


def _looked_up(packed: torch.Tensor, tables: tuple[bytes, bytes]) -> torch.Tensor:
    """Return the table's values for the low halves of [blocks, groups, 16], then for the high ones: int8 [blocks, groups, 32]."""
    raw = packed.contiguous().numpy().tobytes()
    # bytes.translate looks a byte up in half a nanosecond, torch's gather in several.
    halves = [
        torch.frombuffer(bytearray(raw.translate(table)), dtype=torch.int8).view(packed.shape)
        for table in tables
    ]
    return torch.cat(halves, 2)


def _iq4_nl(blocks: torch.Tensor) -> Unpacked:
    # d 2 | codes 16
    return _looked_up(blocks[:, None, 2:], _IQ4_TABLES), _half(blocks, 0), None


def _iq4_xs(blocks: torch.Tensor) -> Unpacked:
    # d 2 | high two bits of the scales 2 | low four bits of the scales, of 32 values each, plus 32, 4 | codes 128
    high = (
        blocks[:, 2:4].contiguous().view(torch.int16).int() >> torch.arange(0, 16, 2, dtype=torch.int32) & 3
    )
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), 2).view(-1, 8)
    scales = (low | high.to(torch.uint8) << 4).to(torch.int8) - 32
    codes = _looked_up(blocks[:, 8:].view(-1, 8, 16), _IQ4_TABLES)
    return codes, _half(blocks, 0) * scales[:, :, None].float(), None


def _mxfp4(blocks: torch.Tensor) -> Unpacked:
    # exponent 1 | codes 16: the scale is half of 2 to the exponent less 127, since the table has the values twice
    exponents = blocks[:, :1].int()
    # The smallest two are below the normal numbers.
    bits = torch.where(exponents < 2, 0x200000 << exponents, (exponents - 1) << 23)
    return _looked_up(blocks[:, None, 1:], _FP4_TABLES), bits.view(torch.float32)[:, :, None], None


_UNPACK: dict[str, Callable[[torch.Tensor], Unpacked]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k,
    "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
    **{kind: partial(gguf_lookup.unpacked, kind=kind) for kind in gguf_lookup.ROW_KINDS},
}  # fmt: skip

DEQUANTIZED = tuple(_UNPACK)
"""Names of the types that `dequantize` supports."""
