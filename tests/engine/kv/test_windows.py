"""KV groups with a window: what sequences hold of them, what is found in them, and what a story tells of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from engine.core.engine import EngineCore
from engine.kv.kv_cache_manager import KvCacheManager
from engine.mailbox import Mailbox
from engine.sequence import Sequence
from engine.story import Lost, Missed, PrefixMatch
from executors import registry
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, KvGroup, KvLayout, SamplingParams
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, request
from tests.engine.kv.test_sharing import ask, choices, recorded
from tests.engine.test_story import told

WINDOW, BLOCK = 20, 4
END = 99
"""An id that ends a turn."""


def windowed(window: str = f"full,{WINDOW}", longest: int = 1024, **options: int | float) -> FakeExecutor:
    made = registry.create(
        ExecutorConfig(
            "paged_fake",
            max_num_seqs=8,
            max_model_len=longest,
            attention=ExecutorAttentionConfig(block_size=BLOCK),
            options={"window": window, **options},
        )
    )
    assert isinstance(made, FakeExecutor)
    return made


def windows_of(made: FakeExecutor) -> tuple[int | None, ...]:
    return tuple(group.window for group in made.kv_layout().groups)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 98, length).tolist()


async def answer(
    core: EngineCore, ids: list[int], count: int, stop: tuple[int, ...] = ()
) -> tuple[list[int], int]:
    """Tokens after a prompt, checked, and how many of the prompt's were found."""
    got = await ask(core, request(ids, count, stop=stop))
    tokens = [token.token_id for token in got.tokens]
    windows = windows_of(core.executor)  # type: ignore[arg-type]
    assert tokens == expected_tokens(ids, count, windows=windows)[: len(tokens)]
    return tokens, got.num_cached_tokens


