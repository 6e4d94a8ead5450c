"""`Recovery.plan` decides and the loop acts: what it returns, and that it touches nothing but sequences."""

from __future__ import annotations

import pytest

from engine.config import MAX_FRUITLESS_RESTARTS, EngineConfig
from engine.core.journal import Journal
from engine.core.recovery import LONGEST_LOAD, Recovery, RestartTries
from engine.core.scheduler import Scheduler
from engine.kv.kv_cache_manager import KvCacheManager
from engine.mailbox import Mailbox
from engine.sequence import Sequence
from executors.contract import ExecutorDied, InvalidInput, KvLayout, OutOfMemory, StepFailed
from tests.engine.harness import request


class Clock:
    """A time that stands still unless it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(clock: Clock, **config: float) -> tuple[Scheduler, Recovery, Sequence]:
    """A scheduler with one sequence that asks for ten tokens."""
    scheduler = Scheduler(KvCacheManager(KvLayout(16), "m"), Journal(), 4, 64)
    scheduler.journal.open_epoch()
    seq = Sequence(1, request([1, 2, 3], 10), Mailbox(), 0)
    scheduler.waiting.submit(seq)
    scheduler.sequences.add(seq)
    return scheduler, Recovery(scheduler, EngineConfig(**config), clock), seq  # type: ignore[arg-type]


def test_a_failed_step_is_tried_again_and_the_third_names_the_culprit() -> None:
    scheduler, recovery, seq = made(Clock())
    for epoch in (2, 3):
        plan = recovery.plan(scheduler.schedule(), StepFailed("broken"))
        assert (plan.epoch, plan.culprits, plan.give_up_reason) == (epoch, [], None)
    plan = recovery.plan(scheduler.schedule(), StepFailed("broken"))
    assert plan.culprits == [seq] and plan.blame.message == "the executor failed: broken"
    assert plan.blame.code == "step_failed" and not seq.finished, "to answer it is the loop's"


def test_what_was_refused_needs_no_second_try() -> None:
    scheduler, recovery, seq = made(Clock())
    assert not recovery.plan(scheduler.schedule(), InvalidInput("odd")).culprits
    assert recovery.plan(scheduler.schedule(), InvalidInput("odd")).culprits == [seq]


def test_deaths_without_a_token_between_are_hopeless_in_the_end() -> None:
    clock = Clock()
    _, recovery, _ = made(clock)
    for _ in range(MAX_FRUITLESS_RESTARTS):
        assert recovery.plan(None, ExecutorDied("gone", "kill")).give_up_reason is None
    assert "times without a token" in str(recovery.plan(None, ExecutorDied("gone", "kill")).give_up_reason)
    recovery.record_progress()
    assert recovery.plan(None, ExecutorDied("gone", "kill")).give_up_reason is None


def test_no_memory_is_said_of_the_request_alone() -> None:
    scheduler, recovery, seq = made(Clock())
    for _ in range(3):
        plan = recovery.plan(scheduler.schedule(), OutOfMemory("full"))
    assert plan.culprits == [seq] and "no memory for this request" in plan.blame.message


def test_pauses_between_tries_grow_until_the_time_is_over() -> None:
    tries = RestartTries(EngineConfig(recovery_timeout=10.0, restart_pause=1.0), now=100.0)
    assert tries.load_timeout(100.0) == pytest.approx(10.0 + LONGEST_LOAD * 10.0)
    assert tries.load_timeout(120.0) == pytest.approx(LONGEST_LOAD * 10.0)
    assert [tries.next_pause(100.0), tries.next_pause(101.0), tries.next_pause(103.0)] == [1.0, 2.0, 4.0]
    assert tries.next_pause(109.5) is None
