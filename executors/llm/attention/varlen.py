"""torch's own `varlen_attn` (torch.nn.attention.varlen, with block tables since torch 2.12) over Cohort's paged KV. The
kernel is the FlashAttention-2 that torch is built with, so blocks are multiples of 256 tokens.

Keys are never split: with splits the kernel leaves rows of paged sequences unwritten (pytorch/pytorch#194167). A step of few
long sequences therefore uses only few of the device's processors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from executors.llm.attention.library import (
    LibraryAttention,
    PagedMeta,
    Unsuitable,
    check_block,
    check_model,
    import_library,
    over,
)
from executors.llm.model.caches import KvSpec

NAME = "varlen"
BLOCK = 256
_NEEDED = {"scale", "window_size", "enable_gqa", "seqused_k", "block_table", "num_splits"}


class Varlen:
    """A `PagedKernel`."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        """`function` is `varlen_attn`."""
        self.name = f"varlen (torch {torch.__version__})"
        self._attend = function

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, meta: PagedMeta, spec: KvSpec, window: int | None
    ) -> torch.Tensor:  # fmt: skip
        """See `PagedKernel`."""
        return self._attend(
            q, keys, values, meta.q_bounds, meta.k_bounds, meta.longest_query, meta.longest, scale=spec.scale,
            # (-1, 0) means causal.
            window_size=(-1 if window is None else window - 1, 0), enable_gqa=spec.num_heads != spec.num_kv_heads,
            seqused_k=meta.lengths, block_table=meta.tables, num_splits=1,
        )  # fmt: skip


def varlen_attention(spec: KvSpec, block_size: int, capability: tuple[int, int]) -> LibraryAttention:
    """Make the backend if this torch has `varlen_attn` with block tables; `capability` of the device. Raises Unsuitable."""
    complaint = f"torch {torch.__version__} has no varlen_attn with block_table; 2.12 or later is needed"
    try:
        module = import_library("torch.nn.attention.varlen", "torch's varlen_attn", "torch 2.12")
    except Unsuitable:
        raise Unsuitable(complaint, absent=True) from None
    if not set(inspect.signature(module.varlen_attn).parameters) >= _NEEDED:
        raise Unsuitable(complaint, absent=True)
    if spec.softcap is not None:
        raise Unsuitable("it does not support softcap, which this model needs")
    check_model(spec, capability)
    check_block(block_size, BLOCK)
    return over(NAME, Varlen(module.varlen_attn))
