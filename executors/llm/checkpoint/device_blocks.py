"""Lays rows that a file holds quantized out for Triton kernels: see `kernels/device_layouts.py`.

The numbers come from `gguf_blocks`, which unpacks a block to codes, scales and minima. Of nested scales it gives the product with
their factor; a block whose factors are 1 has the whole numbers alone.
"""

from __future__ import annotations

import torch

from executors.gguf.types import BY_NAME
from executors.kernels.device_layouts import BLOCK, LAYOUTS, DeviceLayout, DeviceRows
from executors.llm.checkpoint.gguf_blocks import unpacked

_FACTORS = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
"""Bytes of a block at which the factors of its scales, and of its minima, begin: float16."""


def device_rows(raw: torch.Tensor, kind: str) -> DeviceRows:
    """Return rows, uint8 [count, bytes of a row] in a format of STORED_KINDS, in its layout, on the CPU."""
    if kind in BY_NAME:
        return _blocks(raw, kind)
    return _looked_up(raw, kind) if kind.startswith("lut4-") else _groups(raw, kind)


def _blocks(raw: torch.Tensor, kind: str) -> DeviceRows:
    how, rows = LAYOUTS[kind], len(raw)
    blocks = raw.reshape(-1, BY_NAME[kind].num_bytes)
    factors: list[torch.Tensor] = []
    if how.nested:
        blocks = blocks.clone()
        one = torch.ones(1, dtype=torch.float16).view(torch.uint8)
        for at in _FACTORS[kind]:
            factors.append(blocks[:, at : at + 2].contiguous().view(torch.float16).view(rows, -1))
            blocks[:, at : at + 2] = one
    codes, scales, minima = unpacked(blocks, kind)
    small = how.small_dtype if how.nested else how.scale_dtype
    return DeviceRows(
        how,
        *_codes(_numbers(codes, how).reshape(rows, -1), how),
        scales.to(small).view(rows, -1),
        factors[0] if how.nested else None,
        None if minima is None else minima.to(small).view(rows, -1),
        factors[1] if len(factors) > 1 else None,
    )


def _groups(raw: torch.Tensor, kind: str) -> DeviceRows:
    """Groups of quantized_layouts.h: the scale, the zero if it is of its own, and the codes."""
    how, rows = LAYOUTS[kind], len(raw)
    width = how.scale_dtype.itemsize
    at = width + (2 if how.extra else 0)
    size = at + how.group * how.bits // 8
    blocks = raw.reshape(-1, size)
    scales = blocks[:, :width].contiguous().view(how.scale_dtype).view(rows, -1)
    zeros = blocks[:, width:at].contiguous().view(torch.float16).view(rows, -1) if how.extra else None
    # The codes of 32 columns lie as they do in the layout.
    codes = blocks[:, at:].contiguous().view(rows, -1)
    if how.bits == 8:
        codes = codes.view(torch.int8)
    return DeviceRows(how, codes, None, scales, None, zeros, None)


def _looked_up(raw: torch.Tensor, kind: str) -> DeviceRows:
    """Codes of quantized_layouts.h that stand for values: the scales, and the codes."""
    how, rows = LAYOUTS[kind], len(raw)
    if how.nested:  # for 256 columns: a float32, 16 bytes, codes 128
        blocks = raw.reshape(-1, 148)
        factors = blocks[:, :4].contiguous().view(torch.float32).view(rows, -1)
        scales = blocks[:, 4:20].contiguous().view(torch.int8).view(rows, -1)
        return DeviceRows(how, blocks[:, 20:].contiguous().view(rows, -1), None, scales, factors, None, None)
    blocks = raw.reshape(-1, 24)  # for 32 columns: two float32, codes 16
    scales = blocks[:, :8].contiguous().view(torch.float32).view(rows, -1)
    return DeviceRows(how, blocks[:, 8:].contiguous().view(rows, -1), None, scales, None, None, None)


def _numbers(codes: torch.Tensor, how: DeviceLayout) -> torch.Tensor:
    """Codes as the layout counts them: from 0 on, or places in its table; those of 8 bits stay."""
    if how.bits == 8:
        return codes
    if how.table:
        places = torch.zeros(256, dtype=torch.uint8)
        for place, value in reversed(list(enumerate(how.table))):
            places[value + 128] = place
        return places[codes.int() + 128]
    return (codes.view(torch.int8) + how.offset).view(torch.uint8)


def _codes(numbers: torch.Tensor, how: DeviceLayout) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pack numbers [rows, columns]: codes and, of 5 and 6 bits, what is above the low four."""
    if how.bits == 8:
        return numbers, None
    rows, columns = numbers.shape
    halves = numbers.view(rows, columns // BLOCK, 2, BLOCK // 2)
    low = halves & 15
    codes = (low[:, :, 0] | low[:, :, 1] << 4).reshape(rows, -1)
    if how.bits == 4:
        return codes, None
    each = how.bits - 4
    above = (numbers >> 4).view(rows, -1, BLOCK // each).long()
    shifts = torch.arange(BLOCK // each) * each
    high = (above << shifts).sum(2)
    # The top bit of 32 is the sign.
    return codes, torch.where(high >= 2**31, high - 2**32, high).to(torch.int32)
