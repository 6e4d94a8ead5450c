"""What attention must know of a step, as tensors on its device; and the seam to backends that read it there.

A backend that keeps to `PackedAttention` has nothing of its own to send: what it needs lies in the step's one copy to the
device (`gpu/inputs.py`), at the same place in every step of a shape, which is what a captured graph asks for.
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
    """A step as the kernels see it, int32 on the device. Per token [T]: `cells`, negative where nothing is kept. Per item:
    `q_starts`, `q_lens`, `pos_offsets`, `lengths` (tokens with this step's), `tables` [n, pages]. `tiles` [m, 2] of the items
    that go to `extend_attention`, `decodes` [d, 2] (item, row of q) of the others, None if those are all, in order. `pieces`
    [k, 6] of the decodes' keys, see `key_pieces.py`; none where attention cuts keys by itself.

    Padding: a token without a cell, an item of length 0, a tile of an item without queries, a piece of row -1. Where
    there are no tiles `q_starts`, `q_lens` and `pos_offsets` may be empty."""

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


@runtime_checkable
class PackedAttention(Protocol):
    """An `AttentionBackend` that takes a step as `StepMeta`."""

    queries_per_tile: int
    """Of `StepMeta.tiles`."""

    def tiles(self, q_lens: np.ndarray, pos_offsets: np.ndarray, items: np.ndarray) -> np.ndarray:
        """int32 [m, 2]: (item, its first query) of every tile of the given items' queries, in the order in which they are to
        begin. `q_lens` int [n] of all items, `pos_offsets` int [n] the tokens before them."""

    def most_pieces(self, rows: int, longest: int) -> int:
        """Pieces that the keys of so many sequences of at most `longest` tokens are cut into, at most. 0 for any: attention cuts
        them by itself."""

    def pieces(self, lengths: np.ndarray) -> np.ndarray:
        """int32 [k, 6]: the pieces of the decodes' keys, in the order in which they are to begin. `lengths` int [d]: tokens of
        each with this step's."""

    def pieces_last(self, lengths: np.ndarray) -> int:
        """See `PieceRule.lasts`."""

    def reserve(self, pieces: int, cache: KvCache) -> None:
        """Have memory for steps of at most so many pieces: what is captured finds it where it was."""

    def bind(self, meta: StepMeta, cache: KvCache) -> Attend:
        """The attention of a step. Nothing is read from the device here."""
