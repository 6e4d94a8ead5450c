"""Layers with a state: prefixes, choices, preemption and failures, on a fake whose state is a hash of all tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.core.engine import EngineCore
from engine.kv import cache_points
from engine.mailbox import Mailbox
from engine.request import RequestContext, TokenDelta
from engine.story import Lost, Missed, Story
from executors.contract import ConfigError, SamplingParams
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, request, run

LONG = [i * 7 % 900 for i in range(70)]


async def choices(core: EngineCore, prompt: list[int], n: int, lengths: tuple[int, ...] = (12,)) -> None:
    """Submit a call with so many choices, of these lengths in turn, and check every token."""
    mailbox = Mailbox()
    params = [SamplingParams(temperature=0.8, seed=5, choice=choice) for choice in range(n)]
    most = [lengths[choice % len(lengths)] for choice in range(n)]
    core.submit_choices([request(prompt, most[i], one) for i, one in enumerate(params)], mailbox)
    whole = {key: TokenDelta() for key in range(n)}
    while any(delta.finish_reason is None for delta in whole.values()):
        for key, delta in (await mailbox.take()).items():
            whole[key].merge(delta)
    for key, one in enumerate(params):
        assert [token.token_id for token in whole[key].tokens] == expected_tokens(prompt, most[key], one)


async def test_a_conversation_finds_its_turns() -> None:
    """A prompt that goes on from an answer begins at the end of the prompt before it, or at the answer's last rolling place."""
    async with engine(fake("state_fake")) as core:
        prompt, found = LONG[:30], []
        for turn in range(3):
            ids, _ = await run(core, request(prompt, 6))
            assert ids == expected_tokens(prompt, 6)
            found.append(core.stats().prefix_hits)
            prompt = [*prompt, *ids, turn, turn, turn]
    assert found == [0, 28, 28 + 36]


async def test_a_story_names_the_snapshot_that_was_missing() -> None:
    async with engine(fake("state_fake")) as core:
        await run(core, request(LONG[:40], 2))
        story = Story(core.clock())
        asked = replace(request([*LONG[:25], 1, 2, 3, 4], 2), context=RequestContext("r", 0.0, story=story))
        await run(core, asked)
        assert story.prefix is not None
        assert (story.prefix.missed, story.prefix.evicted_by) == (Missed.EVICTED, Lost.STATE)
        assert (story.prefix.matched_tokens, story.prefix.evicted_tokens) == (0, 24)
        await run(core, request([*LONG[:25], 9, 9], 2))
        assert core.stats().prefix_hits == 24


async def test_a_place_that_the_request_names_is_kept() -> None:
    async with engine(fake("state_fake")) as core:
        await run(core, replace(request(LONG[:40], 2), cache_points=(21,)))
        ids, _ = await run(core, request([*LONG[:22], 5, 6], 4))
        assert ids == expected_tokens([*LONG[:22], 5, 6], 4)
        assert core.stats().prefix_hits == 20


@pytest.mark.parametrize("num_states", [8, 16])
@pytest.mark.parametrize("length", [3, 9, 30, 70])
async def test_choices_begin_from_the_state_behind_the_prompt(length: int, num_states: int) -> None:
    made = fake("state_fake", num_states=num_states)
    async with engine(made) as core:
        await choices(core, LONG[:length], 4)
        # The prompt but its last token once, the last token by each choice, and what each of them generates.
        assert core.stats().prompt_tokens <= length + 3
        await choices(core, LONG[:length], 3)


@pytest.mark.parametrize("lengths", [(4, 13), (13, 4)])
async def test_choices_that_wait_for_a_slot_begin_when_one_has_ended(lengths: tuple[int, ...]) -> None:
    """The state is handed on: whichever ends, another one holds it."""
    made = fake("state_fake", seqs=2, num_states=4)
    async with engine(made, max_num_seqs=2, prefix_caching=False) as core:
        await choices(core, LONG[:30], 4, lengths)
        assert core.stats().prompt_tokens <= 30 + 3


