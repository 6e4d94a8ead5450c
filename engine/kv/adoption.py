"""What the prefix cache keeps over a failure of the executor, and what is left of it in the executor's next life.

    failure -> hold_over -> tables are freed -> offer ... the next life verifies ... -> settle -> sequences find their KV again

So recovery is a preemption of all sequences followed by prefix hits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv.kv_cache_manager import KvCacheManager
from engine.sequence import Sequence
from engine.story import Lost
from executors.contract import Int32Array, SealedBlocks


@dataclass(frozen=True, slots=True)
class Adopted:
    """What became of the blocks that had a key or were sealed when the executor failed."""

    kept: int
    """Blocks that the next life has adopted."""
    damaged: int
    """Blocks whose memory did not hold what was sealed."""
    known: int
    """All blocks, those included that were not sealed yet or not offered."""


def hold_over(kv: KvCacheManager, running: Iterable[Sequence]) -> int:
    """Reduce the prefix cache to sealed blocks, and give those of running sequences their keys. To be called while sequences
    still have their tables. Returns the number of blocks with a key before.

    The keys of all other blocks are withdrawn: the steps that fill these blocks were in flight.
    """
    cache, seals = kv.cache, kv.seals
    seals.drop_requests()
    known = len(cache.blocks)
    lost = [block for block in cache.blocks if not seals.holds(0, block)]
    cache.forget(lost, Lost.RESTART)
    kv.pool.forsake(lost)
    for seq in running:
        known += _name_own(kv, seq)
    seals.keep(0, cache.blocks)
    return known


def _name_own(kv: KvCacheManager, seq: Sequence) -> int:
    """Let the sequence's sealed blocks be found by their keys, where no other block is: a block that was filled beside another
    one with the same tokens has none, and without prefix caching no block has one. Returns the number of new keys."""
    count = 0
    while count < len(seq.block_table) and kv.seals.holds(0, seq.block_table[count]):
        count += 1
    new = 0
    for key, block in zip(kv.keys_of(seq, count), seq.block_table, strict=False):
        new += kv.cache.keep(key, block)
    return new


def offer(kv: KvCacheManager) -> SealedBlocks | None:
    """What the executor's next life may adopt; None if there is nothing."""
    return kv.seals.offer() if kv.seals.active and kv.cache.blocks else None


def settle(kv: KvCacheManager, offered: SealedBlocks | None, adopted: Int32Array, known: int) -> Adopted:
    """Forget all blocks but the adopted ones: indices of what was offered."""
    kept = [] if offered is None else offered.blocks[adopted].tolist()
    lost = list(kv.cache.blocks.keys() - set(kept))
    kv.cache.forget(lost, Lost.RESTART)
    kv.pool.forsake(lost)
    kv.seals.keep(0, kept)
    return Adopted(len(kept), 0 if offered is None else len(offered) - len(kept), known)
