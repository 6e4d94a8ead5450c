"""KV memory that an engine does without: which blocks, that sequences run on, and that it comes back."""

from __future__ import annotations

import asyncio

from engine.core.engine import EngineCore
from engine.kv.block_pool import BlockPool
from executors.testing.fakes.paged import PagedFakeExecutor
from tests.engine.kv.test_spare_memory import BLOCK, BLOCK_BYTES, ask, pool_of, prompts, serve


def least(core: EngineCore) -> int:
    """Blocks of the longest sequence."""
    return -(-core.max_model_len // BLOCK)


def test_blocks_that_are_withheld_are_not_allocated() -> None:
    pool = BlockPool(8, 2)
    assert pool.withhold(5) == 5 and (pool.num_available, pool.num_free, pool.num_used) == (3, 3, 0)
    assert pool.allocate(4) is None
    blocks = pool.allocate(3)
    assert blocks == [0, 1, 2] and pool.num_used == 3 and pool.num_with_memory == 3
    pool.check_integrity([blocks])
    assert pool.withhold(1) == 0
    assert pool.restore(2) == 2 and pool.restore(9) == 3 and pool.restore(1) == 0
    assert pool.num_available == 8 and pool.allocate(5) == [3, 4, 5, 6, 7]


def test_all_but_the_longest_sequence_is_given_and_answers_stay() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        pool = pool_of(core)
        before = core.spare_kv_bytes
        assert before == (pool.num_blocks - least(core)) * BLOCK_BYTES > 0
        await core.give_kv(10 * BLOCK_BYTES - 1)
        assert (core.given_kv_bytes, core.spare_kv_bytes) == (10 * BLOCK_BYTES, before - 10 * BLOCK_BYTES)
        await core.give_kv(1 << 40)
        assert (core.given_kv_bytes, core.spare_kv_bytes) == (before, 0)
        assert (
            core.stats().kv_blocks_total == pool.num_available == least(core) and fake.num_released == 0
        )  # none was used before
        await asyncio.gather(*(ask(core, prompt, 5) for prompt in prompts(9)))
        assert pool.num_with_memory <= least(core)
        core.check_integrity()
        await core.take_kv(3 * BLOCK_BYTES + 1)
        assert core.given_kv_bytes == core.stats().kv_bytes_given == before - 3 * BLOCK_BYTES
        await core.take_kv(1 << 40)
        assert (core.given_kv_bytes, core.spare_kv_bytes) == (0, before)

    serve(scenario)


def test_memory_of_free_blocks_is_released_and_their_prefixes_are_found_no_more() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        pool = pool_of(core)
        rounds = pool.num_blocks // 6 + 1
        for prompt in prompts(rounds):  # all blocks have memory then
            await ask(core, prompt, 5)
        held = pool.num_with_memory
        await core.give_kv(1 << 40)
        assert core.given_kv_bytes == (pool.num_blocks - least(core)) * BLOCK_BYTES
        assert fake.num_released >= held - least(core) > 0
        for prompt in prompts(rounds):  # the fake refuses to read what is gone
            await ask(core, prompt, 5)

    serve(scenario)


def test_blocks_in_use_are_kept_while_streams_run() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        calls = [asyncio.create_task(ask(core, prompt, 12)) for prompt in prompts(9)]
        for _ in range(1000):
            await asyncio.sleep(0)
            if pool_of(core).num_used:
                break
        assert pool_of(core).num_used
        await core.give_kv(1 << 40)
        assert 0 < core.given_kv_bytes <= (pool_of(core).num_blocks - least(core)) * BLOCK_BYTES
        await asyncio.gather(*calls)
        core.check_integrity()

    serve(scenario)


def test_an_executor_that_keeps_its_memory_gives_nothing() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        await core.give_kv(1 << 40)
        assert (core.given_kv_bytes, core.spare_kv_bytes) == (0, 0)

    serve(scenario, span=0)
