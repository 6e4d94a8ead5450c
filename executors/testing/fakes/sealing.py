"""`SealingFake`: a fake whose blocks outlive its process, seals of them, and bytes that flip on demand.

The process of a fake is imaginary: it ends with `ExecutorDied` and begins again with `begin_epoch`. What its blocks hold between
the two is up to the test: `scribble` flips bits, as a process does that is about to crash.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    BlockMemory,
    Int32Array,
    InvalidInput,
    SealedBlocks,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.seals import check_sealed
from executors.testing.fakes import oracle
from executors.testing.fakes.group_memory import GroupMemory
from executors.testing.fakes.serving import FakeServing


class SealingFake(FakeServing):
    """See the module. Option `fingerprint`: text; "" (the default): blocks do not outlive the process.

    Lives of different fingerprints write the same value as different bytes: a block of another life that is adopted in spite of
    its fingerprint gives other tokens.
    """

    memories: list[GroupMemory]
    """The blocks of each KV group, made anew by `_allocate`."""

    @property
    def fingerprint(self) -> str:
        """That of this life; tests change it between two lives."""
        return getattr(self, "_fingerprint", str(self.config.options.get("fingerprint", "")))

    @fingerprint.setter
    def fingerprint(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    @property
    def mask(self) -> np.uint64:
        """What every value in memory is xored with."""
        word = np.frombuffer(self.fingerprint.encode()[:8].ljust(8, b"\0"), np.uint64)
        mask: np.uint64 = oracle.mix(word)[0]
        return mask

    # -- seals -----------------------------------------------------------------------------------------------------------

    def checksums(self, groups: Int32Array, blocks: Int32Array) -> NDArray[np.uint64]:
        """uint64 [m]: checksums of blocks, or slots of states, as they are now."""
        sums = np.zeros(len(blocks), np.uint64)
        for group in np.unique(groups).tolist():
            chosen = groups == group
            if group == len(self.memories):
                sums[chosen] = self._state_checksums(blocks[chosen])
                continue
            memory, ids = self.memories[group], blocks[chosen]
            # Each cell of a block has a weight of its own: cells that change places are noticed.
            weight = oracle.mix(np.arange(1, memory.cells.shape[1] + 1, dtype=np.uint64))
            words = oracle.mix(memory.cells[ids] ^ weight) + oracle.mix(memory.prefix[ids] + weight)
            sums[chosen] = oracle.mix(words ^ memory.tainted[ids]).sum(1, dtype=np.uint64)
        return sums

    def _check(self, batch: UnifiedBatch) -> None:
        super()._check(batch)
        if len(batch.seals) and not self.fingerprint:
            raise InvalidInput("seals are asked for of blocks that do not outlive the process")

    def _seal(self, batch: UnifiedBatch, output: UnifiedOutput) -> None:
        if not len(batch.seals):
            return
        groups, blocks = np.ascontiguousarray(batch.seals.T)
        for group, block in batch.seals.tolist():
            if not self._is_whole(group, block):
                raise InvalidInput(f"block {block} of group {group} is to be sealed and is not full")
        output.checksums = self.checksums(groups, blocks)

    def _state_checksums(self, slots: Int32Array) -> NDArray[np.uint64]:
        """uint64 [m]: checksums of slots of states."""
        raise InvalidInput("there are no states")

    def _is_whole(self, group: int, block: int) -> bool:
        """Whether all of a block, or a slot of a state, was written."""
        return bool(self.memories[group].written[block].all())

    def scribble(self, group: int, blocks: Iterable[int]) -> None:
        """Flip a bit in each of these blocks, or slots of states."""
        for block in blocks:
            self.memories[group].cells[block, block % self.config.attention.block_size] ^= np.uint64(1)

    # -- the next life ---------------------------------------------------------------------------------------------------

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """See the contract. Raises InvalidInput for blocks that do not exist."""
        self._require_warm()
        adopted = np.empty(0, np.int32)
        if adopt is not None:
            check_sealed(adopt, self.kv_layout().num_sealable)
            adopted = self._verified(adopt)
        before = self.memories
        await super().begin_epoch(epoch)
        if adopt is not None:
            for group, old in enumerate(before):
                blocks = adopt.blocks_of(group, adopted)
                for memory, content in zip(self.memories[group].arrays(), old.arrays(), strict=True):
                    memory[blocks] = content[blocks]
        return adopted

    # -- copies from and to files ------------------------------------------------------------------------------------------

    def block_memory(self) -> BlockMemory | None:
        """See the contract: what blocks hold, whichever arrays they lie in by then."""
        return FakeBlocks(self) if self.fingerprint else None

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        """See the contract. Raises InvalidInput for blocks that do not exist."""
        self._require_warm()
        check_sealed(sealed, self.kv_layout().num_sealable)
        return self._verified(sealed)

    def block_arrays(self, group: int) -> tuple[NDArray[np.generic], ...]:
        """All that the blocks of a group hold, by block."""
        return self.memories[group].arrays()

    def _verified(self, adopt: SealedBlocks) -> Int32Array:
        """Indices of the blocks that hold what was sealed."""
        if not self.fingerprint or adopt.fingerprint != self.fingerprint:
            return np.empty(0, np.int32)
        same = self.checksums(adopt.groups, adopt.blocks) == adopt.checksums
        whole = [
            self._is_whole(group, block)
            for group, block in zip(adopt.groups.tolist(), adopt.blocks.tolist(), strict=True)
        ]
        return np.flatnonzero(same & np.array(whole, np.bool_)).astype(np.int32)


class FakeBlocks:
    """The blocks of a fake: a `BlockMemory`."""

    def __init__(self, fake: SealingFake) -> None:
        self._fake = fake
        groups = range(len(fake.kv_layout().num_sealable))
        self.sizes = tuple(sum(one[0].nbytes for one in fake.block_arrays(group)) for group in groups)

    def read(self, group: int, block: int, into: memoryview) -> None:
        """See `BlockMemory`."""
        data = b"".join(one[block].tobytes() for one in self._fake.block_arrays(group))
        into[: len(data)] = data

    def write(self, group: int, block: int, data: memoryview) -> None:
        """See `BlockMemory`."""
        begin = 0
        for array in self._fake.block_arrays(group):
            size = array[block].nbytes
            array[block] = np.frombuffer(data[begin : begin + size], array.dtype).reshape(array[block].shape)
            begin += size
