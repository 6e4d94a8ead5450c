"""Division of extend attention's work: keys of a tile of queries are cut into pieces if that ends the step earlier.

    tile 0   64 queries behind 7,000 keys   ------------------------    8 pieces
    tile 1   36 queries of the same item    ------------------------    8 pieces
    tile 2   50 queries of a new sequence   -                           1 piece

Tiles start in the order of their keys, most first, and a program that finishes takes the next one. As long as the longest tile
is not much longer than an even share of all programs, whole tiles end about as early as pieces would, and none is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from executors.llm.attention.key_pieces import WORDS, PieceRule

MOST_OF_A_SHARE = 1.25
"""Size of the longest tile in shares up to which no tile is cut."""


@dataclass(frozen=True)
class TileRule:
    """Rule for cutting keys of tiles of queries.

    `programs`: how many a device runs at once for each key head. `tile`: keys that a program processes at a time. `window`:
    None, or keys that a query of any layer sees and queries of a tile together. `parts`: most pieces of a tile, 1: none is cut.
    `least`: keys that are not cut: below, a cut costs more than it saves. `count`: pieces of every tile that has enough
    keys, for tests and self-checks; 0: by the lengths.
    """

    programs: int
    tile: int
    window: int | None = None
    parts: int = 16
    least: int = 256
    count: int = 0

    @property
    def cuts(self) -> bool:
        """Whether any tile may be cut."""
        return self.parts > 1 or self.count > 1

    def most(self, tiles: int, longest: int) -> int:
        """Return the largest number of pieces of so many tiles, each of at most `longest` keys; 0 if no tile is ever cut."""
        return self._rule.most(tiles, longest) if self.cuts else 0

    @property
    def most_places(self) -> int:
        """Largest number of pieces of tiles that have several, whatever the tiles are.

        Such a tile of u loops has less than 2 u / b pieces of at most b, and all loops together are `programs` shares. b is half
        a share, rounded down to whole loops, or the least.
        """
        if self.count:
            raise ValueError(f"{self.count} pieces of every tile are as many as there are tiles")
        least = max(1, self.least // self.tile)
        return -(-4 * self.programs * (least + 1) // least)

    def cut(self, keys: np.ndarray) -> np.ndarray:
        """Return the pieces int32 [k, 6], most keys first; the words are those of `key_pieces.py`, where a row is a tile. Places
        count only pieces of tiles that have several. Empty if no tile is ever cut.

        `keys` int [tiles], at least 1: keys that each tile's last query sees.
        """
        if not self.cuts:
            return np.empty((0, WORDS), np.int32)
        if not self._pays(keys):
            return _whole(keys)
        return _renumbered(self._rule.cut(keys), len(keys))

    @cached_property
    def _rule(self) -> PieceRule:
        return PieceRule(
            self.programs, self.tile, self.window, count=self.count, least=self.least, parts=self.parts
        )

    def _pays(self, keys: np.ndarray) -> bool:
        if self.count:
            return True
        visible = keys if self.window is None else np.minimum(keys, self.window)
        longest = int(visible.max(initial=0))
        return longest > self.least and longest * self.programs > MOST_OF_A_SHARE * int(visible.sum())


def num_places(pieces: np.ndarray) -> int:
    """Return how many places of partial results the pieces need."""
    return int((pieces[:, 5] > 1).sum())


def _whole(keys: np.ndarray) -> np.ndarray:
    """A piece for each tile, in the order of tiles, which begin with those of most keys."""
    pieces = np.zeros((len(keys), WORDS), np.int32)
    pieces[:, 0] = np.arange(len(keys))
    pieces[:, 2] = keys
    pieces[:, 5] = 1
    return pieces


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
