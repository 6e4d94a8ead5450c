"""What the prefix cache keeps over a failure of the executor, and what is left of it in the executor's next life.

    failure -> hold_over -> tables are freed -> offer ... the next life verifies ... -> settle -> sequences find their KV again

So recovery is a preemption of all sequences followed by prefix hits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from engine.kv.block_group import BlockGroup
from engine.kv.kv_cache_manager import KvCacheManager
from engine.kv.prefix_cache import PrefixCache
from engine.sequence import Sequence
from engine.story import Lost
from executors.contract import Int32Array, SealedBlocks

_NONE = np.empty(0, np.int32)


class NewLife(NamedTuple):
    """A life of the executor that has just begun."""

    fingerprint: str
    """That of its layout."""
    offered: SealedBlocks | None = None
    """Blocks, and slots of states, that it was to adopt."""
    adopted: Int32Array = _NONE
    """int32 [k], rising: indices of the offered blocks that it has adopted."""


class Adopted(NamedTuple):
    """What became of the KV blocks that could be found, or were sealed, when the executor failed."""

    num_kept: int
    """Blocks that the next life has adopted."""
    num_damaged: int
    """Blocks whose memory did not hold what was sealed."""
    total: int
    """All of them, with those that were not sealed yet or not offered."""
    num_snapshots: int = 0
    """Snapshots of states that the next life has adopted."""
    num_damaged_snapshots: int = 0
    total_snapshots: int = 0


class Holdings(NamedTuple):
    """What could be found, or was sealed, when the executor failed."""

    num_blocks: int = 0
    num_snapshots: int = 0


def hold_over(kv: KvCacheManager, running: Iterable[Sequence]) -> Holdings:
    """Reduce the prefix cache to sealed blocks and snapshots, and give blocks of running sequences their keys. To be called while
    sequences still have their tables. Returns how much could be found before.

    The keys of all other blocks are withdrawn: the steps that fill these blocks were in flight.
    """
    running = list(running)
    kv.seals.drop_requests()
    names = kv.naming.cache
    with _snapshots_kept(names):
        num_blocks = _keep_sealed(kv, running)
    num_snapshots = 0
    if kv.states is not None:
        # The block of a snapshot may be another one by now, with the same tokens.
        num_snapshots = kv.states.keep_sealed(lambda key: names.block_of(key) is not None)
    return Holdings(num_blocks, num_snapshots)


@contextlib.contextmanager
def _snapshots_kept(names: PrefixCache) -> Iterator[None]:
    """Meanwhile a block may lose its key to another one without the snapshot behind it."""
    on_lost, names.on_lost = names.on_lost, None
    try:
        yield
    finally:
        names.on_lost = on_lost


def _keep_sealed(kv: KvCacheManager, running: list[Sequence]) -> int:
    for seq in running:
        # What a window leaves takes its key along: the block of another with the same tokens gets it below.
        kv.slide(seq)
    total = sum(len(group.cache.blocks) for group in kv.groups)
    for group in kv.groups:
        unsealed = [block for block in group.cache.blocks if block not in group.seals.checksums]
        group.forget(unsealed, Lost.RESTART)
    for seq in running:
        total += sum(_name_own(kv, group, seq) for group in kv.groups)
        seq.name_no_more()  # what is not sealed by now will not be there
    for group in kv.groups:
        group.seals.keep(group.cache.blocks)
    return total


def _name_own(kv: KvCacheManager, group: BlockGroup, seq: Sequence) -> int:
    """Let the sequence's sealed blocks be found by their keys, where no other block is: a block that was filled beside another
    one with the same tokens has none, and without prefix caching no block has one. Returns the number of new keys."""
    table = seq.block_tables[group.index]
    count = 0
    while count < len(table.blocks) and table.blocks[count] in group.seals.checksums:
        count += 1
    keys = kv.keys_of(seq, table.first + count)[table.first :]
    return sum(group.cache.keep(key, block) for key, block in zip(keys, table.blocks, strict=False))


def settle(kv: KvCacheManager, life: NewLife, holdings: Holdings) -> Adopted:
    """Forget all blocks and snapshots that the next life has not adopted. A snapshot is of no use without its block; a block is
    without the snapshot behind it, for one further on. `holdings`: what `hold_over` returned."""
    num_kept = 0
    for group in kv.groups:
        adopted = _adopted(life, group.index)
        group.forget(group.cache.blocks.keys() - set(adopted), Lost.RESTART)
        group.seals.keep(adopted)
        num_kept += len(adopted)
    slots = _adopted(life, kv.layout.state_group)
    if kv.states is not None:
        kv.states.keep(slots)
    kv.seals.begin_life(life.fingerprint)
    num_damaged = num_damaged_snapshots = 0
    # A life with another fingerprint has looked at none of them.
    if life.offered is not None and life.offered.fingerprint == life.fingerprint:
        num_offered = int(np.count_nonzero(life.offered.groups == kv.layout.state_group))
        num_damaged_snapshots = num_offered - len(slots)
        num_damaged = len(life.offered) - num_offered - num_kept
    return Adopted(
        num_kept, num_damaged, holdings.num_blocks, len(slots), num_damaged_snapshots, holdings.num_snapshots
    )


def _adopted(life: NewLife, group: int) -> list[int]:
    """The blocks of a group that the life has adopted."""
    if life.offered is None:
        return []
    blocks: list[int] = life.offered.blocks_of(group, life.adopted).tolist()
    return blocks
