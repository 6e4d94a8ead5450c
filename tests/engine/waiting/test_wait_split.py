"""What a wait is split into: seconds by reason, step by step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import EngineError
from engine.mailbox import Mailbox
from engine.request import RequestContext
from engine.sequence import Sequence
from engine.story import Story, WaitReason
from engine.waiting.fair import RESERVED_FOR
from engine.waiting.reasons import WaitReasons
from executors.testing.fakes.failures import Failure
from tests.engine.harness import fake, read, request
from tests.engine.waiting.test_fair import seq
from tests.sim.virtual_loop import run

SLOTS, STEP, TOKENS, PREFIX = WaitReason.SLOTS, WaitReason.STEP, WaitReason.TOKENS, WaitReason.PREFIX
RECOVERY, FAIR_SHARE, KV_BLOCKS = WaitReason.RECOVERY, WaitReason.FAIR_SHARE, WaitReason.KV_BLOCKS


class Steps:
    """Reasons on a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reasons = WaitReasons(lambda: self.now)

    def step(self, at: float, queue: WaitReason | None, **held: tuple[Sequence, WaitReason]) -> None:
        """A step is put together, which takes a moment."""
        self.now = at
        self.reasons.begin_step()
        for one, reason in held.values():
            self.now += 0.01
            self.reasons.hold(one, reason)
        self.reasons.end_step(queue)

    def end(self, at: float, one: Sequence) -> dict[WaitReason, float]:
        self.now = at
        return self.reasons.end(one)[1]


def test_each_step_has_its_own_reason() -> None:
    steps, one, other = Steps(), seq(1), seq(2)
    steps.step(0.0, SLOTS)
    steps.now = 0.5
    steps.reasons.begin(one)
    steps.reasons.begin(other)
    steps.step(1.0, SLOTS, first=(one, PREFIX))
    steps.step(3.0, TOKENS)
    assert steps.reasons.so_far(one) == pytest.approx({STEP: 0.5, PREFIX: 2.0})
    steps.step(3.5, SLOTS)
    assert steps.end(6.0, one) == pytest.approx({STEP: 0.5, PREFIX: 2.0, TOKENS: 0.5, SLOTS: 2.5})
    assert steps.end(6.0, other) == pytest.approx({STEP: 0.5, SLOTS: 4.5, TOKENS: 0.5})
    assert steps.end(7.0, one) == {} == steps.reasons.so_far(one), "it waits no longer"


def test_a_reason_of_its_own_may_be_that_of_the_queue_and_may_change_within_a_step() -> None:
    steps, one = Steps(), seq(1)
    steps.reasons.begin(one)
    steps.step(1.0, SLOTS, first=(one, SLOTS))
    steps.now = 2.0
    steps.reasons.hold(one, KV_BLOCKS)
    assert steps.end(4.0, one) == pytest.approx({STEP: 1.0, SLOTS: 1.0, KV_BLOCKS: 2.0})


def test_without_an_executor_all_wait_for_it() -> None:
    steps, one = Steps(), seq(1)
    steps.reasons.begin(one)
    steps.step(1.0, SLOTS, first=(one, PREFIX))
    steps.now = 1.5
    steps.reasons.wait_for(RECOVERY)
    late = seq(2)
    steps.now = 3.0
    steps.reasons.begin(late)
    steps.step(10.0, None)
    assert steps.end(11.0, one) == pytest.approx({STEP: 2.0, PREFIX: 0.5, RECOVERY: 8.5})
    assert steps.end(11.0, late) == pytest.approx({RECOVERY: 7.0, STEP: 1.0})


# -- in an engine, on a virtual clock ---------------------------------------------------------------------------------


async def started(made: Any, **config: Any) -> EngineCore:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "restart_pause": 0.01, **config}
    core = EngineCore(made, EngineConfig(**settings), clock=asyncio.get_running_loop().time)
    await core.start()
    return core


async def told(
    core: EngineCore, prompt: list[int], max_tokens: int, leaves_after: float | None = None, **context: Any
) -> Story:
    """The story of one call, of which its client may want no more after some seconds."""
    now, mailbox = core.clock(), Mailbox()
    story = Story(now)
    asked = replace(request(prompt, max_tokens), context=RequestContext("r", now, story=story, **context))
    try:
        seq_id = core.submit(asked, mailbox)
    except EngineError:
        return story
    try:
        async with asyncio.timeout(leaves_after):
            await read(mailbox)
    except TimeoutError:
        core.abort(seq_id)
        await asyncio.sleep(1)
    return story


def largest(waited: dict[WaitReason, float]) -> WaitReason:
    return max(waited, key=lambda reason: waited[reason])


