"""Keys and values in int8 as torch and the kernels of devices read them, see `executors/kernels/triton/int8_kv.py`. Cohort's CPU
kernels keep the same bytes in an order of their own (`attention_int8.h`).

    kv [2, num_blocks, kv_heads, bytes]      of each head of a block: codes int8 [block_size, head_dim], then peaks float32
                                             [block_size]
"""

from __future__ import annotations

import functools

import torch

from executors.llm.model.hadamard import Hadamard

LARGEST = 127.0
"""Largest code."""
LEAST = 1e-30
"""A head without a larger magnitude is stored as zeros."""


def views(kv: torch.Tensor, block_size: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes int8 [2, num_blocks, kv_heads, block_size, head_dim] and peaks float32 [2, num_blocks, kv_heads, block_size]
    of a layer's memory; `head_dim` is even."""
    size = block_size * head_dim
    # Not by `unflatten`: where a dimension has one element, it makes up a stride.
    codes = kv.as_strided((*kv.shape[:3], block_size, head_dim), (*kv.stride()[:3], head_dim, 1))
    return codes, kv.view(torch.float32)[..., size // 4 : size // 4 + block_size]


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return queries or keys [..., head_dim] as they are multiplied, float32: turned by Hadamard matrices of the largest power of
    two that divides their size. Twice it changes nothing."""
    size = x.shape[-1] & -x.shape[-1]
    return _hadamard(size, x.device)(x.float().reshape(-1, x.shape[-1])).view(x.shape)


@functools.cache
def _hadamard(size: int, device: torch.device) -> Hadamard:
    return Hadamard(size, device)


def narrowed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round numbers [..., head_dim] of any float dtype to codes int8 and peaks float32 [...]; the peak of a head that is not
    finite is NaN."""
    x = x.float()
    peaks = x.abs().amax(-1)
    peaks = torch.where(peaks < LEAST, 0.0, peaks)
    inverse = torch.where(peaks > 0.0, LARGEST / torch.where(peaks > 0.0, peaks, 1.0), 0.0)
    codes = (x * inverse[..., None]).nan_to_num(0.0).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return codes, torch.where(peaks.isfinite(), peaks, torch.nan)


def widened(codes: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers [..., head_dim] that codes [..., head_dim] and peaks [...] are."""
    return codes.float() * (peaks / LARGEST)[..., None]
