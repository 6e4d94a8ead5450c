"""The `flash-attn` library over Cohort's paged KV: FlashAttention-2 (Dao, 2023) from the package `flash-attn`, or, if
installed, FlashAttention-3 (Shah et al., 2024) from the module `flash_attn_interface`, which is made for Hopper.

    FlashAttention-2    blocks of 256 tokens and multiples    decode steps: flash_attn_with_kvcache, which splits long keys
                                                              else: flash_attn_varlen_func with block_table, never split
    FlashAttention-3    blocks of less than 64 tokens         flash_attn_with_kvcache for every step

The varlen kernel of FlashAttention-2 gives wrong results if it splits keys of paged sequences (Dao-AILab/flash-attention
#1217, #2550), so splitting is turned off in versions that allow it. FlashAttention-3 copies larger blocks as a whole and
would multiply what an earlier sequence left behind the last token by 0, which gives NaN if it was NaN.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

import torch

from executors.llm.attention.library import (
    LibraryAttention,
    PagedKernel,
    PagedMeta,
    Unsuitable,
    check_block,
    check_model,
    import_library,
    over,
)
from executors.llm.model.caches import KvSpec

NAME = "flash-attn"
FLASH_2_BLOCK = 256
_HOW = "pip install 'cohort-server[flash]'"
FLASH_3_BLOCK = 64
"""Block size in tokens from which FlashAttention-3 may copy whole blocks: the smallest of its key tiles."""


class Flash2:
    """FlashAttention-2, package `flash_attn` 2.6 or later."""

    def __init__(self, module: ModuleType) -> None:
        """Raises Unsuitable if the package has no paged varlen attention."""
        self.name = f"flash-attn {getattr(module, '__version__', '2')}"
        self._varlen: Callable[..., torch.Tensor] = _function(module, "flash_attn_varlen_func", self.name)
        self._decode: Callable[..., torch.Tensor] = _function(module, "flash_attn_with_kvcache", self.name)
        _takes(self._varlen, ("block_table", "softcap"), f"{self.name}: 2.6 or later is needed")
        _takes(self._decode, ("block_table", "softcap"), f"{self.name}: 2.6 or later is needed")
        # Later versions would choose a number of splits, which is what goes wrong.
        splits = "num_splits" in inspect.signature(self._varlen).parameters
        self._unsplit = {"num_splits": 1} if splits else {}

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, meta: PagedMeta, spec: KvSpec, window: int | None
    ) -> torch.Tensor:  # fmt: skip
        """See `PagedKernel`."""
        softcap = spec.softcap or 0.0
        if meta.longest_query == 1:
            return self._decode(
                q.unsqueeze(1), keys, values, cache_seqlens=meta.lengths, block_table=meta.tables,
                softmax_scale=spec.scale, causal=True, window_size=_window(window), softcap=softcap,
            ).squeeze(1)  # fmt: skip
        return self._varlen(
            q, keys, values, meta.q_bounds, meta.k_bounds, meta.longest_query, meta.longest, softmax_scale=spec.scale,
            causal=True, window_size=_window(window), softcap=softcap, block_table=meta.tables, **self._unsplit,
        )  # fmt: skip


class Flash3:
    """FlashAttention-3, module `flash_attn_interface`."""

    def __init__(self, module: ModuleType) -> None:
        """Raises Unsuitable if the module has no paged varlen attention."""
        self.name = "flash-attn 3"
        self._attend: Callable[..., torch.Tensor] = _function(module, "flash_attn_with_kvcache", self.name)
        needed = ("page_table", "cu_seqlens_q", "max_seqlen_q", "softcap")
        _takes(self._attend, needed, f"{self.name}: a later version is needed")

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, meta: PagedMeta, spec: KvSpec, window: int | None
    ) -> torch.Tensor:  # fmt: skip
        """See `PagedKernel`."""
        return self._attend(
            q, keys, values, cache_seqlens=meta.lengths, page_table=meta.tables, cu_seqlens_q=meta.q_bounds,
            max_seqlen_q=meta.longest_query, softmax_scale=spec.scale, causal=True, window_size=_window(window),
            softcap=spec.softcap or 0.0,
        )  # fmt: skip


def flash_attention(spec: KvSpec, block_size: int, capability: tuple[int, int]) -> LibraryAttention:
    """Return the newest installed flash-attn that supports this model; `capability` of the device, such as (9, 0).

    Raises Unsuitable.
    """
    why: list[Unsuitable] = []
    for make in (_third, _second):
        try:
            kernel = make(block_size, capability)
            check_model(spec, capability)
            return over(NAME, kernel)
        except Unsuitable as error:
            why.append(error)
    if any(not error.absent for error in why):
        check_model(spec, capability)  # what none of them supports is said before the size of blocks
    raise next((error for error in why if not error.absent), why[-1])


def _third(block_size: int, capability: tuple[int, int]) -> PagedKernel:
    if capability[0] != 9:
        raise Unsuitable("flash-attn 3 is made for Hopper", absent=True)
    kernel = Flash3(import_library("flash_attn_interface", "flash-attn 3", _HOW))
    if block_size >= FLASH_3_BLOCK:
        raise Unsuitable(f"block_size is {block_size}; flash-attn 3 needs less than {FLASH_3_BLOCK}")
    return kernel


def _second(block_size: int, capability: tuple[int, int]) -> PagedKernel:
    kernel = Flash2(import_library("flash_attn", NAME, _HOW))
    check_block(block_size, FLASH_2_BLOCK)
    return kernel


def _function(module: ModuleType, name: str, package: str) -> Callable[..., torch.Tensor]:
    function: Callable[..., torch.Tensor] | None = getattr(module, name, None)
    if function is None:
        raise Unsuitable(f"{package} has no {name}")
    return function


def _takes(function: Callable[..., torch.Tensor], names: tuple[str, ...], complaint: str) -> None:
    """Raise Unsuitable with `complaint` if a parameter is missing."""
    if not set(names) <= set(inspect.signature(function).parameters):
        raise Unsuitable(complaint)


def _window(window: int | None) -> tuple[int, int]:
    """Return (left, right): how many keys a query sees before and after its own, -1 for all. Causal order is requested
    separately."""
    return (-1, -1) if window is None else (window - 1, 0)