async def test_a_full_pool_of_blocks_and_of_states() -> None:
    """Preempted sequences come back, to a snapshot or from the beginning."""
    made = fake("state_fake", num_blocks=30, seqs=6, num_states=6)
    async with engine(made, max_num_seqs=6) as core:
        prompts = [[*LONG[:17], i] for i in range(12)]
        results = await asyncio.gather(*(run(core, request(prompt, 30)) for prompt in prompts))
        assert core.stats().preemptions
    for prompt, (ids, _) in zip(prompts, results, strict=True):
        assert ids == expected_tokens(prompt, 30)


@pytest.mark.parametrize("kind", ["step_failed", "die", "out_of_memory"])
async def test_no_token_is_wrong_after_a_failure(kind: str) -> None:
    made = fake("state_fake")
    async with engine(made) as core:
        await run(core, request(LONG[:40], 4))
        made.failures.append(Failure(kind, token=77))
        prompts = [[*LONG[:33], 1], [*LONG[:33], 77], [*LONG[:21], 2]]
        results = await asyncio.gather(*(run(core, request(prompt, 20)) for prompt in prompts))
        for prompt, (ids, _) in zip(prompts, results, strict=True):
            assert ids == expected_tokens(prompt, 20)


async def test_an_aborted_call_gives_its_slots_back() -> None:
    made = fake("state_fake", seqs=2, num_states=2, step_delay_ms=1)
    async with engine(made, max_num_seqs=2) as core:
        for _ in range(4):
            mailbox = Mailbox()
            ids = core.submit_choices([request(LONG[:20], 100)] * 2, mailbox)
            await mailbox.take()
            for seq_id in ids:
                core.abort(seq_id)
        ids_, _ = await run(core, request(LONG[:20], 9))
        assert ids_ == expected_tokens(LONG[:20], 9)


async def test_the_prompt_side_is_computed_whole() -> None:
    async with engine(fake("state_fake")) as core:
        await run(core, request(LONG[:40], 2))
        await run(core, replace(request(LONG[:40], 2), prompt_logprobs=1))
        assert core.stats().prefix_hits == 0


@pytest.mark.parametrize("num_states", [4, 16])
@pytest.mark.parametrize("right", [0.3, 0.9])
async def test_drafts_take_a_second_slot(
    right: float, num_states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected drafts are taken back with their state, and the accepted ones computed again; snapshots are taken meanwhile."""
    monkeypatch.setattr(cache_points, "ROLLING", 8)
    made = fake("state_fake", seqs=4, num_states=num_states, drafts_right=right, window=8)
    async with engine(
        made, max_num_seqs=4, num_speculative_tokens=3, speculative_method="draft_model"
    ) as core:
        prompts = [[*LONG[:19], i] for i in range(6)]
        results = await asyncio.gather(*(run(core, request(prompt, 40)) for prompt in prompts))
        for prompt, (ids, _) in zip(prompts, results, strict=True):
            assert ids == expected_tokens(prompt, 40, windows=(None, 8))
        drafts = core.stats().drafts
        assert 0 < drafts.num_accepted_tokens < drafts.num_draft_tokens
        before = core.stats().prefix_hits
        again = [*prompts[-1], *results[-1][0], 3, 4]
        ids, _ = await run(core, request(again, 5))
        assert ids == expected_tokens(again, 5, windows=(None, 8))
        if num_states == 16:
            assert core.stats().prefix_hits - before == 56


async def test_drafts_that_an_executor_may_lack() -> None:
    """One without an MTP head is served where that is allowed, and one that has one drafts."""
    asked = {"max_num_seqs": 4, "num_speculative_tokens": 3, "speculative_method": "mtp"}
    with pytest.raises(ConfigError, match="this executor has no MTP head that drafts"):
        async with engine(fake("state_fake", seqs=4), **asked):  # type: ignore[arg-type]
            pass
    for options, drafts in (({}, False), ({"drafts_right": 0.9}, True)):
        async with engine(
            fake("state_fake", seqs=4, **options),
            speculative_if_usable=True,
            **asked,  # type: ignore[arg-type]
        ) as core:
            ids, _ = await run(core, request(LONG[:19], 20))
            assert ids == expected_tokens(LONG[:19], 20)
            assert bool(core.stats().drafts.num_draft_tokens) == drafts
