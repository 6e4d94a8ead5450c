"""Division of extend attention's work: keys of a tile of queries are cut into pieces if there are too few tiles for the device.

    tile 0   64 queries behind 7,000 keys   ------------------------    8 pieces
    tile 1   36 queries of the same item    ------------------------    8 pieces

A step with as many tiles as programs is not cut: tiles start in the order of their keys, most first, and programs that finish
take the next one.
"""

from __future__ import annotations

import numpy as np

from executors.llm.attention.key_pieces import PieceRule

LEAST_KEYS = 256
"""Keys of a piece below which another cut costs more than it saves: each piece's result is written and read again. Not
measured yet."""
MOST_OF_A_TILE = 16
"""Largest number of pieces of a tile: one program adds up their results, 64 KiB each for heads of 128."""


def tile_pieces(keys: np.ndarray, programs: int, tile: int, window: int | None = None) -> np.ndarray:
    """Return the pieces int32 [k, 6] of tiles of queries, most keys first; the words are those of `key_pieces.py`, where a row
    is a tile. Places count only pieces of tiles that have several.

    `keys` int [tiles]: keys that each tile's last query sees. `programs`: how many a device runs at once for each key head.
    `tile`: keys that a program processes at a time. `window`: None, or keys that a query sees and queries of a tile together.
    """
    shared = min(programs, MOST_OF_A_TILE * len(keys)) if len(keys) < programs else 0
    if shared:
        pieces = PieceRule(shared, tile, window, least=LEAST_KEYS).cut(keys)
    else:
        pieces = PieceRule(1, tile, window, count=1).cut(keys)
    return _renumbered(pieces, len(keys))


def num_places(pieces: np.ndarray) -> int:
    """Return how many places of partial results the pieces need."""
    return int((pieces[:, 5] > 1).sum())


def _renumbered(pieces: np.ndarray, tiles: int) -> np.ndarray:
    """The same pieces, whose places leave out tiles of a single piece."""
    counts = np.zeros(tiles, np.int64)
    counts[pieces[:, 0]] = pieces[:, 5]
    counts[counts == 1] = 0
    firsts = np.cumsum(counts) - counts
    row = pieces[:, 0]
    number = pieces[:, 3] - pieces[:, 4]
    shared = pieces[:, 5] > 1
    pieces[:, 4] = np.where(shared, firsts[row], 0)
    pieces[:, 3] = np.where(shared, firsts[row] + number, 0)
    return pieces
