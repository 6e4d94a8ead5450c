"""Stories: what is told of a call's wait, its prefix, its interruptions and its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.core.engine import EngineCore
from engine.errors import DeadlinePassed, EngineError
from engine.interruptions import Outage
from engine.mailbox import Mailbox
from engine.refusal import Because
from engine.request import RequestContext
from engine.story import MAX_EVENTS, Lost, Missed, PrefixMatch, Story, WaitReason
from executors.testing.fakes.failures import Failure
from tests.engine.harness import engine, fake, request, run
from tests.sim.virtual_loop import in_virtual_time


async def told(core: EngineCore, prompt: list[int], max_tokens: int = 4, **context: object) -> Story:
    """The story of one call, read to its end."""
    now = core.clock()
    asked = request(prompt, max_tokens)
    story = Story(now)
    asked = replace(asked, context=RequestContext("r", now, story=story, **context))  # type: ignore[arg-type]
    try:
        await run(core, asked)
    except EngineError:
        pass
    return story


def names(story: Story) -> list[str]:
    return [event.name for event in story.events]


async def test_a_call_is_told_from_its_queue_to_its_end() -> None:
    async with engine(fake(step_delay_ms=5)) as core:
        story = await told(core, [1, 2, 3], 4)
        assert names(story) == ["queued", "admitted", "first_token", "finished"]
        times = [event.at for event in story.events]
        assert times == sorted(times) and times[0] >= story.received
        assert (story.prompt_tokens, story.output_tokens, story.finish_reasons) == (3, 4, {0: "length"})
        assert story.events[-1].details == {"reason": "length", "output_tokens": 4}
        now = core.clock()
        queue, prefill, decode = (
            story.queue_seconds(now), story.prefill_seconds(now), story.decode_seconds(now),
        )  # fmt: skip
        assert queue is not None and prefill is not None and decode is not None
        assert prefill > 0.004 and decode > 0.014, "one step of 5 ms, then three"
        assert story.ended is not None and story.queued is not None
        assert queue + prefill + decode == pytest.approx(story.ended - story.queued)


async def test_choices_share_a_story_and_count_their_prompt_once() -> None:
    async with engine(fake(step_delay_ms=1)) as core:
        story, mailbox = Story(core.clock()), Mailbox()
        asked = [replace(request([1, 2, 3, 4, 5, 6], 5), context=RequestContext("r", 0.0, story=story))] * 3
        core.submit_choices(asked, mailbox)
        assert story.output_tokens == 0 and len(story.parts) == 3
        left = 3
        while left:
            left -= sum(delta.finish_reason is not None for delta in (await mailbox.take()).values())
        assert (story.choices, story.prompt_tokens, story.output_tokens) == (3, 6, 15)
        assert story.cached_tokens == 0, "what choices share was not found in the cache"
        assert story.finish_reasons == dict.fromkeys(range(3), "length")


@in_virtual_time
async def test_a_wait_is_told_by_its_reason() -> None:
    async with engine(fake(step_delay_ms=2), max_num_seqs=1) as core:
        running = asyncio.create_task(told(core, [1], 20))
        await asyncio.sleep(0.01)
        waited = (await told(core, [2], 2)).waited
        assert (
            max(waited, key=lambda reason: waited[reason]) is WaitReason.SLOTS
            and waited[WaitReason.SLOTS] > 0.02
        )
        assert sum(waited.values()) < 0.5
        await running
    async with engine(fake(step_delay_ms=2, num_blocks=8)) as core:  # 32 tokens
        running = asyncio.create_task(told(core, list(range(1, 20)), 8))
        await asyncio.sleep(0.01)
        waited = (await told(core, list(range(50, 70)), 2)).waited
        assert max(waited, key=lambda reason: waited[reason]) is WaitReason.KV_BLOCKS
        await running
    async with engine(fake(step_delay_ms=5), max_num_batched_tokens=16) as core:
        first = asyncio.create_task(told(core, list(range(1, 100)), 2))
        await asyncio.sleep(0.01)
        waited = (await told(core, list(range(100, 110)), 2)).waited
        assert max(waited, key=lambda reason: waited[reason]) is WaitReason.TOKENS
        await first


@in_virtual_time
async def test_a_call_that_is_dropped_from_the_queue_says_what_it_waited_for() -> None:
    async with engine(fake(step_delay_ms=5), max_num_seqs=1) as core:
        running = asyncio.create_task(told(core, [1], 30))
        await asyncio.sleep(0.01)
        story = await told(core, [2], 2, deadline=core.clock() + 0.05)
        assert story.error == DeadlinePassed.code and story.admitted is None
        assert story.waited[WaitReason.SLOTS] > 0.03
        assert names(story) == ["queued", "finished"] and story.finish_reasons == {0: "abort"}
        await running


async def test_a_restart_is_told_with_its_cause_and_the_next_token() -> None:
    made = fake(step_delay_ms=1)
    made.failures.append(Failure("die", step=4))
    async with engine(made) as core:
        story = await told(core, [1, 2], 8)
    assert names(story) == ["queued", "admitted", "first_token", "restart", "admitted", "resumed", "finished"]
    restart, again = story.events[3], story.events[4]
    assert restart.details == {"cause": "executor_died:fake", "output_tokens": 3}
    assert WaitReason.RECOVERY in again.details["waited"]  # type: ignore[operator]
    assert (story.resumed, story.preempted, story.output_tokens) == (1, 0, 8)
    assert story.paused == {WaitReason.RECOVERY: pytest.approx(story.events[5].at - restart.at)}
    lost = story.interruptions
    assert lost.causes == {"executor_died:fake": 1}
    assert lost.restart_seconds == pytest.approx(again.at - restart.at)
    assert lost.recompute_seconds == pytest.approx(story.events[5].at - again.at)
    [outage] = core.outages()
    assert lost.outages == [outage] and outage.ended is not None
    assert lost.outage_seconds(0.0) == outage.ended - outage.began


async def test_an_outage_counts_once_for_all_choices() -> None:
    story = Story()
    first, second = Outage(1, 1.0, "executor_died:signal"), Outage(2, 7.0, "executor_died:signal")
    for choice in range(3):
        story.interrupt(1.0, choice, first.cause, 1, first)
    assert story.interruptions.outage_seconds(3.0) == 2.0, "under way"
    first.ended = 4.0
    story.interrupt(7.0, 1, second.cause, 1, second)
    second.ended = 7.5
    story.interrupt(9.0, 2, "nan_logits", 1)
    assert story.interruptions.outage_seconds(9.0) == 3.5 and story.interruptions.count == 5


async def test_a_preemption_is_told() -> None:
    async with engine(fake(num_blocks=24)) as core:  # 96 tokens for 8 sequences that want up to 40 each
        stories = await asyncio.gather(*(told(core, [i + 1, 2, 3], 37) for i in range(8)))
        preempted = [story for story in stories if story.preempted]
        assert sum(story.preempted for story in stories) == core.stats().preemptions > 0
    for story in preempted:
        assert names(story).count("preempted") == story.preempted == names(story).count("resumed")
        assert story.resumed == 0 and story.output_tokens == 37
        back = [event.at for event in story.events if event.name == "resumed"]
        away = [event.at for event in story.events if event.name == "preempted"]
        assert story.paused == {WaitReason.KV_BLOCKS: pytest.approx(sum(back) - sum(away))}


async def test_a_pause_ends_with_its_sequence() -> None:
    """One that is rolled back twice before its next token, or ends without one, was paused once from the first to the end."""
    story, part = Story(), SimpleNamespace(output_token_ids=[1], paused=True)
    for choice in range(2):
        story.queue(0.0, choice, part, 1)
    story.interrupt(1.0, 0, "executor_died", 1)
    story.preempt(2.5, 1, 1)
    story.preempt(3.0, 0, 1)
    story.finish(7.0, 0, "abort", 1)
    assert story.paused == {WaitReason.RECOVERY: 2.0, WaitReason.KV_BLOCKS: 4.0}
    story.resume(8.0, 1)
    assert story.paused == {WaitReason.RECOVERY: 2.0, WaitReason.KV_BLOCKS: 9.5}


async def test_interruptions_are_split_into_restart_and_recompute() -> None:
    """A choice that fails again before its next token, and one that is preempted while it waits to go on."""
    story, part = Story(), SimpleNamespace(output_token_ids=[1], paused=True)
    for choice in range(2):
        story.queue(0.0, choice, part, 1)
        story.admit(0.0, choice, {}, 0)
    assert story.interruptions.count == 0
    story.interrupt(1.0, 0, "executor_died:signal", 1)
    story.interrupt(1.0, 1, "executor_died:signal", 1)
    story.admit(5.0, 0, {}, None)
    story.interrupt(7.0, 0, "out_of_memory", 1)
    story.admit(8.0, 0, {}, None)
    story.resume(8.5, 0)
    story.admit(6.0, 1, {}, None)
    story.preempt(6.5, 1, 1)
    story.finish(9.0, 1, "abort", 1)
    lost = story.interruptions
    assert lost.causes == {"executor_died:signal": 2, "out_of_memory": 1} and lost.count == story.resumed == 3
    assert (lost.restart_seconds, lost.recompute_seconds) == (4.0 + 1.0 + 5.0, 2.0 + 0.5 + 0.5)
    assert story.paused[WaitReason.RECOVERY] == lost.restart_seconds + lost.recompute_seconds


@in_virtual_time
async def test_a_refusal_is_told_with_its_numbers() -> None:
    made = fake(step_delay_ms=20, prompt_token_ms=5)
    async with engine(made, max_num_seqs=1, max_queue_wait=1.0) as core:
        running = asyncio.create_task(told(core, [1], 40))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(told(core, [2], 20))
        await asyncio.sleep(0.01)
        why = (await told(core, [3], 2)).refusal
        assert why is not None and why.because is Because.ESTIMATED_WAIT
        assert why.limit == 1.0 and why.estimated_wait is not None and 0.9 < why.estimated_wait < 1.6
        assert (why.queued_seqs, why.queued_tokens, why.queued_of_key, why.waited) == (1, 1, None, None)
        late = (await told(core, [4], 2, deadline=core.clock() + 0.1)).refusal
        assert late is not None and late.because is Because.DEADLINE and late.limit == pytest.approx(0.1)
        assert (await running).refusal is None
        await waiting


async def test_events_are_bounded() -> None:
    story = Story()
    for number in range(MAX_EVENTS + 5):
        story.tell(float(number), "queued", number)
    assert len(story.events) == MAX_EVENTS and story.num_dropped_events == 5


PROMPT = [7, 9, 3, 4, 2, 8, 6, 1, 5, 3, 9, 7, 4]
"""Three blocks of 4 tokens and a token."""


async def test_a_prefix_that_differs_is_told_with_its_first_token() -> None:
    async with engine(fake()) as core:
        assert (await told(core, PROMPT)).prefix == PrefixMatch(0, Missed.NEW)
        assert (await told(core, PROMPT)).prefix == PrefixMatch(12)
        other = [*PROMPT[:6], 99, *PROMPT[7:]]
        assert (await told(core, other)).prefix == PrefixMatch(4, Missed.DIFFERS, first_difference=6)
        longer = [*PROMPT[:12], *range(200, 210)]
        assert (await told(core, longer)).prefix == PrefixMatch(12, Missed.DIFFERS, first_difference=12)
        assert (await told(core, PROMPT, cache_salt="x")).prefix == PrefixMatch(0, Missed.NEW)
        assert (await told(core, [1, 2])).prefix == PrefixMatch(0, Missed.SHORT)
    async with engine(fake(), prefix_caching=False) as core:
        assert (await told(core, PROMPT)).prefix == PrefixMatch(0, Missed.OFF)


async def test_a_prefix_that_is_gone_is_told_with_what_took_it() -> None:
    made = fake(num_blocks=8)
    async with engine(made) as core:
        await told(core, PROMPT, 1)
        await told(core, list(range(100, 128)), 1)  # seven blocks
        found = (await told(core, PROMPT, 1)).prefix
        assert found is not None and found.missed is Missed.EVICTED and found.evicted_by is Lost.ROOM
        assert found.matched_tokens + found.evicted_tokens == 12 and found.evicted_tokens > 0
        made.failures.append(Failure("die", token=55))
        await told(core, [55, 1], 1)
        assert (await told(core, PROMPT, 1)).prefix == PrefixMatch(0, Missed.EVICTED, None, 12, Lost.RESTART)
