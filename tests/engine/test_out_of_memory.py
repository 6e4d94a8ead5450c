"""A step for which the executor has no memory: made smaller and tried again, and nobody is blamed for it."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from engine.core import step_budget
from engine.core.engine import EngineCore
from engine.core.step_budget import LEAST_TOKENS, MOST_PATIENCE, PATIENCE, StepBudget
from engine.errors import BrokeExecutor
from engine.mailbox import Mailbox
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, request, run

FOREVER = 10**9


def tokens_of(core: EngineCore) -> int:
    """What a step may have now."""
    assert core._scheduler is not None
    return core._scheduler.step_budget.tokens


def watched(made: FakeExecutor) -> list[int]:
    """Tokens of each step that is computed or fails, in the making."""
    works, seen = made.unified_decode, list[int]()

    async def unified_decode(batch):
        seen.append(batch.total_q_tokens())
        return await works(batch)

    made.unified_decode = unified_decode  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_every_stream_is_what_it_would_have_been(
    in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty at once, in steps far too large for the memory that there is: the same tokens, no failure, no culprit."""
    rng = random.Random(in_flight)
    made = fake(seqs=16)
    made.failures.append(Failure("out_of_memory", above=40, times=FOREVER))
    asked = [
        request([rng.randrange(90) for _ in range(rng.randrange(1, 90))], rng.randrange(1, 30))
        for _ in range(40)
    ]
    async with engine(
        made, max_num_seqs=16, max_num_batched_tokens=256, max_in_flight=in_flight, target_itl=0.0
    ) as core:
        found = await asyncio.gather(*(run(core, one) for one in asked))
        for one, (ids, _) in zip(asked, found, strict=True):
            assert ids == expected_tokens(one.prompt_token_ids.tolist(), one.max_tokens)
        assert core.stats().resumed == 0 and tokens_of(core) <= 64
        assert core.stats().step_tokens == tokens_of(core) and core.stats().steps_cut >= 2

        made.failures.clear()  # whoever took the memory has gone
        caplog.set_level(logging.INFO, "cohort.engine")
        while tokens_of(core) < 256:
            await run(core, request([1], 200))
        seen = watched(made)
        await run(core, request([2] * 200, 1))
        assert seen == [200]
    assert "steps may have 256 tokens again" in caplog.text


async def test_it_says_so_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    made = fake()
    made.failures.append(Failure("out_of_memory", above=20))
    async with engine(made) as core:
        assert (await run(core, request([3] * 30, 5)))[0] == expected_tokens([3] * 30, 5)
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.levelname for record in lines] == ["WARNING"]
    assert "no memory for a step of 30 tokens of 1 sequences, at most 15 from now on" in lines[0].getMessage()


async def test_decodes_are_halved_too() -> None:
    """Of what the step had, not of a budget that it did not use: the first try fits."""
    made = fake(seqs=16)
    made.failures.append(Failure("out_of_memory", above=10, times=FOREVER))
    async with engine(made, max_num_seqs=16, max_num_batched_tokens=256) as core:
        for budget in (256, LEAST_TOKENS):
            assert tokens_of(core) == budget
            found = await asyncio.gather(*(run(core, request([i], 12)) for i in range(16)))
            assert [ids for ids, _ in found] == [expected_tokens([i], 12) for i in range(16)]
        assert core.stats().resumed == 0


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
async def test_streams_take_turns_where_a_step_has_no_room_for_all(policy: str) -> None:
    """None stands still until others have ended: neither one that decodes, nor one that has to be computed anew."""
    made = fake(seqs=32)
    lengths, at_first_end = [0] * 24, list[int]()

    async def stream(core: EngineCore, i: int) -> None:
        prompt, mailbox, got = [i] * (20 if i % 2 else 2), Mailbox(), list[int]()
        core.submit(request(prompt, 150), mailbox)
        while len(got) < 150:
            for delta in (await mailbox.take()).values():
                got += [token.token_id for token in delta.tokens]
            lengths[i] = len(got)
            if all(lengths) and not made.failures:
                made.failures.append(Failure("out_of_memory", above=LEAST_TOKENS + 4, times=FOREVER))
        assert got == expected_tokens(prompt, 150)
        at_first_end[:] = at_first_end or lengths

    async with engine(made, max_num_seqs=32, max_num_batched_tokens=256, scheduling_policy=policy) as core:  # type: ignore[arg-type]
        await asyncio.gather(*(stream(core, i) for i in range(24)))
    assert min(at_first_end) >= 10, sorted(at_first_end)[:3]


async def test_who_finds_no_memory_even_alone_fails_and_the_others_go_on() -> None:
    """However small the step: a sequence that is too long, say."""
    made = fake()
    made.failures.append(Failure("out_of_memory", token=77, times=FOREVER))
    async with engine(made) as core:
        others = [run(core, request([i, i + 1], 12)) for i in range(5)]
        *good, bad = await asyncio.gather(*others, run(core, request([77] * 20, 9)), return_exceptions=True)
        assert isinstance(bad, BrokeExecutor) and bad.status == 500 and bad.code == "out_of_memory"
        assert "no memory for this request, even by itself" in bad.message
        assert [one[0] for one in good] == [expected_tokens([i, i + 1], 12) for i in range(5)]  # type: ignore[index]


async def test_memory_is_short_once_and_a_death_follows() -> None:
    """What was no failed step of theirs does not count when the executor fails for another reason: they have two left."""
    made = fake()
    made.failures.append(Failure("out_of_memory", above=20, times=2))
    async with engine(made, max_num_batched_tokens=200) as core:
        made.failures += [Failure("step_failed", step=4), Failure("step_failed", step=5)]
        found = await asyncio.gather(*(run(core, request([i] * 30, 4)) for i in range(3)))
        assert [ids for ids, _ in found] == [expected_tokens([i] * 30, 4) for i in range(3)]


# -- the budget itself ---------------------------------------------------------------------------------------------------


def grown(budget: StepBudget) -> int:
    """Good steps until it is larger."""
    before = budget.tokens
    for count in range(1, 10**6):
        budget.went_well()
        if budget.tokens > before:
            return count
    raise AssertionError("it never grows")


def test_it_is_halved_down_to_the_least_and_grows_back() -> None:
    budget, seen = StepBudget(100), []
    while budget.shrink(budget.tokens):
        seen.append(budget.tokens)
    assert seen == [50, 25, 12, LEAST_TOKENS]
    assert not budget.shrink(1) and budget.tokens == LEAST_TOKENS
    assert [grown(budget) for _ in range(4)] == [PATIENCE] * 4
    assert budget.tokens == budget.most == 100
    assert not budget.shrink(LEAST_TOKENS) and budget.tokens == 100


def test_a_budget_below_the_least_stays_what_it_is() -> None:
    budget = StepBudget(3)
    assert not budget.shrink(3) and budget.tokens == 3


def test_growing_in_vain_is_tried_less_and_less_often() -> None:
    budget = StepBudget(64)
    waits = []
    for _ in range(20):
        budget.shrink(64)
        waits.append(grown(budget))
    assert waits[:4] == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]
    assert waits[-1] == MOST_PATIENCE


def test_in_the_end_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_budget, "MOST_PATIENCE", 1000)
    budget = StepBudget(64)
    for _ in range(3):
        budget.shrink(64)
        grown(budget)
    for _ in range(1000):
        budget.went_well()
    budget.shrink(64)
    assert grown(budget) == PATIENCE
