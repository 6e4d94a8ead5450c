"""Adapters' weights of a matrix as a device holds them, with what they add by the formula of LoRA in float64."""

from __future__ import annotations

import numpy as np
import torch

from executors.kernels.lora_tiles import PART_WORDS, LoraMatrix, LoraTiles, in_tiles, tile_rows
from executors.llm.lora.device import of_place, part_of

Ranks = list[tuple[int, ...]]
"""Of each adapter, those of the parts."""


def lora_matrix(
    ranks: Ranks, inputs: int, begins: tuple[int, ...], outputs: int, most: int, dtype: torch.dtype, device: torch.device
) -> LoraMatrix:  # fmt: skip
    """Random numbers everywhere, also beyond an adapter's rank, and behind other matrices of the same memory."""
    drawn = torch.Generator().manual_seed(inputs + outputs)
    before, numbers = 64, most * (len(begins) * inputs + outputs)
    stride = before + -(-numbers // 64) * 64
    flat = torch.randn(len(ranks) * stride, generator=drawn).to(dtype).to(device)
    words = 2 * PART_WORDS
    counts = torch.full((len(ranks) * words,), 99, dtype=torch.int32, device=device)
    scales = torch.full((len(ranks) * words,), torch.nan, device=device)
    made = LoraMatrix(
        flat[before:], flat[before + len(begins) * most * inputs :], counts[PART_WORDS:], scales[PART_WORDS:], stride,
        words, most, inputs, outputs, begins,
    )  # fmt: skip
    for place, of_parts in enumerate(ranks):
        own_ranks, own_scales = of_place(made, place)
        for which, rank in enumerate(of_parts):
            own_ranks[which], own_scales[which] = rank, 0.25 + place + 0.5 * which
            for part in part_of(made, place, which):
                part.mul_(inputs**-0.5)
    return made


def tiles_of(places: np.ndarray, device: torch.device, idle: int = 0, size: int | None = None) -> LoraTiles:
    """Of rows with adapters at `places`, and `idle` tiles behind them."""
    size = size or tile_rows(len(places))
    rows, owners = in_tiles(places, size)
    rows = np.concatenate((rows, np.full(idle * size, -1, np.int32)))
    owners = np.concatenate((owners, np.full(idle, -1, np.int32)))
    return LoraTiles(torch.from_numpy(rows).to(device), torch.from_numpy(owners).to(device), size)


def expected(matrix: LoraMatrix, places: np.ndarray, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """float64 [T, outputs], row by row."""
    found, x = out.cpu().double(), x.cpu().double()
    for row, place in enumerate(places.tolist()):
        if place < 0:
            continue
        ranks, scales = of_place(matrix, place)
        for which, (begin, end) in enumerate(zip(matrix.begins, matrix.ends, strict=True)):
            a, b = (part[: int(ranks[which])].cpu().double() for part in part_of(matrix, place, which))
            found[row, begin:end] += float(scales[which]) * ((a @ x[row]) @ b)
    return found
