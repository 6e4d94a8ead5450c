"""KV memory that a burst took: which blocks go back, when, and that nothing is found in them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.core.spare_memory import ROUNDS, SpareMemory
from engine.kv.block_pool import BlockPool
from engine.kv.kv_cache_manager import KvCacheManager
from engine.kv.state_pool import StatePool
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors import registry
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, KvLayout, SamplingParams
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.paged import BYTES_PER_TOKEN, PagedFakeExecutor
from executors.testing.fakes.state import StateFakeExecutor
from tests.sim.virtual_loop import run

BLOCK, SPAN = 4, 4
BLOCK_BYTES = BLOCK * BYTES_PER_TOKEN
GREEDY = SamplingParams(temperature=0.0)


def executor(num_blocks: int = 64, span: int = SPAN) -> PagedFakeExecutor:
    made = registry.create(
        ExecutorConfig(
            "paged_fake",
            max_num_seqs=16,
            max_model_len=64,
            attention=ExecutorAttentionConfig(block_size=BLOCK),
            options={"num_blocks": num_blocks, "blocks_per_span": span, "vocab_size": 100},
        )
    )
    assert isinstance(made, PagedFakeExecutor)
    return made


async def ask(core: EngineCore, prompt: list[int], tokens: int) -> list[int]:
    mailbox = Mailbox()
    core.submit(Request(RequestContext("r", 0.0), np.array(prompt, np.int32), GREEDY, tokens), mailbox)
    got: list[int] = []
    while True:
        for delta in (await mailbox.take()).values():
            assert delta.error is None
            got += [token.token_id for token in delta.tokens]
            if delta.finish_reason is not None:
                assert got == expected_tokens(tuple(prompt), tokens, GREEDY, vocab_size=100)
                return got


def serve(
    scenario: Callable[[EngineCore, PagedFakeExecutor], object], span: int = SPAN, **config: object
) -> None:
    """Run it against a started engine on a virtual clock."""

    async def main() -> None:
        fake = executor(span=span)
        settings = EngineConfig(**{"max_num_seqs": 16, "kept_kv_bytes": 0, **config})  # type: ignore[arg-type]
        core = EngineCore(fake, settings, clock=asyncio.get_running_loop().time)
        await core.start()
        await scenario(core, fake)  # type: ignore[misc]
        core.check_integrity()
        await core.stop()

    run(main())


def prompts(count: int, length: int = 20) -> list[list[int]]:
    return [[(7 * i + 3 * at) % 100 for at in range(length)] for i in range(count)]


def pool_of(core: EngineCore) -> BlockPool:
    assert core._scheduler is not None
    return core._scheduler.kv.groups[0].pool


def test_few_blocks_are_written_while_few_are_needed() -> None:
    """One answer after the other, whose KV is not worth keeping, uses the same blocks again, the lowest."""

    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        for prompt in prompts(10):
            await ask(core, prompt, 5)
        assert pool_of(core).num_with_memory == 6
        assert not fake.written[6:].any()

    serve(scenario, prefix_caching=False)


def test_after_a_burst_and_a_rest_the_memory_is_gone() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 5) for prompt in prompts(9)))
        held = pool_of(core).num_with_memory
        assert held >= 54 and core.stats().kv_blocks_cached >= 45
        await asyncio.sleep(core.config.give_back_after - 1)
        assert pool_of(core).num_with_memory == held and fake.num_released == 0, "not before its time"
        await asyncio.sleep(5)
        assert pool_of(core).num_with_memory == 0 and fake.num_released == held
        assert core.stats().kv_blocks_cached == 0 and not fake.written.any()
        for prompt in prompts(9):  # none of the prefixes is found: the fake refuses to read what is gone
            await ask(core, prompt, 5)

    serve(scenario)


def test_what_is_kept_is_what_was_used_last() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        for prompt in prompts(9):
            await ask(core, prompt, 5)
            await asyncio.sleep(0.5)
        await asyncio.sleep(40)
        assert 12 <= pool_of(core).num_with_memory < 12 + SPAN
        hits = core.stats().prefix_hits
        await ask(core, prompts(9)[8], 5)
        assert core.stats().prefix_hits > hits, "the last prompt was to be found"
        hits = core.stats().prefix_hits
        await ask(core, prompts(9)[0], 5)
        assert core.stats().prefix_hits == hits, "the first was given back"

    # Each round is one answer: what was freed in it is of one age.
    serve(scenario, kept_kv_bytes=12 * BLOCK_BYTES, give_back_unused_after=0.4 * ROUNDS)


def test_a_trickle_does_not_hold_what_a_burst_took() -> None:
    """The server is never at rest, and gives back what nobody has used for long, but nothing that is in use."""

    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 5) for prompt in prompts(9)))
        assert pool_of(core).num_with_memory >= 54
        for _ in range(60):
            await ask(core, prompts(1)[0], 5)
            await asyncio.sleep(5)
        assert pool_of(core).num_with_memory < 30
        assert core.stats().prefix_hits > 0

    serve(scenario, give_back_unused_after=90.0)


def test_a_command_ends_the_giving_back() -> None:
    """A request that comes between two pieces is computed at once."""

    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 5) for prompt in prompts(9)))
        assert core._loop is not None
        memory = core._loop.spare_memory
        memory._groups = [replace(share, piece=1) for share in memory._groups]
        await asyncio.sleep(core.config.integrity_check_after + core.config.give_back_after + 0.05)
        assert 0 < fake.num_released < 30
        began = core.clock()
        await ask(core, prompts(1)[0], 2)
        assert core.clock() - began < 0.02 and fake.num_released < 54

    serve(scenario)


def test_an_executor_that_keeps_its_memory_is_not_asked() -> None:
    async def scenario(core: EngineCore, fake: PagedFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 5) for prompt in prompts(9)))
        await asyncio.sleep(100)
        assert fake.num_released == 0 and core.stats().kv_blocks_cached >= 45

    serve(scenario, span=0)


@pytest.mark.parametrize(("weights", "kept"), [(1, 256 << 20), (3 << 30, 3 << 30)])
def test_by_itself_it_keeps_as_much_as_the_weights(weights: int, kept: int) -> None:
    async def main() -> None:
        fake = executor()
        await fake.warmup()
        known = fake.capabilities()
        needs = replace(known.memory, parameter_memory=weights)
        fake.capabilities = lambda: replace(known, memory=needs)  # type: ignore[method-assign]
        kv = KvCacheManager(KvLayout.of(16, 100, 1 << 20, blocks_per_span=2))
        [share] = SpareMemory(fake, kv, EngineConfig(), lambda: 0.0)._groups
        assert share.keep == kept >> 20

    run(main())


def serve_states(
    scenario: Callable[[EngineCore, StateFakeExecutor], object], kept_kv_bytes: int, blocks_per_span: int = 1
) -> None:
    """As `serve`, with a fake whose layers have states."""

    async def main() -> None:
        options = {"num_blocks": 64, "blocks_per_span": blocks_per_span, "vocab_size": 100, "num_states": 12}
        attention = ExecutorAttentionConfig(block_size=BLOCK)
        fake = registry.create(
            ExecutorConfig(
                "state_fake", max_num_seqs=8, max_model_len=64, attention=attention, options=options
            )
        )
        assert isinstance(fake, StateFakeExecutor)
        settings = EngineConfig(max_num_seqs=8, kept_kv_bytes=kept_kv_bytes)
        core = EngineCore(fake, settings, clock=asyncio.get_running_loop().time)
        await core.start()
        await scenario(core, fake)  # type: ignore[misc]
        core.check_integrity()
        await core.stop()

    run(main())


def states_of(core: EngineCore) -> StatePool:
    assert core._scheduler is not None and core._scheduler.kv.states is not None
    return core._scheduler.kv.states


def test_slots_of_states_go_back_at_rest_with_the_snapshots_of_their_blocks() -> None:
    async def scenario(core: EngineCore, fake: StateFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 4) for prompt in prompts(6)))
        states = states_of(core)
        assert states.num_snapshots and sum(states._has_memory) > 6 and not fake.num_released_slots
        await asyncio.sleep(core.config.give_back_after + 5)
        assert sum(states._has_memory) == states.num_snapshots == 0
        assert fake.num_released_slots > 6
        await asyncio.gather(*(ask(core, prompt, 4) for prompt in prompts(6)))

    serve_states(scenario, kept_kv_bytes=0)


def test_as_many_free_slots_keep_their_memory_as_their_share_allows() -> None:
    async def scenario(core: EngineCore, fake: StateFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 4) for prompt in prompts(6)))
        states = states_of(core)
        await asyncio.sleep(core.config.give_back_after + 5)
        free = states.num_slots - states.num_snapshots
        kept = sum(states._has_memory[slot] for slot in states._free)
        assert 0 < kept <= 3 and free > kept
        assert states._has_memory[states._free[-1]], "the one that is taken next"

    whole = 64 * BLOCK_BYTES + 12 * 8
    serve_states(scenario, kept_kv_bytes=whole // 4)


def test_nothing_of_states_goes_back_where_memory_was_taken_at_the_start() -> None:
    async def scenario(core: EngineCore, fake: StateFakeExecutor) -> None:
        await asyncio.gather(*(ask(core, prompt, 4) for prompt in prompts(6)))
        await asyncio.sleep(core.config.give_back_after + 5)
        assert fake.num_released_slots == 0

    serve_states(scenario, kept_kv_bytes=0, blocks_per_span=0)
