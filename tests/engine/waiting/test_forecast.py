"""How long things will take before anything was measured: by the pace, and by what steps then take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from engine.sequence import Sequence
from engine.waiting.forecast import Forecast, SharedPrefixes, Work, streams
from engine.waiting.order import QUEUE_POLICIES
from engine.waiting.queue import WaitingQueue
from executors.contract import Pace
from tests.engine.harness import GREEDY, fake
from tests.sim.virtual_loop import run
from tests.text_requests import changed


class Step(NamedTuple):
    """What the estimate wants to know of a step."""

    num_decodes: int
    num_prompt_tokens: int


PACE = Pace(0.001, ((1, 0.010), (8, 0.024), (64, 0.080)))


def forecast(target_itl: float | None = None, new: bool = False) -> Forecast:
    """`new`: the engine has not measured decodes yet."""
    made = Forecast(PACE, 1000, 64, target_itl)
    if not new:
        made.learn(0, 1, PACE.decode_step(1))
    return made


def asked(tokens: int, first: int = 1, max_tokens: int = 100, tenant: str = "", priority: int = 0) -> Request:
    """Prompts with different first tokens have nothing in common."""
    ids = np.full(tokens, 7, np.int32)
    ids[0] = first
    return Request(RequestContext("test", 0.0, priority, tenant=tenant), ids, GREEDY, max_tokens)


def test_a_decode_step_is_read_off_the_line_between_two() -> None:
    found = [PACE.decode_step(count) for count in (0, 1, 4, 8, 36, 64, 500)]
    assert found == pytest.approx([0.0, 0.010, 0.016, 0.024, 0.052, 0.080, 0.080])
    only = Pace(0.001, ((4, 0.02),))
    assert [only.decode_step(count) for count in (1, 4, 9)] == [0.02] * 3


def test_prompts_alone_take_what_their_tokens_do() -> None:
    assert forecast().seconds(Work(tokens=900, count=3)) == pytest.approx(0.9)
    assert forecast().seconds(Work(tokens=5000, count=5)) == pytest.approx(5.0), "none of them streams"


def test_prompts_beside_streams_take_so_much_longer() -> None:
    """Three quarters of a decode step are for prompts, of one and three quarters."""
    work = Work(rest=100, tokens=5000, count=5, running=8, joining=5)
    assert forecast().seconds(work) == pytest.approx(5.1 * 1.75 / 0.75, rel=0.06)
    assert forecast(target_itl=0).seconds(work) == pytest.approx(5.1, rel=0.1), "nobody is spared"
    # 50 ms for a step: 26 beside 8 streams and fewer beside more.
    assert forecast(0.05).seconds(work) == pytest.approx(5.1 * 50 / 26, rel=0.1)
    # A target that the decodes alone miss: 8 tokens a step.
    assert forecast(0.001).seconds(replace(work, joining=0)) == pytest.approx(5100 / 8 * 0.032, rel=0.01)


def test_streams_are_not_spared_before_they_were_measured() -> None:
    work = Work(tokens=6000, count=6, running=8)
    first = 16 * 128 * (0.001 + 0.024 / 128)
    then = (6000 - 16 * 128) * 0.001 * 1.75 / 0.75
    new = forecast(new=True)
    assert new.seconds(work) == pytest.approx(first + then, rel=0.02)
    for _ in range(8):
        new.learn(128, 8, 0.152)
    assert new.seconds(work) == pytest.approx(first / 2 + then + 1024 * 0.001 * 1.75 / 0.75, rel=0.02)
    new.learn(0, 8, 0.024)
    assert new.seconds(work) == pytest.approx(6.0 * 1.75 / 0.75, rel=0.02)


def test_the_first_prompts_of_a_burst_share_a_step() -> None:
    work = Work(tokens=5000, count=10, joining=10)
    assert forecast().seconds(work) == pytest.approx(1.0 + 4.0 * 1.75 / 0.75, rel=0.06)


def test_what_is_out_counts_as_far_as_it_is_not_over() -> None:
    work = Work(in_flight=900, decodes=1, elapsed=0.5)
    assert forecast().seconds(work) == pytest.approx(0.41)
    assert forecast().seconds(replace(work, elapsed=3.0)) == 0.0
    assert forecast().seconds(replace(work, elapsed=3.0, tokens=500, count=1)) == pytest.approx(0.5)


def test_steps_correct_the_pace() -> None:
    """Of a machine that was three times as fast as it seemed, or slow."""
    for factor in (1 / 3, 3.0):
        tried = forecast()
        for _ in range(3):
            tried.learn(1000, 0, 1.0 * factor)
        assert tried.seconds(Work(tokens=900, count=3)) == pytest.approx(0.9 * factor, rel=0.15)
        for _ in range(300):
            tried.learn(30, 8, 0.054 * factor)
        assert tried.seconds(Work(tokens=900, count=3)) == pytest.approx(0.9 * factor, rel=0.02)
        assert tried.decode_step(64) == pytest.approx(0.08 * factor, rel=0.25)


def test_decodes_alone_have_a_pace_of_their_own() -> None:
    """On a machine whose prompts are as fast as they seemed, and whose decodes are three times as slow."""
    tried = forecast()
    for _ in range(30):
        tried.learn(1000, 0, 1.0)
    assert tried.decode_step(8) == pytest.approx(0.024, rel=0.05)
    for _ in range(100):
        tried.learn(0, 8, 0.072)
    assert tried.decode_step(8) == pytest.approx(0.072, rel=0.25)
    assert tried.decode_step(200) == tried.decode_step(64), "no step has more sequences than there are slots"


def test_what_is_guessed_of_a_request() -> None:
    assert streams(asked(5)) and not streams(asked(5, max_tokens=1))
    assert not streams(replace(asked(5, max_tokens=5), pooling="last"))


def test_what_prompts_have_in_common_is_computed_once() -> None:
    prefixes = SharedPrefixes(16)
    prompt = np.arange(100, dtype=np.int32)
    first = replace(asked(1), prompt_token_ids=prompt)
    other_end = replace(first, prompt_token_ids=np.append(prompt[:90], [5, 6, 7]).astype(np.int32))
    assert [prefixes.fresh(one) for one in (first, first, other_end)] == [100, 100 - 96, 93 - 80]
    assert prefixes.fresh(changed(first, cache_salt="theirs")) == 100
    assert prefixes.fresh(replace(first, adapter="other")) == 100
    assert prefixes.fresh(replace(first, prompt_logprobs=0)) == 100, "computed as a whole, whatever is known"
    # One token is computed in any case.
    assert prefixes.fresh(replace(first, prompt_token_ids=prompt[:96])) == 16
    for number in range(200, 220):
        prefixes.fresh(asked(50, first=number))
    assert prefixes.fresh(first) == 100, "too long ago"
    nothing = SharedPrefixes(0)
    assert [nothing.fresh(first) for _ in range(2)] == [100, 100]


class Queue:
    """A waiting queue with a forecast, and a clock that is set by hand."""

    def __init__(self, policy: str = "fcfs", block_size: int = 0) -> None:
        self.now = 0.0
        self.waiting = WaitingQueue(QUEUE_POLICIES[policy](), lambda: self.now)
        self.waiting.open(4, shares_prompts=True)
        self.waiting.expect(forecast(), block_size)
        self.count = 0

    def enter(self, request: Request) -> Sequence:
        self.count += 1
        self.waiting.submit(one := Sequence(self.count, request, Mailbox(), 0))
        return one


def test_an_idle_server_keeps_nobody_waiting() -> None:
    queue = Queue()
    assert queue.waiting.wait(asked(100_000)) == 0.0, "its own prompt is not before it"
    queue.enter(asked(500))
    assert queue.waiting.wait(asked(5)) == pytest.approx(0.5)


def test_work_that_was_started_is_before_who_comes() -> None:
    queue = Queue()
    long = queue.enter(asked(3000))
    queue.waiting.start(long)
    long.num_computed_tokens, long.in_flight = 1000, 1
    queue.waiting.estimate.submitted(Step(0, 1000))
    queue.now = 0.4
    assert queue.waiting.wait(asked(5)) == pytest.approx(0.6 + 2.0, rel=0.05)
    queue.waiting.estimate.stopped()
    assert queue.waiting.wait(asked(5)) == pytest.approx(2.0, rel=0.05), "the step is lost with its executor"
    queue.waiting.end(long)
    assert queue.waiting.wait(asked(5)) == 0.0


def test_the_first_step_corrects_what_is_told_of_a_queue() -> None:
    """On a machine that seemed four times as slow as it is."""
    queue = Queue()
    queue.enter(asked(3000, max_tokens=1))
    assert queue.waiting.wait(asked(5)) == pytest.approx(3.0)
    queue.waiting.estimate.submitted(Step(0, 1000))
    queue.waiting.estimate.observe(0.25, 1000)
    assert queue.waiting.wait(asked(5)) < 1.3


def test_only_prompts_that_come_before_it_keep_a_request_waiting() -> None:
    for policy, same, other in (("fair", asked(5, tenant="a"), asked(5, tenant="b")),
                                ("priority", asked(5, priority=2), asked(5, priority=0))):  # fmt: skip
        queue = Queue(policy)
        long = queue.enter(asked(3000, tenant="a", priority=1))
        queue.waiting.start(long)
        assert queue.waiting.wait(same) == pytest.approx(3.0, rel=0.05)
        assert queue.waiting.wait(other) == 0.0


def test_slots_are_waited_for_before_anything_has_ended() -> None:
    queue = Queue()
    for number in range(4):
        one = queue.enter(asked(1, first=number, max_tokens=100))
        queue.waiting.start(one)
        one.num_computed_tokens, one.num_pending_tokens = 1, 1
    queue.enter(asked(1, first=9))
    # All four slots are taken for 100 tokens, each of a step of four sequences; four prompts of a token are computed meanwhile.
    wait = 100 * PACE.decode_step(4)
    assert queue.waiting.wait(asked(1, first=10)) == pytest.approx(wait)
    for number in range(4):
        queue.enter(asked(1, first=20 + number))
    assert queue.waiting.wait(asked(1, first=30)) == pytest.approx(2 * wait + 4 * PACE.prompt_token)


def test_what_is_measured_takes_the_place_of_the_forecast() -> None:
    """Most of these prompts is found in the cache, which no pace can tell."""
    queue = Queue()
    for number in range(10):
        queue.enter(asked(1000, first=number, max_tokens=1))
    waits = [queue.waiting.wait(asked(5, first=99))]
    for _ in range(3):
        for _ in range(1000):
            queue.waiting.estimate.submitted(Step(0, 10))
            queue.waiting.estimate.observe(0.01, 1000)
        waits.append(queue.waiting.wait(asked(5, first=99)))
    assert waits[0] > 9.9 and waits[0] / 2 > waits[1] and waits[1] / 2 > waits[2] and waits[2] / 2 > waits[3]
    unmeasured = Queue()
    unmeasured.waiting.estimate.observe(0.9, 90_000)
    unmeasured.enter(asked(1000))
    assert unmeasured.waiting.wait(asked(5)) == pytest.approx(1.0), "too little to tell anything"


def test_a_queue_of_like_prompts_is_as_long_as_what_they_differ_in() -> None:
    queue = Queue(block_size=16)
    for _ in range(10):
        queue.enter(asked(1600, max_tokens=1))
    assert (queue.waiting.tokens, queue.waiting.count) == (16_000, 10)
    fresh = 1600 + 9 * 16
    assert 0.999e-3 * fresh <= queue.waiting.wait(asked(5, first=2)) <= 1e-3 * fresh * 1.75 / 0.75


@pytest.mark.parametrize("tokens", [60, 200])
@pytest.mark.parametrize("max_tokens", [1, 50])
def test_the_forecast_of_a_burst_is_what_then_happens(tokens: int, max_tokens: int) -> None:
    """40 prompts come at once on an engine that has just started. Time is virtual, and steps take what the pace says."""

    async def burst() -> list[tuple[float, float]]:
        made = fake(seqs=40, step_delay_ms=20, prompt_token_ms=2, num_blocks=4000)
        clock = asyncio.get_running_loop().time
        config = EngineConfig(max_num_seqs=40, max_num_batched_tokens=256, max_queue_wait=1e6)
        core = EngineCore(made, config, clock=clock)
        await core.start()
        began, mailboxes, told = clock(), [], []
        for number in range(40):
            request = asked(tokens, first=number, max_tokens=max_tokens)
            told.append(core._waiting.wait(request))
            mailboxes.append(Mailbox())
            core.submit(request, mailboxes[-1])
            await asyncio.sleep(0.001)

        async def first(mailbox: Mailbox) -> float:
            await mailbox.take()
            return clock() - began

        firsts = await asyncio.gather(*map(first, mailboxes))
        await core.stop()
        return list(zip(told, firsts, strict=True))

    own, step = 0.002 * tokens, 0.02 + 0.002 * 256
    for told, first in run(burst()):
        assert told == pytest.approx(first - own, rel=0.35, abs=1.2 * step), (
            "tokens come at the ends of steps"
        )


def test_a_pace_is_judged_once_steps_have_taken_long_enough() -> None:
    """The first step of a load reads weights for the first time, and takes several times as long as the pace says."""
    made = forecast(new=True)
    assert made.proven_ratio is None
    made.learn(100, 0, 0.9)
    assert made.ratio > 4 and made.proven_ratio is None
    for _ in range(20):
        made.learn(1000, 0, 1.0)
    assert made.proven_ratio == pytest.approx(1.0, abs=0.15)
    slow = forecast(new=True)
    slow.learn(5000, 0, 0.01)
    assert slow.proven_ratio is not None and slow.proven_ratio < 0.1
