"""How the rows of a step lie by LoRA adapter, and adapters' weights in a device's memory, for `triton/lora.py`.

rows of the step that have an adapter, in order of adapters, filled up to whole tiles of one adapter each

    rows     4 7 - - | 0 1 2 9 | 5 - - -     -: no row (-1)
    owners      0    |    2    |    2        the place of each tile's adapter; -1: a tile that is not used
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

MOST_PARTS = 3
"""Matrices that one merged matrix may consist of."""
PART_WORDS = 4
"""Numbers of an adapter's matrix in `ranks` and in `scales`: one for each part, and one more so that each begins at 16 bytes."""
FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a tile: those of the smallest matrix instruction, and of Hopper's own."""
FEW_TOKENS = 520
"""Most tokens of a step with small tiles: those of the mixed graph of 512, padding included. Above, reading A and B once per 16
rows would cost more than idle rows of a tile."""


@dataclass(frozen=True, slots=True)
class LoraMatrix:
    """Adapters' weights of one matrix [outputs, inputs], which may be merged of several parts.

    `a` and `b` begin at the numbers of the adapter at place 0; those of the next place are `stride` numbers behind. `a` has
    [most, inputs] for each part, one after the other, `b` [most, outputs of the part]: A, and B transposed. `most` is the
    highest rank; rows from an adapter's own rank on are not read. `begins`: the first output of each part.
    `ranks` int32 and `scales` float32 begin at the matrix's PART_WORDS of place 0, and places are `words` apart.
    """

    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor
    scales: torch.Tensor
    stride: int
    words: int
    most: int
    inputs: int
    outputs: int
    begins: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """The output behind the last one of each part."""
        return (*self.begins[1:], self.outputs)


@dataclass(frozen=True, slots=True)
class LoraTiles:
    """Rows by adapter, as drawn above. `rows` int32 [count * tile_rows], `owners` int32 [count]."""

    rows: torch.Tensor
    owners: torch.Tensor
    tile_rows: int

    @property
    def count(self) -> int:
        """Tiles, those that are not used included."""
        return len(self.owners)


def tile_rows(tokens: int) -> int:
    """Return the number of rows of a tile in a step of that many tokens, padding included."""
    return FEW_ROWS if tokens <= FEW_TOKENS else MANY_ROWS


def most_tiles(tokens: int, adapters: int) -> int:
    """Return the largest number of tiles of a step of that many tokens with so many adapters: each may leave all but one row of
    a tile idle."""
    if not adapters:
        return 0
    rows = tile_rows(tokens)
    return (tokens + min(adapters, tokens) * (rows - 1)) // rows


def in_tiles(places: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 rows [count * size] and owners [count] of tiles of `size` rows, without unused ones; `places` int [T]: the
    place of each row's adapter, -1 for none."""
    rows = np.argsort(places, kind="stable")
    rows = rows[np.count_nonzero(places < 0) :]
    owners, first, counts = np.unique(places[rows], return_index=True, return_counts=True)
    tiles = -(-counts // size)
    begins = (np.cumsum(tiles) - tiles) * size
    result = np.full(int(tiles.sum()) * size, -1, np.int32)
    result[np.arange(len(rows)) + np.repeat(begins - first, counts)] = rows
    return result, np.repeat(owners, tiles).astype(np.int32)
