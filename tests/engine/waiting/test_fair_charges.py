"""What tenants are charged with: each position of their sequences once, however often it is computed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from engine.core.engine import EngineCore
from engine.sequence import Sequence
from engine.waiting.fair import Fair
from executors.process.inline import InlineExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, request, run
from tests.engine.waiting.test_fair import order, seq
from tests.text_requests import changed

PROMPT, OUTPUT = 20, 30
EACH = PROMPT + OUTPUT - 1
"""Positions of one sequence that are computed: its last token never is."""


def prompt_of(tenant: str, number: int) -> list[int]:
    return [ord(tenant), number] + [7] * (PROMPT - 2)


def charged(core: EngineCore) -> Counter[str]:
    """Tokens that each tenant has been charged with, in the making."""
    assert core._scheduler is not None
    policy, found = core._scheduler.waiting.policy, Counter[str]()
    charge = policy.charge

    def count(one: Sequence, num_tokens: int) -> None:
        assert num_tokens >= 0
        found[one.context.tenant] += num_tokens
        charge(one, num_tokens)

    policy.charge = count  # type: ignore[method-assign]
    return found


async def answer(core: EngineCore, tenants: str = "ab") -> None:
    """Three requests of the first tenant beside one of each other one, all answered as they ought to be."""
    asked = [(tenant, number) for tenant in tenants for number in range(3 if tenant == tenants[0] else 1)]
    found = await asyncio.gather(
        *(run(core, changed(request(prompt_of(*one), OUTPUT), tenant=one[0])) for one in asked)
    )
    assert [ids for ids, _ in found] == [expected_tokens(prompt_of(*one), OUTPUT) for one in asked]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("kind", ["step_failed", "die", "nan"])
async def test_what_a_failure_undid_is_not_charged_again(kind: str, in_flight: int) -> None:
    made = fake()
    config = {"scheduling_policy": "fair", "max_in_flight": in_flight, "max_num_batched_tokens": 64}
    async with engine(InlineExecutor(made.config, made), **config) as core:  # type: ignore[arg-type]
        found = charged(core)
        if kind == "nan":
            # A prefix of others is borrowed, so the sequence is computed once more with its own KV.
            await run(core, changed(request([*prompt_of("b", 0), 1], 1), tenant="c"))
            made.failures.append(Failure(kind, seq=5))
        else:
            made.failures += [Failure(kind, step=step) for step in (2, 15, 25)]
        await answer(core)
        assert (core.stats().epoch, core.stats().preemptions > 0) == ((1 if kind == "nan" else 4), True)
    borrowed = 16 if kind == "nan" else 0
    assert (found["a"], found["b"]) == (3 * EACH, EACH - borrowed)


async def test_what_a_preemption_undid_is_not_charged_again() -> None:
    async with engine(fake(num_blocks=26), scheduling_policy="fair", prefix_caching=False) as core:
        found = charged(core)
        await answer(core)
        assert core.stats().preemptions > 0
    assert found == {"a": 3 * EACH, "b": EACH}


class HalfRight:
    """Guesses four tokens, of which two are right."""

    def __init__(self) -> None:
        self.guesses = 0
        self._truth: dict[Sequence, list[int]] = {}

    def propose(self, one: Sequence) -> list[int]:
        self.guesses += 1
        if one not in self._truth:
            self._truth[one] = expected_tokens(one.request.prompt_token_ids, OUTPUT + 4)
        known = len(one.output_token_ids)
        first, second, third, fourth = self._truth[one][known : known + 4]
        return [first, second, third ^ 1, fourth]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_of_drafts_those_are_charged_that_were_accepted(fails: bool, in_flight: int) -> None:
    made = fake()
    if fails:
        made.failures += [Failure("step_failed", step=step) for step in (2, 6, 9)]
    config = {"scheduling_policy": "fair", "max_in_flight": in_flight, "max_num_batched_tokens": 64}
    async with engine(InlineExecutor(made.config, made), **config) as core:  # type: ignore[arg-type]
        assert core._scheduler is not None
        core._scheduler.policies.drafter = drafter = HalfRight()
        found = charged(core)
        await answer(core)
        assert drafter.guesses > 20 and made.steps < 2 * OUTPUT
    assert found == {"a": 3 * EACH, "b": EACH}


def test_who_is_computed_anew_takes_no_turn_for_it() -> None:
    queue = Fair()
    preempted = seq(1, "a", tokens=1000)
    preempted.num_charged_tokens = 990
    for one in (preempted, seq(2, "a", tokens=10), seq(3, "b", tokens=50), seq(4, "b", tokens=50)):
        queue.add(one)
    assert order(queue) == [1, 3, 2, 4]
