"""The paged KV memory: a view of it for each layer, and the number of blocks.

    layers[i]   [2, num_blocks, kv_heads, block_size, head_dim]      2: keys, values
                [2, num_blocks, kv_heads, bytes]                     in int8: codes, then scales (attention_int8.h, `parts`)

All tokens of a block and head are contiguous, which is the order in which attention reads them. What lies between two blocks,
two heads, and keys and values, only strides say. There are two placements:

    on a CPU      [block][layer][head][keys, values]: a block is one range of a multiple of 4 KiB (`blocks`), so one copy, one
                  checksum, one read or write of a file and one release do for all layers; what a head of attention reads of
                  a block is in one piece, so it lies on few pages
    on a device   [layer][keys, values][block][head]: a tensor for each layer. A device's memory ends with its process, so no
                  block is sealed or adopted; copies go by index there, and kernels were measured and tuned over this order

On a CPU the whole pool is reserved at the start, and a block becomes resident when it is first written, unless the pool's size
was given (`on_demand`).
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
from executors.llm.memory import int8_kv
from executors.llm.model.caches import KvSpec

_TOUCH_BYTES = 2 << 20
_MADV_REMOVE = 9
"""Linux's number; Python has no name for it."""


class KvCache:
    """Keys and values of all sequences. Only the attention backend and `copy_blocks` write them.

    `blocks` uint8 [num_blocks, bytes of a block]: the range of each block, all layers, padding last; None where each layer is
    a tensor of its own.
    """

    def __init__(
        self, spec: KvSpec, num_blocks: int, block_size: int, memory: np.ndarray | None = None, *,
        by_block: bool | None = None,
    ) -> None:  # fmt: skip
        """`memory`: uint8, begins at a page, zeros; its first num_blocks * spec.bytes_per_block(block_size) bytes hold the
        blocks of a CPU. None: memory of its own. `by_block`: which placement; None: what suits the device.

        Raises OutOfMemory, and ValueError for memory that is too small or begins within a page.
        """
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks: np.ndarray | None = None
        shape: tuple[int, ...] = (spec.num_kv_heads, block_size, spec.head_dim)
        if spec.kv_dtype is torch.int8:
            # Codes, then scales: they go with their block when it is copied, shared or given back.
            shape = (spec.num_kv_heads, block_size * spec.bytes_per_cell())
        try:
            if by_block is True or (by_block is None and spec.device.type == "cpu"):
                self.layers = self._place_by_block(shape, memory)
            else:
                by_layer = (2, num_blocks, *shape)
                self.layers = [
                    lazy_zeros(by_layer, spec.stored_dtype, spec.device, True) for _ in range(spec.num_layers)
                ]
        except (MemoryError, RuntimeError) as error:
            why = no_memory(error)
            if why is None:
                raise
            raise OutOfMemory(f"no memory for {num_blocks} KV blocks: {why}") from None

    def _place_by_block(self, shape: tuple[int, ...], memory: np.ndarray | None) -> list[torch.Tensor]:
        """Set `blocks`; return its views [2, num_blocks, *shape], one for each layer."""
        spec, block_bytes = self.spec, self.spec.bytes_per_block(self.block_size)
        num_bytes = self.num_blocks * block_bytes
        if memory is None:
            # Large pages: what a head reads of a block lies on two or three small pages, and looking up an address for each
            # took as long as reading it.
            memory = lazy_zeros((num_bytes,), torch.uint8, spec.device, True).numpy()
        if len(memory) < num_bytes or memory.ctypes.data % mmap.PAGESIZE:
            raise ValueError(
                f"{num_bytes:,} bytes from the beginning of a page are needed, not {len(memory):,}"
            )
        self.blocks = memory[:num_bytes].reshape(self.num_blocks, block_bytes)
        flat, size = torch.from_numpy(memory[:num_bytes]).view(spec.stored_dtype), spec.stored_dtype.itemsize
        side = math.prod(shape[1:])
        inner = [math.prod(shape[i + 1 :]) for i in range(1, len(shape))]
        strides = (side, block_bytes // size, 2 * side, *inner)
        layer_size = 2 * math.prod(shape)
        return [
            flat.as_strided((2, self.num_blocks, *shape), strides, layer_size * layer)
            for layer in range(spec.num_layers)
        ]

    def parts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return keys and values [2, num_blocks, kv_heads, block_size, head_dim] of a layer, and None or, if those are codes of
        int8, their peaks, see `int8_kv`. Not what Cohort's CPU kernels keep in int8."""
        kv = self.layers[layer]
        if self.spec.kv_dtype is not torch.int8:
            return kv, None
        return int8_kv.views(kv, self.block_size, self.spec.head_dim)

    def copy_blocks(self, pairs: np.ndarray) -> None:
        """Copy whole blocks in every layer; `pairs` int32 [m, 2] of (source, destination)."""
        if not len(pairs):
            return
        index = torch.from_numpy(pairs.astype(np.int64))
        if self.blocks is not None:
            blocks = torch.from_numpy(self.blocks)
            blocks.index_copy_(0, index[:, 1], blocks.index_select(0, index[:, 0]))
            return
        if device_of(self.spec.device).pinned:  # otherwise it would wait for the steps that are out
            index = index.pin_memory()
        index = index.to(self.spec.device, non_blocking=True)
        for layer in map(plain, self.layers):
            layer.index_copy_(1, index[:, 1], layer.index_select(1, index[:, 0]))

    def zero_blocks(self, blocks: np.ndarray) -> None:
        """Write zeros into blocks, int [n], of a cache on a CPU."""
        assert self.blocks is not None
        self.blocks[blocks] = 0

    def touch(
        self, kernels: CpuKernels, num_bytes: int, part: tuple[int, int], stop: Callable[[], bool]
    ) -> None:
        """Make about `num_bytes` of the first blocks resident; these blocks are allocated first.

        The system finds and zeroes a page when it is first written, which made prompts after a start a tenth slower. Runs
        beside steps, on a thread with the lowest priority; `part` (i, n): the i-th of n threads.
        """
        if self.blocks is None:
            return
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        index, threads = part
        base, end = self.blocks.ctypes.data, min(num_bytes, self.blocks.nbytes)
        for begin in range(index * _TOUCH_BYTES, end, threads * _TOUCH_BYTES):
            if stop():
                return
            kernels.touch(base + begin, min(_TOUCH_BYTES, end - begin))

    def give_back(self, blocks: np.ndarray) -> None:
        """Return the memory of these blocks to the system: they read as zeros until they are written again.

        `blocks` int32 [n], ascending; does nothing on a device. Raises InvalidInput for a block that does not exist.
        """
        if not len(blocks) or self.blocks is None:
            return
        if blocks[0] < 0 or blocks[-1] >= self.num_blocks:
            raise InvalidInput(f"block {blocks[0]} or {blocks[-1]} is outside 0..{self.num_blocks - 1}")
        give_back_rows(self.blocks, blocks)

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers, padding included."""
        if self.blocks is not None:
            return self.blocks.nbytes
        return sum(layer.numel() * layer.element_size() for layer in self.layers)


def give_back_rows(memory: np.ndarray, rows: np.ndarray) -> None:
    """Return the memory of these rows, int [n] ascending, n > 0, of `memory` uint8 [., bytes] to the system; rows begin at pages.
    They read as zeros until they are written again."""
    base, size = memory.ctypes.data, memory.shape[1]
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        _drop_pages(base + int(run[0]) * size, base + (int(run[-1]) + 1) * size)


def _drop_pages(begin: int, end: int) -> None:
    """Release the pages between two addresses, multiples of a page; they read as zeros afterwards."""
    call = ctypes.CDLL(None).madvise
    # Memory of a file, such as a memfd, is released there only if it is removed from the file: without its mapping it stays
    # memory. The system refuses that for a process's own memory; and both for memory that is locked: it stays then.
    if call(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_REMOVE):
        call(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


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
