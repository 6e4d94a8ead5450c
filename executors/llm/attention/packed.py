"""A step's data for attention, as tensors on its device, and the interface to backends that read it there.

A backend that implements `PackedAttention` sends nothing itself: its data is part of the step's one copy to the device
(`step/launched/inputs.py`), at the same place in every step of a shape, as a captured graph requires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.api import Attend


@dataclass(frozen=True, slots=True)
class StepMeta:
    """A step as the kernels see it, int32 on the device.

    Per token [T]: `cells`, negative for tokens that are not stored. Per item: `q_starts`, `q_lens`, `pos_offsets`, `lengths`
    (tokens with this step's), `tables` [n, pages]. `tiles` [m, 2] of the items that go to `extend_attention`; `decodes` [d,
    2] (item, row of q) of the others, None if those are all items, in order. `pieces` [k, 6] of the decodes' keys, see
    `key_pieces.py`; empty if attention cuts keys itself. `tile_pieces` [k, 6] of the tiles' keys, see `tile_pieces.py`; empty if
    a program reads all keys of a tile.

    Padding: a token without a cell, an item of length 0, a tile of an item without queries, a piece of row -1. If there are
    no tiles, `q_starts`, `q_lens` and `pos_offsets` may be empty.
    """

    cells: torch.Tensor
    q_starts: torch.Tensor
    q_lens: torch.Tensor
    pos_offsets: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    tiles: torch.Tensor
    decodes: torch.Tensor | None
    num_decodes: int
    pieces: torch.Tensor
    tile_pieces: torch.Tensor


@dataclass(frozen=True, slots=True)
class StoredKv:
    """Where a layer's keys and values of a step are written. `kv`: the layer's memory; `cells` int32 [T]: the cell of each token,
    negative for none; `scales` multiply keys and values when they are read; `peaks` of those in int8, see `KvCache.parts`."""

    kv: torch.Tensor
    cells: torch.Tensor
    scales: tuple[float, float]
    peaks: torch.Tensor | None = None


@runtime_checkable
class PagedAttend(Attend, Protocol):
    """An `Attend` in two halves: keys and values may be written by the caller (see `rotate_and_store`) before `attend`."""

    def stored(self, layer: int) -> StoredKv:
        """Return where the layer's keys and values go."""

    def attend(self, layer: int, q: torch.Tensor, sinks: torch.Tensor | None = None, /) -> torch.Tensor:
        """Compute [T, heads, head_dim] of queries whose keys and values are in the cache; `sinks`: see `Attend`."""


@runtime_checkable
class PackedAttention(Protocol):
    """An `AttentionBackend` that takes a step as `StepMeta`."""

    queries_per_tile: int
    """Number of queries in a tile of `StepMeta.tiles`."""

    def tiles(self, q_lens: np.ndarray, pos_offsets: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return int32 [m, 2]: (item, its first query) of every tile of the given items' queries, in the order in which they
        start. `q_lens` int [n] of all items, `pos_offsets` int [n] the tokens before them."""

    def most_pieces(self, rows: int, longest: int) -> int:
        """Return the largest number of pieces for the keys of `rows` sequences of at most `longest` tokens; always 0 if
        attention cuts keys itself."""

    def pieces(self, lengths: np.ndarray) -> np.ndarray:
        """Return int32 [k, 6]: the pieces of the decodes' keys, in the order in which they start. `lengths` int [d]: tokens
        of each with this step's."""

    def pieces_last(self, lengths: np.ndarray) -> int:
        """See `PieceRule.lasts`."""

    def most_tile_pieces(self, tiles: int, longest: int) -> int:
        """Return the largest number of pieces for the keys of `tiles` tiles of sequences of at most `longest` tokens; always 0
        if no tile's keys are cut."""

    def tile_pieces(self, tiles: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray) -> np.ndarray:
        """Return int32 [k, 6]: the pieces of the keys of `tiles`, in the order in which they start; empty if no tile's keys are
        ever cut. The other arguments: see `tiles`."""

    def reserve(self, pieces: int, tile_pieces: int, cache: KvCache) -> None:
        """Reserve memory for steps of at most so many pieces of decodes and of tiles. Captured graphs keep using the memory they
        were captured with."""

    def bind(self, meta: StepMeta, cache: KvCache) -> Attend:
        """Return the attention of a step. Nothing is read from the device here."""
