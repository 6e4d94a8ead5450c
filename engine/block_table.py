"""`BlockTable`: the blocks of one sequence in one KV group. `Stride`: how its tables go on while it decodes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class BlockTable:
    """Blocks in order of position; block i of the sequence (tokens i * block_size on) is `blocks[i - first]`.

    A table of a window group begins above 0 once the blocks below are read no more. Written by `Sequence` only.

        full      first 0   [7 3 9 4 2]         window    first 3         [5 1]
    """

    first: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index behind the last block."""
        return self.first + len(self.blocks)

    def part(self, begin: int, end: int) -> list[int]:
        """The blocks with indices begin .. end - 1, all of which must be in the table."""
        return self.blocks[begin - self.first : end - self.first]


class Way(enum.Enum):
    """How a table goes on by one block."""

    TAKE = 0
    """It takes a free block, and keeps all it has."""
    TURN = 1
    """The window leaves a block that no other sequence has had and that need not be found again: it is the next one."""
    KEEP = 2
    """The window leaves a block that is kept for later sequences; a free one is taken."""
    DROP = 3
    """The window leaves a block that need not be found again, though others may have found it; a free one is taken."""


TAKE, TURN, KEEP, DROP = Way  # to name a member by its class takes as long as to use it


class Span(NamedTuple):
    """How a table goes on to have the blocks with these indices: below `take_end` by `TAKE`, from `keep` to `keep_end` by `KEEP`,
    else below `drop_end` by `DROP`, and from there on by `TURN`."""

    take_end: int
    keep: int
    keep_end: int
    drop_end: int


@dataclass(slots=True, eq=False)
class Stride:
    """How the tables of a sequence go on block by block, all by one. It holds below index `end`, while block `i` is added when
    the sequence is settled in block `i - lag`, as long as the tables change in no other way. Written by StrideFinder."""

    lag: int
    end: int
    spans: tuple[Span, ...]
    """Of each group."""
    until: int = 0
    """Index below which this goes on in the same `ways`."""
    ways: tuple[Way, ...] = ()
    """Of each group."""
    takers: tuple[int, ...] = ()
    """Groups whose way is not `TURN`."""