def check_sum(story: Story, now: float) -> None:
    """The call's wait is split without a rest, and so is every other wait of its sequences."""
    queued = story.queue_seconds(now)
    assert queued is not None and sum(story.waited.values()) == pytest.approx(queued, abs=1e-9)
    assert all(seconds > 0 for seconds in story.waited.values())
    since: dict[int | None, float] = {}
    for event in story.events:
        if event.name in ("queued", "preempted", "restart"):
            since[event.choice] = event.at
        elif event.name == "admitted":
            waited = event.details["waited"]
            assert isinstance(waited, dict)
            assert sum(waited.values()) == pytest.approx(event.at - since.pop(event.choice), abs=1e-9)


def test_a_full_queue_of_one_key_waits_for_its_share_and_then_for_slots() -> None:
    """100 streams of one key on 8 slots, after one call of another: the eighth slot is kept for that one for a minute."""

    async def main() -> None:
        made = fake(seqs=8, step_delay_ms=50, num_blocks=4000)
        core = await started(made, scheduling_policy="fair", max_queue_wait=1000.0)
        await told(core, [1, 2], 2, tenant="other")
        stories = await asyncio.gather(
            *(told(core, [number + 5], 200, tenant="many") for number in range(100))
        )
        ends = RESERVED_FOR + 5
        for story in stories:
            check_sum(story, core.clock())
            assert story.admitted is not None and story.queued is not None
            waited = story.admitted - story.queued
            if 1.0 < waited < RESERVED_FOR:
                assert waited - story.waited[FAIR_SHARE] < 0.3, story.waited
            elif waited > ends:
                assert story.waited[FAIR_SHARE] == pytest.approx(RESERVED_FOR, abs=1.0)
                assert story.waited[SLOTS] == pytest.approx(waited - RESERVED_FOR, abs=1.5)
        # 7 at a time for a minute, then 8: a call takes 10 s.
        assert max(story.admitted or 0.0 for story in stories) < 10.5 * (42 / 7 + 58 / 8 + 1)
        await core.stop()

    run(main())


def test_streams_of_one_key_alone_wait_for_slots() -> None:
    async def main() -> None:
        core = await started(fake(seqs=8, step_delay_ms=50, num_blocks=4000), scheduling_policy="fair")
        for story in await asyncio.gather(*(told(core, [n + 5], 20, tenant="one") for n in range(40))):
            check_sum(story, core.clock())
            if story.waited and sum(story.waited.values()) > 0.2:
                assert largest(story.waited) is SLOTS and FAIR_SHARE not in story.waited
        await core.stop()

    run(main())


def test_who_comes_while_others_have_their_share_does_not_wait_for_it() -> None:
    async def main() -> None:
        core = await started(fake(seqs=8, step_delay_ms=50, num_blocks=4000), scheduling_policy="fair")
        await told(core, [1, 2], 2, tenant="other")
        many = [asyncio.create_task(told(core, [n + 5], 100, tenant="many")) for n in range(30)]
        await asyncio.sleep(1.01)
        other = await told(core, [3, 4], 2, tenant="other")
        assert set(other.waited) == {STEP} and other.waited[STEP] < 0.051
        await asyncio.gather(*many)
        await core.stop()

    run(main())


def test_a_wait_for_slots_behind_a_common_prefix_is_not_told_as_one_for_the_prefix() -> None:
    """All prompts begin alike, so each is passed over in the one step that computes the beginning."""

    async def main() -> None:
        core = await started(fake(seqs=2, step_delay_ms=100, num_blocks=4000), max_num_seqs=2)
        common = list(range(1, 33))
        stories = await asyncio.gather(*(told(core, [*common, 100 + n], 30) for n in range(8)))
        for story in stories:
            check_sum(story, core.clock())
        assert sum(PREFIX in story.waited for story in stories) == 7, "all but the first were passed over"
        late = [story for story in stories if sum(story.waited.values()) > 1]
        assert len(late) == 6
        for story in late:
            assert story.waited[PREFIX] <= 0.1001 and largest(story.waited) is SLOTS
        await core.stop()

    run(main())


def test_a_call_that_still_waits_says_for_what() -> None:
    async def main() -> None:
        core = await started(fake(seqs=1, step_delay_ms=100), max_num_seqs=1)
        running = asyncio.create_task(told(core, [1], 50))
        await asyncio.sleep(0.25)
        story, mailbox = Story(core.clock()), Mailbox()
        core.submit(replace(request([2], 2), context=RequestContext("r", 0.0, story=story)), mailbox)
        await asyncio.sleep(2.0)
        assert story.waited == {} and story.waited_for() == pytest.approx({STEP: 0.05, SLOTS: 1.95})
        await read(mailbox)
        assert story.waited_for() is story.waited and largest(story.waited) is SLOTS
        await running
        await core.stop()

    run(main())


