"""`BlockTable`: the blocks of one sequence in one KV group."""

from __future__ import annotations

from dataclasses import dataclass, field


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
