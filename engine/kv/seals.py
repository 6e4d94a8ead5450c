"""`SealTable`: which KV blocks and snapshots of states hold what they should even after the executor's death, and how that is
checked."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np

from engine.block_table import BlockTable
from executors.contract import Int32Array, KvLayout, SealedBlocks, UnifiedBatch, UnifiedOutput

NO_SEALS = np.empty((0, 2), np.int32)


class GroupSeals:
    """The seals of one KV group, or those of slots of states. Owned by its BlockGroup, or by StatePool."""

    def __init__(self) -> None:
        self.checksums: dict[int, int] = {}
        """Of each sealed block."""
        self.requests: dict[int, int] = {}
        """For each block that a step in flight seals the id of the step."""

    def drop(self, blocks: Iterable[int]) -> None:
        """Steps submitted from now on may write these blocks, or what they hold is wrong."""
        checksums, requests = self.checksums, self.requests
        if checksums or requests:
            for block in blocks:
                checksums.pop(block, None)
                requests.pop(block, None)

    def keep(self, blocks: Iterable[int]) -> None:
        """Drop the seals of all other blocks."""
        checksums = self.checksums
        self.checksums = {block: checksums[block] for block in blocks}


class SealTable:
    """{(group, block): checksum} of blocks that are full of known tokens and whose step is committed. Nothing in the memory of a
    block says that it is valid: this table does. Slots with snapshots of states are blocks of a last group. Owned by
    KvCacheManager.

        request -> take: in a step's `seals` -> commit: sealed -> drop: before a step that may write the block is submitted
            '----------------- drop ----------------^

    Does nothing (`active` False) for an executor whose blocks do not outlive its process.
    """

    def __init__(self, layout: KvLayout, groups: SequenceOf[GroupSeals]) -> None:
        """`groups`: as `KvLayout.num_sealable`."""
        # States that the executor keeps by itself are not sealed: without them a hit is of no use.
        self._can_adopt = layout.paged
        self._state_group = layout.state_group
        self._groups = groups
        self._new: list[tuple[int, int]] = []
        self._assembled = 1
        """Id of the step being assembled: one more than that of the step before."""
        self.fingerprint = layout.fingerprint
        """That of the executor's life."""
        self.active = bool(self.fingerprint) and self._can_adopt
        """Whether the executor's blocks outlive its process."""

    def begin_life(self, fingerprint: str) -> None:
        """The executor's next life has begun, with this fingerprint. Seals of another one are void."""
        if fingerprint != self.fingerprint:
            self.clear()
        self.fingerprint = fingerprint
        self.active = bool(fingerprint) and self._can_adopt

    # -- in a step -----------------------------------------------------------------------------------------------------

    def request(self, tables: SequenceOf[BlockTable], begin: int, end: int) -> None:
        """The blocks of a sequence with indices begin .. end - 1 will be full of known tokens after the step being assembled: it
        is to seal those that are not sealed yet, nor by a step in flight. `tables`: of each group; a window has left some."""
        if not self.active:
            return
        for group, table in enumerate(tables):
            seals, first = self._groups[group], table.first
            for block in table.blocks[max(begin - first, 0) : max(end - first, 0)]:
                if block not in seals.checksums and block not in seals.requests:
                    seals.requests[block] = self._assembled
                    self._new.append((group, block))

    def request_snapshot(self, slot: int) -> None:
        """The slot holds a snapshot with a key once the step being assembled is computed, which is to seal it."""
        if self.active:
            self._groups[self._state_group].requests[slot] = self._assembled
            self._new.append((self._state_group, slot))

    def take(self, step_id: int) -> Int32Array:
        """int32 [m, 2] of (group, block): `UnifiedBatch.seals` of the step that was assembled."""
        self._assembled = step_id + 1
        if not self._new:
            return NO_SEALS
        places, self._new = self._new, []
        return np.array(
            [place for place in places if self._groups[place[0]].requests.get(place[1]) == step_id], np.int32
        ).reshape(-1, 2)

    def commit(self, batch: UnifiedBatch, output: UnifiedOutput) -> None:
        """Seal what a committed step was to seal, but for blocks whose request was dropped meanwhile."""
        if not len(batch.seals):
            return
        places = batch.seals.tolist()
        checksums = [None] * len(places) if output.checksums is None else output.checksums.tolist()
        for (group, block), checksum in zip(places, checksums, strict=True):
            seals = self._groups[group]
            if seals.requests.get(block) != batch.step_id:
                continue  # the block was freed and is filled anew, maybe by a step that is to seal it as well
            del seals.requests[block]
            if checksum is not None:
                seals.checksums[block] = checksum

    # -- after a failure -----------------------------------------------------------------------------------------------

    def drop_requests(self) -> None:
        """The steps in flight are lost: they seal nothing."""
        self._new.clear()
        for group in self._groups:
            group.requests.clear()

    def clear(self) -> None:
        """No block holds anything of value."""
        self.drop_requests()
        for group in self._groups:
            group.checksums.clear()

    def offer(self) -> SealedBlocks | None:
        """All sealed blocks, in order of group and block; None if there are none."""
        places = [
            (group, block, checksum)
            for group, seals in enumerate(self._groups)
            for block, checksum in sorted(seals.checksums.items())
        ]
        if not places:
            return None
        return SealedBlocks(
            self.fingerprint,
            np.array([group for group, _, _ in places], np.int32),
            np.array([block for _, block, _ in places], np.int32),
            np.array([checksum for _, _, checksum in places], np.uint64),
        )