def test_a_preempted_sequence_waits_for_blocks() -> None:
    async def main() -> None:
        core = await started(
            fake(seqs=2, step_delay_ms=100, num_blocks=8), max_num_seqs=2, prefix_caching=False
        )
        stories = await asyncio.gather(*(told(core, [n] * 8, 20) for n in range(2)))
        for story in stories:
            check_sum(story, core.clock())
        again = [event for story in stories for event in story.events if event.name == "admitted"][1:]
        waits = [event.details["waited"] for event in again if sum(event.details["waited"].values()) > 0.2]  # type: ignore[attr-defined]
        assert waits and all(largest(waited) is KV_BLOCKS for waited in waits)
        await core.stop()

    run(main())


class Ledger(WaitReasons):
    """The same, and beside it the plain way: everything that waits is booked at every event."""

    def __init__(self, clock: Any) -> None:
        self.booked: dict[Sequence, dict[WaitReason, float]] = {}
        self.why: dict[Sequence, WaitReason] = {}
        self.at = clock()
        super().__init__(clock)

    def book(self) -> None:
        now = self._since if self._frozen else self._clock()
        for one, waited in self.booked.items():
            reason = self.why.get(one, self._reason)
            waited[reason] = waited.get(reason, 0.0) + now - self.at
        self.at = now

    def begin_step(self) -> None:
        self.book()
        self.why.clear()
        super().begin_step()

    def wait_for(self, reason: WaitReason) -> None:
        self.book()
        self.why.clear()
        super().wait_for(reason)

    def begin(self, seq: Sequence) -> None:
        self.book()
        if seq not in self.booked:
            self.booked[seq] = {}
            if self._reason is not RECOVERY:
                self.why[seq] = STEP
        super().begin(seq)

    def hold(self, seq: Sequence, reason: WaitReason) -> None:
        self.book()
        self.why[seq] = reason
        super().hold(seq, reason)

    def end(self, seq: Sequence) -> tuple[float, dict[WaitReason, float]]:
        self.book()
        self.why.pop(seq, None)
        plain = {reason: seconds for reason, seconds in self.booked.pop(seq, {}).items() if seconds > 1e-9}
        now, waited = super().end(seq)
        assert waited == pytest.approx(plain, abs=1e-8)
        return now, waited


def scenario(seed: int, monkeypatch: pytest.MonkeyPatch) -> Coroutine[Any, Any, set[WaitReason]]:
    """Calls that come, leave and run out of time, on an executor with few blocks that dies and fails now and then."""
    monkeypatch.setattr("engine.waiting.queue.WaitReasons", Ledger)
    draw = random.Random(seed)
    common = np.arange(1, 25).tolist()

    async def main() -> set[WaitReason]:
        made = fake(seqs=4, step_delay_ms=20, prompt_token_ms=1, num_blocks=draw.choice([14, 30, 4000]))
        made.pace = lambda: None  # type: ignore[method-assign]
        made.failures += [
            Failure(draw.choice(["die", "step_failed", "out_of_memory"]), step=draw.randrange(3, 90))
            for _ in range(4)
        ]
        policy = draw.choice(["fcfs", "fair", "fair", "priority"])
        core = await started(
            made, scheduling_policy=policy, max_num_seqs=4, max_num_batched_tokens=draw.choice([16, 64]),
            max_queue_wait=draw.choice([2.0, 1000.0]), max_in_flight=draw.choice([1, 2]),
        )  # fmt: skip
        calls = []
        for number in range(40):
            context = {"tenant": draw.choice("aab")} if policy == "fair" else {}
            prompt = (common if draw.random() < 0.5 else []) + [100 + number]
            leaves = draw.uniform(0, 3) if draw.random() < 0.2 else None
            calls.append(asyncio.create_task(told(core, prompt, draw.randrange(1, 24), leaves, **context)))
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.03, 0.2]))
        stories = [story for story in await asyncio.gather(*calls) if story.queued is not None]
        for story in stories:
            check_sum(story, core.clock())
        assert len(stories) > 30 and not core._waiting.reasons._waits and not core._waiting.reasons._own
        await core.stop()
        core.check_integrity()
        return {reason for story in stories for reason in story.waited}

    return main()


def test_a_wait_is_split_without_a_rest_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    met = set[WaitReason]()
    for seed in range(12):
        met |= run(scenario(seed, monkeypatch))
    assert met >= {STEP, SLOTS, TOKENS, PREFIX, RECOVERY, FAIR_SHARE, KV_BLOCKS}, met
