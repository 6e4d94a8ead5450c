"""flash-attn 2, flash-attn 3 and torch's `varlen_attn` as they are documented, in plain torch on any device: the same names, the
same parameters, the same complaints about types, shapes and strides. What a documented call does not read is not read here."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from executors.llm.device.cpu import CpuDevice
from executors.llm.device.cuda import CudaDevice
from executors.llm.kernel_support import kernel_choice

Tensor = torch.Tensor


def paged(
    q: Tensor, k: Tensor, v: Tensor, q_bounds: list[int], lengths: list[int], tables: Tensor, scale: float,
    window: tuple[int, int], softcap: float,
) -> Tensor:  # fmt: skip
    """Bottom-right aligned attention of each sequence, in float32. Rows that are no sequence's are NaN."""
    out = torch.full_like(q, torch.nan)
    shared, page = q.shape[1] // k.shape[2], k.shape[1]
    for i, length in enumerate(lengths):
        begin, end = q_bounds[i], q_bounds[i + 1]
        if begin == end:
            continue
        if length == 0:
            out[begin:end] = 0
            continue
        blocks = tables[i, : -(-length // page)].long()
        keys, values = (
            side[blocks].flatten(0, 1)[:length].float().repeat_interleave(shared, 1) for side in (k, v)
        )
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) * scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        own = torch.arange(length - (end - begin), length, device=q.device)[:, None]
        place = torch.arange(length, device=q.device)
        left, right = window
        hidden = (place > own + right) if right >= 0 else torch.zeros_like(place > own)
        if left >= 0:
            hidden = hidden | (place < own - left)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def demand(holds: bool, complaint: str) -> None:
    if not holds:
        raise RuntimeError(complaint)


def check_operands(q: Tensor, k: Tensor, v: Tensor) -> None:
    demand(q.dtype in (torch.float16, torch.bfloat16), "only fp16 and bf16")
    demand(k.dtype == q.dtype and v.dtype == q.dtype, "query, key and value must have the same dtype")
    demand(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "must have contiguous last dimension")
    demand(
        k.dim() == 4 and k.shape == v.shape and k.shape[3] == q.shape[-1],
        "k must have shape (blocks, page, heads, dim)",
    )
    demand(q.shape[-2] % k.shape[2] == 0, "heads of key must divide heads of query")
    demand(q.shape[-1] <= 256 and q.shape[-1] % 8 == 0, "head dimension at most 256, a multiple of 8")


def check_int32(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    demand(tensor.dtype == torch.int32, f"{name} must have dtype int32")
    demand(tuple(tensor.shape) == shape, f"{name} must have shape {shape}, not {tuple(tensor.shape)}")
    demand(tensor.stride(-1) == 1, f"{name} must be contiguous")


def check_bounds(name: str, bounds: list[int], longest: int, total: int) -> None:
    demand(bounds[0] == 0 and bounds[-1] <= total, f"{name} leaves its rows")
    lengths = [b - a for a, b in pairwise(bounds)]
    demand(
        min(lengths) >= 0 and max(lengths) <= longest, f"{name}: longer than the longest it was said to have"
    )


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Of flash-attn 2."""
    assert block_table is not None and softmax_scale is not None and dropout_p == 0.0
    check_operands(q, k, v)
    demand(q.dim() == 3, "q must have shape (total, heads, dim)")
    demand(k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    n = len(cu_seqlens_q) - 1
    check_int32("cu_seqlens_q", cu_seqlens_q, (n + 1,))
    check_int32("cu_seqlens_k", cu_seqlens_k, (n + 1,))
    check_int32("block_table", block_table, (n, block_table.shape[1]))
    q_bounds, k_bounds = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    check_bounds("cu_seqlens_q", q_bounds, max_seqlen_q, len(q))
    check_bounds("cu_seqlens_k", k_bounds, max_seqlen_k, k_bounds[-1])
    demand(max_seqlen_k <= block_table.shape[1] * k.shape[1], "max_seqlen_k exceeds the block table")
    lengths = [b - a for a, b in pairwise(k_bounds)]
    window = (window_size[0], 0) if causal else window_size
    return paged(q, k, v, q_bounds, lengths, block_table, softmax_scale, window, softcap)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any = None, v: Any = None, rotary_cos: Any = None, rotary_sin: Any = None,
    cache_seqlens: Tensor | None = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
    block_table: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Any = None,
    num_splits: int = 0, return_softmax_lse: bool = False,
) -> Tensor:  # fmt: skip
    """Of flash-attn 2."""
    assert cache_seqlens is not None and block_table is not None and softmax_scale is not None
    check_operands(q, k_cache, v_cache)
    demand(q.dim() == 4, "q must have shape (batch, seqlen, heads, dim)")
    demand(k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    n, queries = q.shape[:2]
    check_int32("cache_seqlens", cache_seqlens, (n,))
    check_int32("block_table", block_table, (n, block_table.shape[1]))
    bounds = [i * queries for i in range(n + 1)]
    window = (window_size[0], 0) if causal else window_size
    lengths = cache_seqlens.tolist()
    out = paged(
        q.flatten(0, 1), k_cache, v_cache, bounds, lengths, block_table, softmax_scale, window, softcap
    )
    return out.view(q.shape)


def flash_3_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any = None, v: Any = None, qv: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, cache_seqlens: Tensor | None = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
    page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None, rotary_seqlens: Any = None, q_descale: Any = None, k_descale: Any = None,
    v_descale: Any = None, softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Any = None,
    num_splits: int = 0, pack_gqa: Any = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Tensor:  # fmt: skip
    """`flash_attn_with_kvcache` of flash-attn 3. It may read whole blocks from 64 tokens on."""
    assert cache_seqlens is not None and page_table is not None and cu_seqlens_q is not None
    assert max_seqlen_q is not None and softmax_scale is not None
    check_operands(q, k_cache, v_cache)
    demand(q.dim() == 3, "q must have shape (total, heads, dim)")
    demand(k_cache.shape[1] < 64, "this one would read what lies behind a sequence")
    n = len(cu_seqlens_q) - 1
    check_int32("cu_seqlens_q", cu_seqlens_q, (n + 1,))
    check_int32("cache_seqlens", cache_seqlens, (n,))
    check_int32("page_table", page_table, (n, page_table.shape[1]))
    bounds = cu_seqlens_q.tolist()
    check_bounds("cu_seqlens_q", bounds, max_seqlen_q, len(q))
    window = (window_size[0], 0) if causal else window_size
    return paged(
        q, k_cache, v_cache, bounds, cache_seqlens.tolist(), page_table, softmax_scale, window, softcap
    )


def varlen_attn(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    seqused_k: Tensor | None = None, block_table: Tensor | None = None, num_splits: int | None = None,
) -> Tensor:  # fmt: skip
    """Of torch.nn.attention.varlen. With splits it leaves rows unwritten, as the one of torch 2.13 does."""
    assert block_table is not None and seqused_k is not None and cu_seq_k is not None and scale is not None
    check_operands(query, key, value)
    demand(key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    demand(enable_gqa or query.shape[1] == key.shape[2], "Try setting enable_gqa=True for GQA.")
    n = len(cu_seq_q) - 1
    check_int32("cu_seq_q", cu_seq_q, (n + 1,))
    check_int32("cu_seq_k", cu_seq_k, (n + 1,))
    check_int32("seqused_k", seqused_k, (n,))
    check_int32("block_table", block_table, (n, block_table.shape[1]))
    bounds = cu_seq_q.tolist()
    check_bounds("cu_seq_q", bounds, max_q, len(query))
    demand(max(seqused_k.tolist()) <= max_k <= block_table.shape[1] * key.shape[1], "max_k does not fit")
    out = paged(query, key, value, bounds, seqused_k.tolist(), block_table, scale, window_size, 0.0)
    if num_splits != 1:
        out[bounds[1] :] = torch.nan
    return out


def flash_2(**changes: Any) -> ModuleType:
    """The package `flash_attn`."""
    members = {
        "__version__": "2.8.3",
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }
    return _module("flash_attn", members | changes)


def flash_3(**changes: Any) -> ModuleType:
    """The module `flash_attn_interface`."""
    return _module("flash_attn_interface", {"flash_attn_with_kvcache": flash_3_with_kvcache} | changes)


def _module(name: str, members: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    return module


class Pretended(CpuDevice):
    """A CPU with a GPU's order of backends and a capability, or a CPU without one."""

    def __init__(self, place: torch.device, capability: tuple[int, int] | None) -> None:
        super().__init__(place)
        self._capability = capability
        if capability is not None:
            self.attention_order = CudaDevice.attention_order  # type: ignore[misc]

    @property
    def capability(self) -> tuple[int, int] | None:
        return self._capability


def pretend(
    monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, varlen: Any = None, capability: tuple[int, int] | None = (9, 0)
) -> None:  # fmt: skip
    """Make it look like a GPU on which these modules are installed, and no others of the kind; nor any `varlen_attn` with block
    tables unless it is given."""
    monkeypatch.setattr(kernel_choice, "device_of", lambda place: Pretended(place, capability))
    here = Pretended(torch.device("cpu"), capability)
    monkeypatch.setattr("executors.llm.executor.find_device", lambda name: here)
    found = {module.__name__: module for module in modules}
    for name in ("flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, found.get(name))
    own = _module("torch.nn.attention.varlen", {"varlen_attn": varlen or (lambda query, key, value: None)})
    monkeypatch.setitem(sys.modules, own.__name__, own)
