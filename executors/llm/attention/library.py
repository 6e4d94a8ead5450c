"""`LibraryAttention`: attention over paged KV by the kernel of a library (see `flash.py`, `varlen.py`).

    begin     once a step: lengths, block tables and cells go to the device in one copy
    attend    per layer: the kernel, over keys and values that were written to their cells before

A block [kv_heads, block_size, head_dim] of the cache is passed with its first two dimensions swapped: libraries accept any
strides as long as a head's elements are contiguous.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from executors.kernels import triton_build
from executors.llm.attention.key_pieces import WORDS
from executors.llm.attention.packed import StepMeta, StoredKv
from executors.llm.device.table import device_of
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays

DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256
_ALIGN = 4
"""Alignment of parts of the packed array, in int32 words: kernels read 16 bytes at a time."""


class Unsuitable(Exception):
    """The reason why a backend is unavailable, in one line. `absent`: the package is not installed."""

    def __init__(self, why: str, absent: bool = False) -> None:
        super().__init__(why)
        self.absent = absent


@dataclass(frozen=True, slots=True)
class PagedMeta:
    """A step of n items and T tokens as kernels see it, int32 on the device.

    `cells` [T]: block * block_size + place in it, where each token's key and value go. `q_bounds`, `k_bounds` [n + 1]: bounds
    of the items among the queries, and among the keys as if those were contiguous. `lengths` [n]: tokens of each item, this
    step's included. `tables` [n, blocks of the longest]. `longest_query` and `longest`: the largest number of queries and the
    largest length.
    """

    cells: torch.Tensor
    q_bounds: torch.Tensor
    k_bounds: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    longest_query: int
    longest: int


class PagedKernel(Protocol):
    """A library's kernel."""

    name: str
    """Name with version, for `status()`."""

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, meta: PagedMeta, spec: KvSpec, window: int | None
    ) -> torch.Tensor:  # fmt: skip
        """Compute causal attention [T, heads, head_dim] of `q`, contiguous, over `keys` and `values`, strided views [blocks,
        block_size, kv_heads, head_dim]. `window`: tokens that a token sees, itself included; None for all."""


