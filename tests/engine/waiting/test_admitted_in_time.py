"""A burst on a server that has just started: who is let in is started in time, and who could be is let in.

Time is virtual, and steps take what the warm-up's pace says unless a case says otherwise. What could be served at most is what
the same callers get of a server that lets everybody in and drops those whose time is over.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import Overloaded
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from engine.story import Story
from engine.waiting.answers import USUAL_ANSWER, AnswerLengths, Guess, Kind, OutputLimits, kind_of
from executors import registry
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, Pace
from executors.testing.fakes.base import FakeExecutor
from tests.engine.harness import GREEDY
from tests.engine.waiting.test_fair import seq
from tests.sim.virtual_loop import run

STOP = frozenset({999_999})
"""A token that never comes."""
Draw = Callable[[random.Random], int]


def always(value: int) -> Draw:
    return lambda draw: value


def one_of(*values: int) -> Draw:
    return lambda draw: draw.choice(values)


@dataclass(frozen=True)
class Burst:
    """`callers` come `gap` seconds after one another, with prompts of `prompt` tokens, and ask for `asked` tokens; of those
    `answered` come, or all. A request waits `wait` seconds at most."""

    slots: int = 8
    wait: float = 15.0
    asked: Draw = field(default_factory=lambda: always(200))
    answered: Draw | None = None
    prompt: Draw = field(default_factory=lambda: always(50))
    callers: int = 100
    gap: float = 0.0
    blocks: int = 40_000
    sure: bool = False
    policy: str = "fcfs"
    keys: int = 1
    pace_error: float = 1.0
    """What the pace says of the time that steps take, as a factor."""
    step_ms: float = 20.0


def executor(case: Burst) -> FakeExecutor:
    made = registry.create(
        ExecutorConfig(
            "paged_fake", max_num_seqs=case.slots, max_model_len=8192,
            attention=ExecutorAttentionConfig(block_size=16),
            options={"num_blocks": case.blocks, "step_delay_ms": case.step_ms, "prompt_token_ms": 1.0},
        )
    )  # fmt: skip
    assert isinstance(made, FakeExecutor)
    pace = Pace(0.001 * case.pace_error, ((1, case.step_ms / 1000 * case.pace_error),))
    made.pace = lambda: pace  # type: ignore[method-assign]
    return made


async def outcomes(case: Burst, let_in_all: bool = False) -> Counter[str]:
    clock, draw = asyncio.get_running_loop().time, random.Random(7)
    config = EngineConfig(
        max_num_seqs=case.slots, max_num_batched_tokens=512, max_queue_wait=case.wait,
        scheduling_policy=case.policy,  # type: ignore[arg-type]
    )  # fmt: skip
    core = EngineCore(executor(case), config, clock=clock)
    await core.start()
    if let_in_all:
        core._waiting.wait = lambda request: 0.0  # type: ignore[method-assign]

    async def call(number: int, asked: int, answered: int, prompt: int) -> str:
        ids = np.full(prompt, 7, np.int32)
        ids[0] = number % 900 + 10
        context = RequestContext("r", clock(), story=Story(clock()), tenant=str(number % case.keys))
        mailbox, got, began = Mailbox(), 0, clock()
        try:
            seq_id = core.submit(
                Request(context, ids, GREEDY, asked, frozenset() if case.sure else STOP), mailbox
            )
        except Overloaded:
            return "refused"
        while True:
            delta = (await mailbox.take())[0]
            if delta.error is not None:
                assert isinstance(delta.error, Overloaded) and delta.error.retry_after >= 1
                return "taken back" if clock() - began < 0.25 * case.wait else "dropped"
            got += len(delta.tokens)
            if delta.finish_reason is not None:
                return "served"
            if got >= answered:
                core.finish(seq_id, got)
                return "served"

    calls = []
    for number in range(case.callers):
        asked = case.asked(draw)
        answered = asked if case.answered is None else min(asked, case.answered(draw))
        calls.append(asyncio.create_task(call(number, asked, answered, case.prompt(draw))))
        if case.gap:
            await asyncio.sleep(draw.expovariate(1 / case.gap))
    found = Counter(await asyncio.gather(*calls))
    assert await core.drain(1e6)
    await core.stop()
    core.check_integrity()
    return found


CASES = {
    "long steps": Burst(asked=always(40), step_ms=100.0),
    "8 slots, 200 tokens": Burst(),
    "8 slots, 500 tokens": Burst(asked=always(500)),
    "more tokens than usual, for certain": Burst(asked=always(1000), sure=True, wait=60.0),
    "nothing but short ones": Burst(slots=4, asked=always(50), wait=10.0),
    "2 slots": Burst(slots=2, asked=always(30), wait=5.0),
    "32 slots": Burst(slots=32, asked=always(150), wait=8.0, callers=200),
    "one after the other": Burst(gap=0.15),
    "short and long answers": Burst(asked=one_of(16, 64, 200, 400)),
    "long prompts": Burst(prompt=always(1500), asked=always(100), wait=30.0),
    "little KV": Burst(slots=32, prompt=always(100), blocks=300),
    "two keys": Burst(policy="fair", keys=2),
    "room for all": Burst(asked=always(50), wait=60.0),
    "a pace twice too good, one after the other": Burst(pace_error=0.5, gap=0.15),
    "a pace twice too bad, one after the other": Burst(pace_error=2.0, gap=0.15),
    "answers shorter than asked, one after the other": Burst(
        asked=always(2000), answered=one_of(20, 100, 300), gap=0.3
    ),
}


QUICK = ("long steps", "2 slots", "little KV")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long(every=3)) for name in CASES]
)
def test_who_is_let_in_is_started_in_time_and_who_could_be_is_let_in(name: str) -> None:
    case = CASES[name]
    found = run(outcomes(case))
    possible = run(outcomes(case, let_in_all=True))["served"]
    admitted = found["served"] + found["dropped"]
    assert admitted + found["refused"] + found["taken back"] == case.callers
    assert found["taken back"] <= 0.1 * admitted, "a second look is for surprises"
    assert found["dropped"] <= 0.1 * admitted, (name, found)
    assert found["served"] >= 0.8 * possible, (name, found, possible)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_a_pace_that_was_five_times_too_good_is_noticed_by_the_first_steps(policy: str) -> None:
    """All are let in, for all came before a step was done; most hear within seconds that it was a mistake."""
    case = Burst(
        asked=always(40), step_ms=100.0, pace_error=0.2, policy=policy, keys=3 if policy == "fair" else 1
    )
    found = run(outcomes(case))
    possible = run(outcomes(case, let_in_all=True))["served"]
    assert found["refused"] < 10 and found["taken back"] >= 50, found
    assert found["dropped"] <= 0.1 * (found["served"] + found["dropped"]), found
    assert found["served"] >= 0.75 * possible, (found, possible)


@pytest.mark.parametrize("slots", [1, 8])
def test_nobody_is_let_in_first_in_line_for_slots_that_stay_taken(slots: int) -> None:
    """Nothing waits before such a caller, and the slots are taken for 40 s all the same."""
    case = Burst(slots=slots, wait=5.0, asked=always(2000), sure=True, callers=slots + 20, gap=0.5)
    assert run(outcomes(case)) == {"served": slots, "refused": 20}


def test_an_idle_server_refuses_nobody() -> None:
    alone = Burst(slots=1, wait=0.5, asked=always(1000), prompt=always(1000), callers=1)
    assert run(outcomes(alone)) == {"served": 1}


def test_answers_of_unknown_length_are_taken_to_be_of_the_usual_one() -> None:
    """8 slots, 15 s, and 20 ms a token: one round of the usual length fits, whatever a client allows at most."""
    found = run(outcomes(Burst(asked=always(6000), answered=always(USUAL_ANSWER))))
    assert (found["served"], found["dropped"]) == (16, 0)


@pytest.mark.long
def test_one_after_the_other_answers_teach_how_long_they_are() -> None:
    """A server whose answers have a fifth of what is asked for lets in as many as it can serve after the first few."""
    case = Burst(asked=always(400), answered=always(80), callers=300, gap=0.1)
    found = run(outcomes(case))
    assert found["dropped"] <= 0.02 * 300
    assert found["served"] >= 0.9 * run(outcomes(case, let_in_all=True))["served"]


# -- the lengths alone -----------------------------------------------------------------------------------------------


def asked(most: int, stops: bool = True, **changes: Any) -> Any:
    one = seq(1)
    one.request = replace(
        one.request, max_tokens=most, stop_token_ids=STOP if stops else frozenset(), **changes
    )
    return one


def test_what_is_known_of_a_length_before_it_is_there() -> None:
    assert kind_of(asked(100).request) is Kind.SHORT and kind_of(asked(5000).request) is Kind.OPEN
    assert kind_of(asked(5000, stops=False).request) is Kind.SURE
    assert kind_of(asked(1, pooling="last").request) is Kind.NONE
    total = OutputLimits()
    for one in (asked(100), asked(5000), asked(700, stops=False), asked(1, pooling="last")):
        total.add(one.request, 1)
    assert (total.short, total.open, total.sure) == (100, 1, 700)
    assert Guess().total(total) == 100 + USUAL_ANSWER + 700
    assert Guess(0.5, 900).total(total) == 50 + 900 + 700
    total.add(asked(100).request, -1)
    assert total.plus(total).part(0.5) == total


def test_what_is_left_of_an_output() -> None:
    one = asked(100)
    one.output_token_ids = [1] * 30
    assert Guess().left(one) == 70 and Guess(short=0.5).left(one) == 20
    one.output_token_ids = [1] * 60
    assert Guess(short=0.5).left(one) == 12.5, "it goes on for a while, however long it is already"
    one.output_token_ids = [1] * 95
    assert Guess(short=0.5).left(one) == 5
    sure = asked(3000, stops=False)
    sure.output_token_ids = [1] * 2999
    assert Guess().left(sure) == 1 and Guess().left(asked(1, pooling="last")) == 0


def test_outputs_that_end_early_do_not_speak_for_those_that_run() -> None:
    lengths, short = AnswerLengths(), asked(400)
    short.output_token_ids = [1] * 10
    running = [asked(400) for _ in range(7)]
    for one in running:
        one.output_token_ids = [1] * 50
    lengths.learn(short)
    early = lengths.guess(running)
    assert 0.6 < early.short < 1.0, "one end in 360 tokens"
    for _ in range(200):
        lengths.learn(short)
    assert lengths.guess([]).short == pytest.approx(10 / 400, abs=0.07)
    assert lengths.guess([]).open == USUAL_ANSWER, "nothing is known of those"
    long = asked(8000)
    long.output_token_ids = [1] * 3000
    for _ in range(200):
        lengths.learn(long)
    assert lengths.guess([]).open == pytest.approx(3000, rel=0.1), "reasoning models exceed what is usual"
