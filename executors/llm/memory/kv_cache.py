"""The paged KV memory: one tensor per layer, and the number of blocks.

    layers[i]   [2, num_blocks, kv_heads, block_size, head_dim]      2: keys, values
                [2, num_blocks, kv_heads, bytes]                     in int8: codes, then scales (attention_int8.h)

All tokens of a block and head are contiguous, which is the order in which attention reads them. On a CPU the whole pool is
reserved at the start, and a block becomes resident when it is first written, unless the pool's size was given (`on_demand`).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import threading
from collections.abc import Callable

import numpy as np
import torch

from executors.contract.errors import InvalidInput, OutOfMemory
from executors.contract.faults import no_memory
from executors.kernels.cpu import CpuKernels, huge_pages
from executors.llm.device.table import device_of
from executors.llm.model.caches import KvSpec

_TOUCH_BYTES = 2 << 20


class KvCache:
    """Keys and values of all sequences. Only the attention backend and `copy_blocks` write them."""

    def __init__(self, spec: KvSpec, num_blocks: int, block_size: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape: tuple[int, ...] = (2, num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
        if spec.kv_dtype is torch.int8:
            # Codes, then scales: they go with their block when it is copied, shared or given back.
            shape = (*shape[:3], block_size * spec.bytes_per_cell())
        dtype = spec.stored_dtype
        try:
            # Large pages: the keys of a block and head are one small page, and looking up an address for each took as long
            # as reading them.
            self.layers = [lazy_zeros(shape, dtype, spec.device, True) for _ in range(spec.num_layers)]
        except (MemoryError, RuntimeError) as error:
            why = no_memory(error)
            if why is None:
                raise
            raise OutOfMemory(f"no memory for {num_blocks} KV blocks: {why}") from None

    def copy_blocks(self, pairs: np.ndarray) -> None:
        """Copy whole blocks in every layer; `pairs` int32 [m, 2] of (source, destination)."""
        if not len(pairs):
            return
        index = torch.from_numpy(pairs.astype(np.int64))
        if device_of(self.spec.device).pinned:  # otherwise it would wait for the steps that are out
            index = index.pin_memory()
        index = index.to(self.spec.device, non_blocking=True)
        for layer in map(plain, self.layers):
            layer.index_copy_(1, index[:, 1], layer.index_select(1, index[:, 0]))

    def touch(
        self, kernels: CpuKernels, num_bytes: int, part: tuple[int, int], stop: Callable[[], bool]
    ) -> None:
        """Make about `num_bytes` of the first blocks resident; these blocks are allocated first.

        The system finds and zeroes a page when it is first written, which made prompts after a start a tenth slower. Runs
        beside steps, on a thread with the lowest priority; `part` (i, n): the i-th of n threads.
        """
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        sides = [side for layer in self.layers for side in layer]
        index, threads = part
        per_side = min(num_bytes // len(sides), sides[0].nbytes)
        for begin in range(0, per_side, _TOUCH_BYTES):
            for side in sides[index::threads]:
                if stop():
                    return
                kernels.touch(side.data_ptr() + begin, min(_TOUCH_BYTES, per_side - begin))

    def give_back(self, blocks: np.ndarray) -> None:
        """Return the memory of these blocks to the system: they read as zeros until they are written again.

        `blocks` int32 [n], ascending; does nothing on a device. Raises InvalidInput for a block that does not exist.
        """
        if not len(blocks) or self.spec.device.type != "cpu":
            return
        if blocks[0] < 0 or blocks[-1] >= self.num_blocks:
            raise InvalidInput(f"block {blocks[0]} or {blocks[-1]} is outside 0..{self.num_blocks - 1}")
        breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(blocks, breaks)]
        sides = [side for layer in self.layers for side in layer]
        size = sides[0].nbytes // self.num_blocks
        for side in sides:
            for first, end in runs:
                _drop_pages(side.data_ptr() + first * size, side.data_ptr() + end * size)

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.numel() * layer.element_size() for layer in self.layers)


def _drop_pages(begin: int, end: int) -> None:
    """Release the whole pages between two addresses; they read as zeros afterwards."""
    page = mmap.PAGESIZE
    begin, end = -(-begin // page) * page, end // page * page
    if begin < end:
        # Refused for memory that is locked: it stays then.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def plain(kv: torch.Tensor) -> torch.Tensor:
    """Return KV in a dtype that torch can copy: e4m3 as bytes."""
    return kv.view(torch.uint8) if kv.dtype is torch.float8_e4m3fn else kv


def lazy_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, large_pages: bool = False
) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Pages that become memory when they are written; torch.zeros would write them all at once.
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = huge_pages(num_bytes) if large_pages else np.zeros(num_bytes, np.uint8)
    return torch.from_numpy(memory).view(dtype).view(shape)
