"""Which free block is reused first: checked on every allocation against a record of when each was given back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from engine.kv.block_pool import BlockPool
from executors.contract import Int32Array
from tests.sim.adoption import Broken


def watch_reuse(pool: BlockPool) -> None:
    """From now on `pool.take` raises Broken where it takes a block that is worth keeping before one that is not, or
    one given back later before one given back earlier."""
    clock = itertools.count(1)
    kept_since: dict[int, int] = {}
    worthless = set(range(pool.num_blocks))
    take, release_one, share = pool.take, pool.release_one, pool.share

    def watched_release(block: int, worth_keeping: bool) -> None:
        release_one(block, worth_keeping)
        if pool._references[block]:
            return
        if worth_keeping:
            kept_since[block] = next(clock)
        else:
            worthless.add(block)

    def watched_share(blocks: Iterable[int]) -> None:
        given = list(blocks)
        share(given)
        for block in given:
            kept_since.pop(block, None)
            worthless.discard(block)

    def watched_take() -> int:
        block = take()
        if block in worthless:
            worthless.discard(block)
            return block
        if worthless:
            raise Broken(f"block {block} was worth keeping, others were not")
        if kept_since[block] > min(kept_since.values()):
            raise Broken(f"block {block} is reused before one that was given back earlier")
        del kept_since[block]
        return block

    forsake = pool.forsake

    def watched_forsake(blocks: Iterable[int]) -> None:
        given = list(blocks)
        forsake(given)
        worthless.update(block for block in given if kept_since.pop(block, None) is not None)

    take_spare = pool.take_spare

    def watched_take_spare(keep: int, min_age: int, most_spans: int) -> Int32Array:
        blocks = take_spare(keep, min_age, most_spans)
        for block in blocks.tolist():
            kept_since.pop(block, None)
            worthless.add(block)
        return blocks

    pool.take_spare = watched_take_spare  # type: ignore[method-assign]
    pool.take, pool.release_one, pool.share = watched_take, watched_release, watched_share  # type: ignore[method-assign]
    pool.forsake = watched_forsake  # type: ignore[method-assign]