async def test_a_long_prompt_holds_its_window_and_a_step() -> None:
    made = windowed("full,20,48", longest=2048)
    held: list[list[int]] = []
    async with engine(made, max_num_batched_tokens=32) as core:
        assert core._scheduler is not None
        kv = core._scheduler.kv
        schedule = core._scheduler.schedule

        def watched():  # type: ignore[no-untyped-def]
            batch = schedule()
            held.append([group.pool.num_used for group in kv.groups])
            return batch

        core._scheduler.schedule = watched  # type: ignore[method-assign]
        await answer(core, prompt(1500), 40)
    full, small, large = (max(column) for column in zip(*held, strict=True))
    assert full == -(-1540 // BLOCK)
    assert small <= (20 + 32) // BLOCK + 2 and large <= (48 + 32) // BLOCK + 2
    decoding = held[-20:-2]
    assert max(used[1] for used in decoding) <= 20 // BLOCK + 2, "a window and two blocks"


async def test_a_window_pool_is_enough_for_every_slot() -> None:
    """As many blocks as sizing gives: no sequence is preempted, however long."""
    made = windowed(window_blocks=8 * (WINDOW // BLOCK + 2) + 32 // BLOCK + 8)
    async with engine(made, max_num_batched_tokens=32) as core:
        await asyncio.gather(*(answer(core, prompt(60 + seed, seed), 60) for seed in range(8)))
        assert core.stats().preemptions == 0


async def test_a_prompt_is_found_again_before_its_end() -> None:
    async with engine(windowed()) as core:
        ids = prompt(90)
        assert [await answer(core, ids, 30), await answer(core, ids, 1)][1][1] == 88
        assert (await answer(core, [*ids[:88], *prompt(9, 1)], 1))[1] == 88


async def test_a_conversation_goes_on_from_the_end_of_the_answer() -> None:
    async with engine(windowed()) as core:
        ids = prompt(61)
        tokens, _ = await answer(core, ids, 40)
        assert (await answer(core, [*ids, *tokens, *prompt(12, 2)], 1))[1] == 100


@pytest.mark.parametrize("ends", [True, False])
async def test_the_end_of_a_turn_is_found_by_another_question(ends: bool) -> None:
    """Without an id that ends turns a prompt is found where an earlier one parted from it: by the third of its kind."""
    system = [*prompt(63), END]
    async with engine(windowed()) as core:
        found = [
            (await answer(core, [*system, *prompt(40, seed)], 2, (END,) if ends else ()))[1]
            for seed in (1, 2, 3)
        ]
    assert found == ([0, 64, 64] if ends else [0, 0, 64])


async def test_of_an_output_the_latest_point_is_kept() -> None:
    async with engine(windowed(longest=2048)) as core:
        ids = prompt(30)
        tokens, _ = await answer(core, ids, 600)
        whole = [*ids, *tokens]
        assert (await answer(core, [*whole[:530], *prompt(9, 3)], 1))[1] == 512
        assert (await answer(core, [*whole[:300], *prompt(9, 4)], 1))[1] == 28, (
            "the one before it is forgotten"
        )


async def test_without_the_cache_nothing_is_kept() -> None:
    async with engine(windowed(), prefix_caching=False) as core:
        await answer(core, prompt(90), 30)
        assert core.stats().kv_blocks_cached == 0 and (await answer(core, prompt(90), 1))[1] == 0


async def test_a_story_names_the_window_that_was_missing() -> None:
    async with engine(windowed("full,20,6")) as core:
        ids = prompt(90)
        await answer(core, ids, 2)
        other = [*ids[:70], *prompt(30, 1)]
        assert (await told(core, other)).prefix == PrefixMatch(0, Missed.EVICTED, None, 68, Lost.WINDOW, 20)
        assert (await told(core, prompt(40, 5), cache_salt="x")).prefix == PrefixMatch(0, Missed.NEW)
        again = (await told(core, [*ids, *prompt(30, 6)])).prefix
        assert again is not None and (again.matched_tokens, again.window) == (88, None)


async def test_of_windows_alone_a_prompt_is_found_and_an_unknown_one_is_new() -> None:
    async with engine(windowed("20")) as core:
        ids = prompt(90)
        assert core.max_model_len == 1024, "told by the layout: no group holds all tokens"
        await answer(core, ids, 2)
        assert (await told(core, [*ids, 1])).prefix == PrefixMatch(88)
        assert (await told(core, prompt(40, 5), cache_salt="x")).prefix == PrefixMatch(0, Missed.NEW)
        missed = (await told(core, [*ids[:70], *prompt(9, 1)])).prefix
        assert missed is not None and (missed.matched_tokens, missed.window) == (0, 20)


@pytest.mark.parametrize("length", [6, 61, 65])
async def test_choices_share_what_their_windows_read(length: int) -> None:
    made, sampling = windowed(), SamplingParams(temperature=1.0, seed=7)
    async with engine(made, max_num_batched_tokens=256) as core:
        steps = recorded(made)
        got = await choices(core, request(prompt(length), 6, sampling), 4)
    for i, delta in enumerate(got):
        want = expected_tokens(prompt(length), 6, replace(sampling, choice=i), windows=(None, WINDOW))
        assert [token.token_id for token in delta.tokens] == want
    copies = np.concatenate([step.block_copies for step in steps])
    assert np.bincount(copies[:, 0], minlength=2).tolist() == ([3, 3] if (length - 1) % BLOCK else [0, 0])
    assert sum(step.total_q_tokens() for step in steps) == length + 3 + 4 * 5


def test_a_window_pool_too_small_to_slide_limits_a_sequence() -> None:
    layout = KvLayout(16, (KvGroup(1000, 1), KvGroup(40, 1, window=128)))
    assert KvCacheManager(layout, most_granted=256).capacity_tokens == 16000
    assert KvCacheManager(layout, most_granted=512).capacity_tokens == 640
    windows_only = KvLayout(16, (KvGroup(40, 1, window=128),), max_tokens=32768)
    assert KvCacheManager(windows_only, most_granted=256).capacity_tokens == 32768


async def test_usage_is_that_of_the_fullest_group() -> None:
    made = windowed(num_blocks=100, window_blocks=20)
    async with engine(made, max_num_batched_tokens=32) as core:
        assert core._scheduler is not None
        kv = core._scheduler.kv
        for group, count in zip(kv.groups, (50, 15), strict=True):
            blocks = group.pool.allocate(count)
            assert blocks is not None
            stats = core.stats()
            group.pool.release(blocks)
            assert stats.kv_usage == count / group.pool.num_blocks and stats.kv_blocks_used == count
        assert core.stats().kv_blocks_total == 120


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_a_step_in_flight_computes_is_not_settled(in_flight: bool) -> None:
    """Should the step be lost, the sequence begins again before it: the window there stays until the result is in."""
    layout = KvLayout(BLOCK, (KvGroup(100, 1), KvGroup(100, 1, window=8)))
    kv = KvCacheManager(layout, most_granted=16)
    seq = Sequence(1, request(prompt(90)), Mailbox(), 0)
    seq.take_slot(0)
    kv.begin(seq, kv.find(seq))
    for end in (16, 32):
        assert kv.grow(seq, end)
        seq.grant(16, end)
    assert seq.receive(sampled=False)
    seq.settle_chunk(16)
    if not in_flight:
        assert seq.receive(sampled=False)
        seq.settle_chunk(32)
    assert kv.grow(seq, 48)
    assert seq.block_tables[1].first == ((16 if in_flight else 32) - 8 + 1) // BLOCK
    assert seq.block_tables[0].first == 0 and seq.block_tables[1].end >= 12
