"""When a child counts as hung: the rules of watch.py, with a clock of our own."""

from engine.config import EngineConfig
from executors.process.watch import HangWatch, Limits, TokenCost

LIMITS = Limits(silence_s=5, loading_silence_s=120, step_floor_s=30, step_factor=10, slow_call_s=600)


def loaded(cost: float | None = 0.001) -> HangWatch:
    watch = HangWatch(LIMITS, TokenCost(cost), now=0.0)
    watch.loaded()
    return watch


def test_silence() -> None:
    watch = loaded()
    assert watch.verdict(5.0) is None
    assert watch.verdict(5.1) == "no heartbeat for 5.1 s"
    watch.heard(5.1)
    assert watch.verdict(10.0) is None


def test_loading_may_be_silent_for_longer() -> None:
    watch = HangWatch(LIMITS, TokenCost(), now=0.0)
    assert watch.verdict(119.0) is None
    assert watch.verdict(121.0) is not None
    watch.loaded()
    assert watch.verdict(119.0) is not None


def test_loading_again_leaves_time_for_another_try() -> None:
    watch = HangWatch(Limits(), TokenCost(), now=0.0, again=True)
    assert watch.verdict(19.0) is None
    assert watch.verdict(21.0) is not None
    assert 2 * Limits().reloading_silence_s < EngineConfig().recovery_timeout


def verdict_at(watch: HangWatch, now: float) -> str | None:
    watch.heard(now)
    return watch.verdict(now)


def test_the_deadline_of_a_step_follows_from_what_tokens_cost() -> None:
    watch = loaded(cost=0.001)
    watch.sent(100.0, 256)
    assert watch.deadline_s() == 30.0
    assert verdict_at(watch, 129.0) is None
    assert verdict_at(watch, 131.0) == "a step took longer than its deadline of 30.0 s"
    watch = loaded(cost=0.01)
    watch.sent(100.0, 2000)
    assert watch.deadline_s() == 200.0


def test_the_second_call_outstanding_begins_when_the_first_is_answered() -> None:
    watch = loaded()
    watch.sent(0.0, 1)
    watch.sent(1.0, 1)
    watch.answered(29.0, 29.0, step=False)
    assert verdict_at(watch, 58.0) is None
    assert verdict_at(watch, 60.0) is not None
    watch.answered(60.0, 1.0, step=True)
    assert watch.deadline_s() is None and verdict_at(watch, 1000.0) is None


def test_what_was_not_measured_gets_the_long_limit() -> None:
    watch = loaded(cost=None)
    watch.sent(0.0, 4)
    assert watch.deadline_s() == 600.0
    watch.answered(20.0, 20.0, step=True)
    watch.sent(20.0, 4)
    assert watch.deadline_s() == 200.0
    watch.answered(20.0, 0.0, step=True)
    watch.sent(20.0, None)
    assert watch.deadline_s() == 600.0


def test_token_cost_is_a_moving_average_over_steps_only() -> None:
    cost = TokenCost()
    watch = HangWatch(LIMITS, cost, 0.0)
    for seconds, step in ((1.0, True), (100.0, False), (2.0, True)):
        watch.sent(0.0, 10)
        watch.answered(0.0, seconds, step=step)
    assert cost.seconds_per_token is not None and abs(cost.seconds_per_token - 0.12) < 1e-9


def test_compilation_never_counts_against_a_step() -> None:
    watch = loaded(cost=0.001)
    watch.sent(0.0, 1)
    watch.reported(1.0, 0, 1)
    assert watch.deadline_s() == 600.0 and verdict_at(watch, 500.0) is None
    watch.reported(500.0, 1, 1)
    assert watch.deadline_s() == 30.0
    assert verdict_at(watch, 529.0) is None and verdict_at(watch, 531.0) is not None
    watch.answered(531.0, 531.0, step=True)
    watch.sent(531.0, 1)
    assert watch.deadline_s() == 30.0  # nothing was learned from the step that compiled


def test_a_stage_left_open_ends_with_its_call() -> None:
    watch = loaded(cost=0.001)
    watch.sent(0.0, 1)
    watch.sent(0.0, 1)
    watch.reported(1.0, 0, 0)
    watch.answered(2.0, 1.0, step=True)
    assert watch.deadline_s() == 30.0


def test_time_in_which_this_process_stood_still_is_forgiven() -> None:
    watch = loaded()
    watch.sent(0.0, 1)
    watch.forgive(100.0, now=102.0)
    assert watch.verdict(104.0) is None
    assert watch.verdict(106.0) is not None
    watch.heard(200.0)
    watch.forgive(1000.0, now=200.0)  # but no life is granted beyond now
    assert watch.verdict(206.0) is not None
