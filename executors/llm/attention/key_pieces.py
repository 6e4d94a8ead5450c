"""Division of decode attention's work: every row's keys are cut into pieces whose number and size depend on all rows'
lengths.

    row 0   ------------------------------------------------------------ 32k keys    21 pieces
    row 1   -- 500 keys                                                              1 piece
    ...

One program computes a piece for one key head, and a device runs a fixed number of programs at once. A step lasts as long as
its busiest program, so no piece may be much longer than an even share of all programs. Programs take pieces in order, longest
first, and a program that finishes takes the next: list scheduling, which ends at most one piece later than the even share
(Graham, 1969). Pieces of half a share therefore end within 1.5 shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WORDS = 6
"""int32 words of a piece: row, first key, end of its keys, its place among partial results, the place of the row's first
piece, number of the row's pieces. A row of -1 marks padding."""
MOST_OF_A_ROW = 64
"""Largest number of pieces of a row: one program adds up their results."""
_ONE_WAVE = 1.25
"""Largest size of a piece in shares if every piece has a program of its own, so that no program takes a second piece."""
_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class PieceRule:
    """Rule for cutting keys into pieces.

    `programs`: how many run at once for each key head. `tile`: keys that a program processes at a time; pieces consist of
    whole tiles. `window`: keys that the layer with the longest window sees, None for all. `steady`: keys of every piece,
    whatever else is in the batch; 0: by the lengths. `count`: pieces of every row that has enough keys, for tests and
    self-checks; 0: by the lengths. `least`: keys of a piece below which another cut costs more than it saves. `parts`: largest
    number of pieces of a row, whose results one program adds up.
    """

    programs: int
    tile: int
    window: int | None = None
    steady: int = 0
    count: int = 0
    least: int = 64
    parts: int = MOST_OF_A_ROW

    def most(self, rows: int, longest: int) -> int:
        """Return the largest number of pieces of `rows` rows of at most `longest` keys each. At least one per row."""
        if self.steady:
            return rows * max(1, -(-longest // self.steady))
        if self.count:
            return rows * self.count
        least = self._least_tiles
        alone = max(1, min(self.parts, -(-longest // (least * self.tile))))
        # A bound of half a share is rounded down to whole tiles, to `least` of them or more.
        more = self.programs if rows == 1 else -(-2 * self.programs * (least + 1) // least)
        return min(rows * alone, rows + more)

    def cut(self, lengths: np.ndarray) -> np.ndarray:
        """Return the pieces int32 [k, WORDS], most keys first.

        `lengths` int [rows]: keys of each row. A row of length 0 has one piece without keys, which writes its zeros. Keys
        outside every layer's window are in no piece.
        """
        lengths = np.asarray(lengths, np.int64)
        rows = len(lengths)
        unit = self.steady or (1 if self.count else self.tile)
        hidden = np.zeros(rows, np.int64)
        if self.window is not None:
            hidden = np.maximum(lengths - self.window, 0) // unit * unit
        units = -(-(lengths - hidden) // unit)
        counts = self._counts(units)
        total = int(counts.sum())
        pieces = np.empty((total, WORDS), np.int32)
        if total == rows:
            row = place = np.arange(rows)
            begins, ends, firsts = hidden, lengths, place
        else:
            row, place = np.repeat(np.arange(rows), counts), np.arange(total)
            firsts = (np.cumsum(counts) - counts)[row]
            units, counts, hidden = units[row], counts[row], hidden[row]
            before = (place - firsts) * units
            begins = before // counts * unit + hidden
            ends = np.minimum((before + units) // counts * unit + hidden, lengths[row])
        for word, values in enumerate((row, begins, ends, place, firsts, counts)):
            pieces[:, word] = values
        return pieces.take(np.argsort(begins - ends, kind="stable"), 0)

    def lasts(self, lengths: np.ndarray) -> int:
        """Return n: `cut` stays the same while all rows grow together by fewer than n tokens, apart from the end of each row's
        last piece; 0: any growth may change it. `lengths` int [rows], each at least 1.

        Numbers and borders of pieces depend on whole tiles. So does their order, except that a last piece has as many keys as
        a piece before it once its last tile is full: rows therefore may not even reach the end of a tile. If every row has
        one piece, the order is that of the lengths, and rows may cross tiles as long as none of them is cut.
        """
        if self.count:
            return 0
        unit = self.steady or self.tile
        longest = int(lengths.max())
        whole = (
            unit * self._uncut(-(-lengths // unit)) if self.window is None or longest <= self.window else 0
        )
        if longest <= whole:
            end = whole if self.window is None else min(whole, self.window)
            return end - longest + 1
        rest = int((-lengths % unit).min())
        if self.window is not None:
            rest = min(rest, int(((self.window - lengths - 1) % unit).min()) + 1)
        return rest

    def _uncut(self, units: np.ndarray) -> int:
        """Return the units of a row that certainly stays one piece, now and as rows grow: bounds never shrink as rows grow."""
        if self.steady:
            return 1
        total, least = int(units.sum()), max(self._least_tiles, -(-int(units.max()) // self.parts))
        if len(units) <= self.programs:
            return max(least, -(-total // self.programs))
        return max(least, int(total / self.programs / 2))

    @property
    def _least_tiles(self) -> int:
        return max(1, self.least // self.tile)

    def _counts(self, units: np.ndarray) -> np.ndarray:
        """int64 [rows]: pieces of each row."""
        if self.steady:
            return np.maximum(units, 1)
        if self.count:
            return np.clip(units, 1, self.count)
        if not len(units):
            return units
        return np.maximum(-(-units // self._bound(units)), 1)

    def _bound(self, tiles: np.ndarray) -> int:
        """Return the largest number of tiles of a piece."""
        total = int(tiles.sum())
        least = max(self._least_tiles, -(-int(tiles.max()) // self.parts))
        share = total / self.programs
        if len(tiles) <= self.programs:
            low = max(least, -(-total // self.programs))
            high = max(low, int(_ONE_WAVE * share))
            for size in range(low, high + 1, max(1, (high - low) // _CANDIDATES)):
                if len(tiles) == 1 or int((-(-tiles // size)).sum()) <= self.programs:
                    return size
        return max(least, int(share / 2))


def idle_pieces(begin: int, end: int, place: int) -> np.ndarray:
    """Make int32 [end - begin, WORDS]: a piece without keys for each of these rows, which have no keys. `place`: of the first
    piece."""
    pieces = np.zeros((end - begin, WORDS), np.int32)
    pieces[:, 0] = np.arange(begin, end)
    pieces[:, 3] = pieces[:, 4] = np.arange(place, place + end - begin)
    pieces[:, 5] = 1
    return pieces


def with_idle(pieces: np.ndarray, rows: int, total: int) -> np.ndarray:
    """Append a piece without keys for each row beyond `rows` up to `total`."""
    if rows >= total:
        return pieces
    return np.concatenate((pieces, idle_pieces(rows, total, len(pieces))))
