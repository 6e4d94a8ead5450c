"""The paged KV memory: one tensor per layer, and how many blocks there are to be.

    layers[i]   [2, num_blocks, kv_heads, block_size, head_dim]      2: keys, values

All tokens of a block and head lie together, which is what attention reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from executors.errors import ConfigError, OutOfMemory
from executors.facts import ExecutorConfig, KvLayout
from executors.llm.memory import memory_limit, resident_bytes
from executors.llm.models.decoder import KvSpec

CPU_SHARE = 0.6
"""Of the memory that is free once the weights are loaded, the part that KV may take where nobody said how much. The rest
is for activations, other processes of this server and the page cache."""


class KvCache:
    """Keys and values of all sequences. Written by the attention backend and `copy_blocks` only."""

    def __init__(self, spec: KvSpec, num_blocks: int, block_size: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (2, num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
        try:
            self.layers = [lazy_zeros(shape, spec.dtype, spec.device) for _ in range(spec.num_layers)]
        except (MemoryError, RuntimeError) as error:
            raise OutOfMemory(f"no memory for {num_blocks} KV blocks: {str(error).splitlines()[0]}") from None

    def copy_blocks(self, pairs: np.ndarray) -> None:
        """Copy whole blocks in every layer; `pairs` int32 [m, 2] of (source, destination)."""
        if not len(pairs):
            return
        index = torch.from_numpy(pairs.astype(np.int64)).to(self.spec.device)
        for layer in self.layers:
            layer.index_copy_(1, index[:, 1], layer.index_select(1, index[:, 0]))

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.numel() * layer.element_size() for layer in self.layers)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy takes zero pages from the kernel, which become memory when written; torch.zeros writes them all at once.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The outcome of sizing: the layout, and the longest sequence that it can hold."""

    layout: KvLayout
    max_model_len: int
    note: str | None = None


def plan_kv(spec: KvSpec, config: ExecutorConfig, context_length: int, reserve_bytes: int) -> KvPlan:
    """How many blocks to allocate, called once the weights are in memory.

    Never more than `max_num_seqs` sequences of `max_model_len` can use. `reserve_bytes` stay free for activations.
    Raises ConfigError with the numbers when a sequence of the length that was asked for does not fit; where neither the
    length nor the memory was given, the length is reduced instead.
    """
    block_size = config.attention.block_size
    max_len = config.max_model_len or context_length
    bytes_per_block = spec.bytes_per_token() * block_size
    per_sequence = math.ceil(max_len / block_size)
    explicit = config.memory.kv_cache_memory_bytes
    allowed = explicit if explicit is not None else _allowed_bytes(spec.device, config, reserve_bytes)
    fitting = allowed // bytes_per_block
    note = None
    if fitting < per_sequence:
        if explicit is not None or config.max_model_len is not None or fitting < 1:
            raise ConfigError(
                _does_not_fit(
                    explicit, allowed, max_len, per_sequence * bytes_per_block, fitting * block_size
                )
            )
        note = f"max_model_len reduced from {max_len} to {fitting * block_size}: KV memory allows no more"
        max_len = per_sequence = fitting * block_size
    num_blocks = min(fitting, config.max_num_seqs * per_sequence)
    return KvPlan(KvLayout(block_size, num_blocks, bytes_per_block), max_len, note)


def _does_not_fit(explicit: int | None, allowed: int, max_len: int, needed: int, fitting_tokens: int) -> str:
    source = "kv_cache_memory_bytes" if explicit is not None else "free memory allows for KV"
    return (
        f"max_model_len {max_len}: one sequence needs {needed:,} bytes of KV, {source} {allowed:,} bytes, "
        f"enough for {fitting_tokens} tokens; set a smaller max_model_len or more kv_cache_memory_bytes"
    )


def _allowed_bytes(device: torch.device, config: ExecutorConfig, reserve_bytes: int) -> int:
    """What KV may take where no number was given."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(total * config.memory.gpu_memory_utilization) - (total - free) - reserve_bytes)
    available = memory_limit().available
    if config.memory.memory_limit_bytes is not None:
        available = min(available, config.memory.memory_limit_bytes - resident_bytes())
    return max(0, int((available - reserve_bytes) * CPU_SHARE))
