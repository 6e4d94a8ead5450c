"""Rows of weights quantized as GGUF files hold them, from random bytes, and what they stand for."""

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
}


def block_size(kind: str) -> int:
    """Number of weights in a block."""
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0])


def random_rows(kind: str, rows: int, columns: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """uint8 [rows, bytes of a row]: any codes and any scales of the second level; those of the first are small numbers of both
    signs, times `scale`."""
    rng = np.random.default_rng(seed)
    size, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (rows, columns // size * num_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1, num_bytes)
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(110, 130, len(blocks))
        return raw
    for at in _HALVES.get(kind, (0,)):
        number = (scale * rng.uniform(-0.01, 0.02, (len(blocks), 1))).astype(np.float16)
        blocks[:, at : at + 2] = number.view(np.uint8)
    return raw


def dequantized(kind: str, raw: np.ndarray) -> np.ndarray:
    """float32 [rows, columns], by the `gguf` package."""
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))
