"""Rows of weights quantized as files hold them, from random bytes, and what they stand for."""

from __future__ import annotations

import gguf
import numpy as np

# Where a block's float16 numbers lie: its scale, and its minimum.
_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_1": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
# Groups: columns, bits, bytes of the scale, the zero or None for one of their own.
GROUPS = {
    "int4-g64": (64, 4, 2, 8),
    "int4-g128": (128, 4, 2, 8),
    "uint4-g32": (32, 4, 2, None),
    "uint4-g64": (64, 4, 2, None),
    "uint4-g128": (128, 4, 2, None),
    "uint4-f32": (32, 4, 4, None),
    "uint8-f32": (32, 8, 4, None),
}

# Codes of 4 bits that stand for values: columns of a block, its float32 scales, whole numbers for 16 columns each, the values.
LOOKED_UP = {
    "lut4-iq2": (256, 1, 16, (8, 25, 43, 1, 7, 9, 0, 0)),
    "lut4-iq3xxs": (256, 1, 16, (4, 12, 20, 28, 36, 44, 52, 62)),
    "lut4-iq3s": (256, 1, 16, (1, 3, 5, 7, 9, 11, 13, 15)),
    "lut4-fp4": (32, 2, 0, (0, 1, 2, 3, 4, 6, 8, 12)),
}


def block_size(kind: str) -> int:
    """Number of weights in a block."""
    if kind in GROUPS:
        return GROUPS[kind][0]
    if kind in LOOKED_UP:
        return LOOKED_UP[kind][0]
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0])


def block_bytes(kind: str) -> int:
    """Bytes of a block."""
    if kind in GROUPS:
        columns, bits, scale, zero = GROUPS[kind]
        return columns * bits // 8 + scale + (2 if zero is None else 0)
    if kind in LOOKED_UP:
        columns, scales, small, _ = LOOKED_UP[kind]
        return 4 * scales + small + columns // 2
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1])


def plain_bytes(kind: str) -> set[int]:
    """Which bytes of a block are numbers that may not be just any."""
    if kind == "MXFP4":
        return {0}
    if kind in GROUPS:
        _, _, scale, zero = GROUPS[kind]
        return set(range(scale + (2 if zero is None else 0)))
    if kind in LOOKED_UP:
        return set(range(4 * LOOKED_UP[kind][1]))
    return {at + i for at in _HALVES.get(kind, (0,)) for i in (0, 1)}


def random_rows(kind: str, rows: int, columns: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """uint8 [rows, bytes of a row]: any codes and any scales of the second level; those of the first are small numbers of both
    signs, times `scale`, zeros any whole numbers that a format can have."""
    rng = np.random.default_rng(seed)
    size, num_bytes = block_size(kind), block_bytes(kind)
    raw = rng.integers(0, 256, (rows, columns // size * num_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1, num_bytes)
    if kind == "NVFP4":
        blocks[:, :4] = rng.integers(0x20, 0x40, (len(blocks), 4))
        return raw
    if kind == "IQ1_M":  # the top four bits of four words are the scale
        number = (scale * rng.uniform(-0.01, 0.02, (len(blocks), 1))).astype(np.float16).view(np.uint16)
        words = blocks[:, 48:].copy().view(np.uint16) & 0x0FFF
        blocks[:, 48:] = (words | number >> np.array([0, 4, 8, 12], np.uint16) << 12).view(np.uint8)
        return raw
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(110, 130, len(blocks))
        return raw
    if kind in GROUPS:
        _, bits, width, zero = GROUPS[kind]
        dtype = np.float16 if width == 2 else np.float32
        numbers = (scale * rng.uniform(-0.01, 0.02, (len(blocks), 1))).astype(dtype)
        blocks[:, :width] = numbers.view(np.uint8)
        if zero is None:
            low, high = (0, 16) if bits == 4 else (-128, 128)
            zeros = rng.integers(low, high + 1, (len(blocks), 1)).astype(np.float16)
            blocks[:, width : width + 2] = zeros.view(np.uint8)
        return raw
    if kind in LOOKED_UP:
        count = LOOKED_UP[kind][1]
        wide = (scale * rng.uniform(-0.01, 0.02, (len(blocks), count))).astype(np.float32)
        blocks[:, : 4 * count] = wide.view(np.uint8)
        return raw
    for at in _HALVES.get(kind, (0,)):
        number = (scale * rng.uniform(-0.01, 0.02, (len(blocks), 1))).astype(np.float16)
        blocks[:, at : at + 2] = number.view(np.uint8)
    return raw


def dequantized(kind: str, raw: np.ndarray) -> np.ndarray:
    """float32 [rows, columns]: by the `gguf` package, or groups by what they are defined as."""
    if kind in LOOKED_UP:
        return _looked_up(kind, raw)
    if kind == "Q1_0":  # which the package names and does not decode: ggml's dequantize_row_q1_0
        halves = raw.reshape(-1, 18)[:, :2].copy().view(np.float16).astype(np.float32)
        bits = np.unpackbits(raw.reshape(-1, 18)[:, 2:], axis=1, bitorder="little")
        return np.where(bits == 1, halves, -halves).reshape(len(raw), -1)
    if kind not in GROUPS:
        return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))
    _, bits, width, zero = GROUPS[kind]
    blocks = raw.reshape(-1, block_bytes(kind))
    scale = blocks[:, :width].copy().view(np.float16 if width == 2 else np.float32).astype(np.float32)
    zeros, at = np.full_like(scale, 0 if zero is None else zero), width
    if zero is None:
        zeros, at = blocks[:, width : width + 2].copy().view(np.float16).astype(np.float32), width + 2
    codes = blocks[:, at:]
    if bits == 8:
        numbers = codes.view(np.int8).astype(np.float32)
    else:
        pairs = codes.reshape(len(blocks), -1, 1, 16)
        numbers = np.concatenate((pairs & 15, pairs >> 4), 2).reshape(len(blocks), -1).astype(np.float32)
    return np.asarray(scale * (numbers - zeros), np.float32).reshape(len(raw), -1)


def _looked_up(kind: str, raw: np.ndarray) -> np.ndarray:
    columns, count, small, sizes = LOOKED_UP[kind]
    blocks = raw.reshape(-1, block_bytes(kind))
    scales = blocks[:, : 4 * count].copy().view(np.float32)
    if small:
        scales = scales * blocks[:, 4 : 4 + small].view(np.int8).astype(np.float32)
    pairs = blocks[:, 4 * count + small :].reshape(len(blocks), -1, 1, 16)
    codes = np.concatenate((pairs & 15, pairs >> 4), 2).reshape(len(blocks), columns // 16, 16)
    values = np.array([*sizes, *(-one for one in sizes)], np.float32)[codes]
    return np.asarray((scales[:, :, None] * values).reshape(len(raw), -1))
