"""`SealedBlocks`: KV blocks of an earlier life that the next one may adopt. Standard library and NumPy only.

A block is *sealed* when it is full of known tokens and the step that filled it has succeeded. The engine asks for seals in
`UnifiedBatch.seals`, the executor answers with checksums of the blocks' memory in `UnifiedOutput.checksums`, and the engine keeps
both. A sealed block is not written until the engine has dropped its seal. Nothing in the memory itself says that it is valid.

Slots with snapshots of states are sealed as blocks of one more group, `KvLayout.state_group`. The position of a snapshot is not
part of its seal: a later step says at which position it begins with it.

    step      seals [(group, block), ...]           -> checksums, as the blocks are at the end of the step
    death     the memory outlives the process, if `KvLayout.fingerprint` is not empty
    epoch     begin_epoch(epoch, SealedBlocks(...)) -> indices of the blocks whose memory still has that checksum

A checksum is a function of the fingerprint's kernels and the block's bytes, never of the block's id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import Int32Array
from executors.contract.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SealedBlocks:
    """Blocks, and slots of states, as they were sealed: `groups` and `blocks` int32 [n], `checksums` uint64 [n]; each pair of
    group and block occurs once. `fingerprint`: that of the layout under which they were sealed."""

    fingerprint: str
    groups: Int32Array
    blocks: Int32Array
    checksums: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.blocks)

    def blocks_of(self, group: int, adopted: Int32Array) -> Int32Array:
        """Return the blocks int32 [m] of a group among those with the indices `adopted` int32 [k]."""
        blocks: Int32Array = self.blocks[adopted[self.groups[adopted] == group]]
        return blocks


class BlockMemory(Protocol):
    """Bytes of blocks, as threads of the server's process copy them. Group `KvLayout.state_group` is that of slots of states."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of a block of each group, in order of `KvLayout.num_sealable`."""

    def read(self, group: int, block: int, into: memoryview) -> None:
        """Copy a block's bytes into the first `sizes[group]` bytes of `into`. Raises OSError."""

    def write(self, group: int, block: int, data: memoryview) -> None:
        """Copy the first `sizes[group]` bytes of `data` into a block. Raises OSError."""


def check_sealed(sealed: SealedBlocks, num_blocks: tuple[int, ...]) -> None:
    """Check dtypes, lengths and ranges; `num_blocks`: `KvLayout.num_sealable`. Raises InvalidInput."""
    groups, blocks, checksums = sealed.groups, sealed.blocks, sealed.checksums
    dtypes = [str(array.dtype) for array in (groups, blocks, checksums)]
    if dtypes != ["int32", "int32", "uint64"]:
        raise InvalidInput(f"sealed blocks are {', '.join(dtypes)}, not int32, int32, uint64")
    if not groups.shape == blocks.shape == checksums.shape == (len(blocks),):
        raise InvalidInput(
            f"sealed blocks: {len(groups)} groups, {len(blocks)} blocks, {len(checksums)} checksums"
        )
    if not len(blocks):
        return
    if groups.min() < 0 or groups.max() >= len(num_blocks):
        raise InvalidInput(f"a sealed block names a group outside 0..{len(num_blocks) - 1}")
    if blocks.min() < 0 or (blocks >= np.array(num_blocks)[groups]).any():
        raise InvalidInput("a sealed block names a block that does not exist")
    if len(np.unique(groups.astype(np.int64) << 32 | blocks)) != len(blocks):
        raise InvalidInput("a sealed block occurs twice")


def check_adopted(adopted: Int32Array, offered: int) -> bool:
    """Return whether `adopted` can be what `begin_epoch` returns for that many blocks: int32 [k], rising, within range."""
    if adopted.dtype != np.int32 or adopted.ndim != 1:
        return False
    return not len(adopted) or bool(
        adopted[0] >= 0 and adopted[-1] < offered and (np.diff(adopted) > 0).all()
    )