class LibraryAttention:
    """An `AttentionBackend` over a `PagedKernel`."""

    def __init__(self, name: str, kernel: PagedKernel) -> None:
        """`name`: the name in the configuration."""
        self.name = name
        self.note = f"attention: {kernel.name}"
        self.kernel = kernel

    def begin(self, step: StepArrays, cache: KvCache) -> LibraryAttend:
        """See `AttentionBackend`."""
        block_size = cache.block_size
        lengths = step.pos_offsets + step.q_lens
        longest = int(lengths.max(initial=1))
        blocks = step.tables[step.item_of_row, step.positions // block_size].astype(np.int64)
        tables = step.tables[:, : -(-longest // block_size)]
        if (window := _window_of_all(cache.spec)) is not None:
            firsts = np.maximum(0, step.pos_offsets + 1 - window) // block_size
            columns = np.maximum(np.arange(tables.shape[1]), firsts[:, None])
            tables = np.take_along_axis(tables, columns, 1)
        parts = (
            blocks * block_size + step.positions % block_size, _bounds(step.q_lens), _bounds(lengths), lengths, tables,
        )  # fmt: skip
        cells, q_bounds, k_bounds, ends, table = pack(parts, cache.spec.device)
        longest_query = int(step.q_lens.max(initial=1))
        meta = PagedMeta(cells, q_bounds, k_bounds, ends, table, longest_query, longest)
        return LibraryAttend(meta, cache, self.kernel)


class PackedLibraryAttention(LibraryAttention):
    """A `LibraryAttention` that is also a `PackedAttention`: it reads a step on the device, so that the step can be captured.
    It needs Triton, because padded rows must not be written and no torch operation skips rows without synchronising with the
    host."""

    queries_per_tile = 1 << 30
    """One tile for each item: the library divides queries itself."""

    def tiles(self, q_lens: np.ndarray, pos_offsets: np.ndarray, items: np.ndarray) -> np.ndarray:
        """See `PackedAttention`."""
        return np.stack((items, np.zeros_like(items)), 1).astype(np.int32)

    def most_pieces(self, rows: int, longest: int) -> int:
        """See `PackedAttention`. The library cuts keys itself."""
        return 0

    def pieces(self, lengths: np.ndarray) -> np.ndarray:
        """See `PackedAttention`."""
        return np.empty((0, WORDS), np.int32)

    def pieces_last(self, lengths: np.ndarray) -> int:
        """See `PackedAttention`."""
        return 0

    def most_tile_pieces(self, tiles: int, longest: int) -> int:
        """See `PackedAttention`."""
        return 0

    def tile_pieces(self, tiles: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray) -> np.ndarray:
        """See `PackedAttention`."""
        return np.empty((0, WORDS), np.int32)

    def reserve(self, pieces: int, tile_pieces: int, cache: KvCache) -> None:
        """See `PackedAttention`. The library allocates memory itself."""

    def bind(self, meta: StepMeta, cache: KvCache) -> LibraryAttend:
        """See `PackedAttention`."""
        if meta.decodes is None:  # a token each
            q_lens, longest_query = torch.ones_like(meta.lengths), 1
        else:  # how many tokens a chunk has is not known here
            q_lens, longest_query = meta.q_lens, len(meta.cells)
        tables = meta.tables
        if (window := _window_of_all(cache.spec)) is not None:
            firsts = (meta.lengths - q_lens + 1 - window).clamp_min(0) // cache.block_size
            columns = torch.arange(tables.shape[1], device=tables.device)
            tables = tables.gather(1, torch.maximum(columns, firsts[:, None]))
        paged = PagedMeta(
            meta.cells, _bounds_there(q_lens), _bounds_there(meta.lengths), meta.lengths, tables, longest_query,
            tables.shape[1] * cache.block_size,
        )  # fmt: skip
        return PackedLibraryAttend(paged, cache, self.kernel)


class LibraryAttend:
    """A `PagedAttend`."""

    def __init__(self, meta: PagedMeta, cache: KvCache, kernel: PagedKernel) -> None:
        self.meta = meta
        self.cache = cache
        self.kernel = kernel
        self._places: tuple[torch.Tensor, torch.Tensor] | None = None

    def stored(self, layer: int) -> StoredKv:
        """See `PagedAttend`."""
        return StoredKv(self.cache.layers[layer], self.meta.cells, self.cache.spec.scales(layer))

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attend`."""
        if self._places is None:  # the same for all layers
            cells, size = self.meta.cells.long(), self.cache.block_size
            self._places = cells // size, cells % size
        for side, new in zip(self.cache.layers[layer], (k, v), strict=True):
            side.transpose(1, 2).index_put_(self._places, new)
        return self.attend(layer, q.contiguous(), sinks)

    def attend(self, layer: int, q: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """See `PagedAttend`."""
        assert sinks is None, "`check_model` refuses models with sinks"
        keys, values = self.cache.layers[layer].transpose(2, 3)
        spec = self.cache.spec
        return self.kernel(q, keys, values, self.meta, spec, spec.windows[layer])


class PackedLibraryAttend(LibraryAttend):
    """A `LibraryAttend` whose cells are negative for rows that are not stored."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attend`."""
        from executors.kernels.triton.rotary import rotate_and_store

        qkv = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), 1)
        return self.attend(
            layer, rotate_and_store(qkv, self.cache.layers[layer], self.meta.cells, q.shape[1]), sinks
        )


def over(name: str, kernel: PagedKernel) -> LibraryAttention:
    """Make the backend over a kernel; it can be captured if Triton is available."""
    packed = triton_build.missing() is None
    return (PackedLibraryAttention if packed else LibraryAttention)(name, kernel)


def pack(parts: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy the parts to the device as one tensor; return int32 views of the parts' shapes."""
    sizes = [-(-part.size // _ALIGN) * _ALIGN for part in parts]
    packed = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device_of(device).pinned)
    flat, begin = packed.numpy(), 0
    for part, size in zip(parts, sizes, strict=True):
        flat[begin : begin + part.size] = part.ravel()
        begin += size
    views = packed.to(device, non_blocking=True).split(sizes)
    return [view[: part.size].view(part.shape) for view, part in zip(views, parts, strict=True)]


def check_model(spec: KvSpec, capability: tuple[int, int]) -> None:
    """Check the requirements that all these libraries have of a model and a device. Raises Unsuitable."""
    if spec.stored_dtype != spec.dtype:
        raise Unsuitable(f"it cannot read KV in {str(spec.stored_dtype).removeprefix('torch.')}")
    if capability < (8, 0):
        raise Unsuitable("a GPU of compute capability 8.0 or later is needed")
    if spec.dtype not in DTYPES:
        raise Unsuitable(f"it has no kernels for {str(spec.dtype).removeprefix('torch.')}")
    if spec.head_dim % 8 or spec.head_dim > MAX_HEAD_DIM:
        raise Unsuitable(f"head_dim is {spec.head_dim}; a multiple of 8 up to {MAX_HEAD_DIM} is needed")
    if spec.sinks:
        raise Unsuitable("it has no sinks, a logit for each head in the softmax, which this model needs")
    if spec.num_heads % spec.num_kv_heads:
        raise Unsuitable(f"{spec.num_heads} query heads do not share {spec.num_kv_heads} key heads evenly")


def check_block(block_size: int, unit: int) -> None:
    """Raise Unsuitable if the block size is not a multiple of `unit`."""
    if block_size % unit:
        raise Unsuitable(f"block_size is {block_size}; a multiple of {unit} is needed (--block-size {unit})")


def import_library(module: str, package: str, how: str) -> ModuleType:
    """Import the module of an optional package. Raises Unsuitable; `how` tells in the message how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.split(".")[0]:
            raise Unsuitable(f"{package} is not installed ({how})", absent=True) from None
        raise Unsuitable(f"{package} cannot be imported: {error}") from None
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch, most often
        raise Unsuitable(f"{package} cannot be imported: {str(error).splitlines()[0]}") from None


def _window_of_all(spec: KvSpec) -> int | None:
    """Return the longest window if all layers have one. Entries of block tables before it may name blocks of other sequences.
    Libraries read keys by the tile and give hidden ones the weight 0, which times NaN is NaN: tables for them name the first
    block of the window in place of those before it."""
    windows = [window for window in spec.windows if window is not None]
    return max(windows) if len(windows) == len(spec.windows) else None


def _bounds(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths)))


def _bounds_there(lengths: torch.Tensor) -> torch.Tensor:
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
