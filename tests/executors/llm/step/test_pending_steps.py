"""Steps on their way, on a clock that only moves when somebody sleeps: how soon the end of one is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest

from executors.contract.batch import UnifiedBatch, UnifiedOutput
from executors.contract.errors import ExecutorDied
from executors.contract.status import Pace
from executors.llm.step.patience import patience
from executors.llm.step.pending_steps import PendingStep, PendingSteps

TURN_S = 1e-6
TIMER_S = 1e-3
"""By how much an event loop's timer may be late: it is rounded up to milliseconds."""
OUTPUT = UnifiedOutput.from_items([])


class Clock:
    """Time passes by sleeping, and by a microsecond for each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0

        async def nap(seconds: float) -> None:
            self.sleep(seconds + TIMER_S if seconds else TURN_S)

        monkeypatch.setattr(asyncio, "sleep", nap)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


class Step:
    """Done after `seconds`."""

    is_held = False

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.end = clock, clock.now + seconds

    def ready(self) -> bool:
        return self.clock.now >= self.end

    def result(self) -> UnifiedOutput:
        return OUTPUT


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Milliseconds from the end of each step until it is noticed."""

    def play(*milliseconds: float) -> list[float]:
        clock = Clock(monkeypatch)
        steps = PendingSteps(clock)

        async def each() -> list[float]:
            late = []
            for duration in milliseconds:
                end = clock.now + duration / 1e3
                await steps.run(lambda duration=duration: Step(clock, duration / 1e3), lambda: None)  # type: ignore[misc]
                late.append(1e3 * (clock.now - end))
            return late

        return asyncio.run(each())

    return play


def test_the_end_of_usual_steps_is_noticed_at_once(noticed: Callable[..., list[float]]) -> None:
    for duration in (0.3, 1.0, 5.0, 40.0):
        assert max(noticed(*[duration] * 80)[60:]) < 0.1


def test_a_slow_step_does_not_send_those_after_it_to_sleep(noticed: Callable[..., list[float]]) -> None:
    late = noticed(*[1.0] * 30, 200.0, *[1.0] * 10)
    assert max(late[31:]) < 0.1


def test_a_long_first_step_is_noticed_within_a_hundredth_of_its_time(
    noticed: Callable[..., list[float]],
) -> None:
    """A prompt between decode steps: a timer of the event loop would add one to two milliseconds."""
    for duration in (30.0, 30.4, 30.9, 31.3, 300.0):
        late = noticed(*[1.0] * 30, duration)
        assert late[-1] < max(0.35, 0.011 * duration)


def test_steps_that_have_become_short_are_noticed_soon(noticed: Callable[..., list[float]]) -> None:
    late = noticed(*[50.0] * 80, *[5.0] * 12)
    assert max(late[90:]) < 0.1
    assert sum(late[80:]) < 120


class Held(Step):
    """A forward of `seconds`, behind which a sampler of 0.1 ms runs. It is queued when the step is looked at and its masks are
    there, `masks` seconds after the launch; `queued_at`: when that was."""

    def __init__(self, clock: Clock, seconds: float, masks: float) -> None:
        super().__init__(clock, seconds)
        self.masks, self.queued_at = clock.now + masks, 0.0

    @property
    def is_held(self) -> bool:  # type: ignore[override]
        return not self.queued_at

    def ready(self) -> bool:
        if self.is_held and self.clock.now >= self.masks:
            self.queued_at = self.clock.now
            self.end = max(self.queued_at, self.end) + 1e-4
        return not self.is_held and super().ready()


@pytest.mark.parametrize(("usual", "masks"), [(40.0, 0.7), (40.0, 30.0), (3.0, 0.7)])
def test_a_sampler_is_queued_soon_after_its_masks_are_made(
    usual: float, masks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its forward takes 5 ms, and steps before it took longer as a rule: the device would wait for a host that sleeps until the
    usual end."""
    clock = Clock(monkeypatch)
    steps = PendingSteps(clock)

    async def played() -> Held:
        for _ in range(80):
            await steps.run(lambda: Step(clock, usual / 1e3), lambda: None)
        step = Held(clock, 5e-3, masks / 1e3)
        await steps.run(lambda: step, lambda: None)
        return step

    step = asyncio.run(played())
    # Two turns of a timer of a millisecond that may be late by as much.
    assert step.queued_at - step.masks < 1e-3 + TIMER_S + 1e-4
    assert clock.now >= step.end


@pytest.mark.parametrize(("seconds", "held"), [(8e-3, 3e-3), (20e-3, 15e-3), (6e-3, 0.5e-3)])
def test_the_rest_of_steps_that_are_held_as_usual_is_queued_at_once(
    seconds: float, held: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft model begins when the tokens of its step are known, which takes as long each time."""
    clock = Clock(monkeypatch)
    steps = PendingSteps(clock)

    async def played() -> list[float]:
        late = []
        for _ in range(80):
            step = Held(clock, seconds, held)
            await steps.run(lambda step=step: step, lambda: None)  # type: ignore[misc]
            late.append(step.queued_at - step.masks)
        return late

    assert max(asyncio.run(played())[60:]) < 1e-4


class Driven:
    """A step that is done when the test says so."""

    is_held = False

    def __init__(self) -> None:
        self.done, self.taken = False, 0

    def ready(self) -> bool:
        return self.done

    def result(self) -> UnifiedOutput:
        assert self.done, "taken before the device was done"
        self.taken += 1
        return OUTPUT


PACE = Pace(3e-6, ((1, 0.001), (256, 0.006)))


def hung_after(monkeypatch: pytest.MonkeyPatch, batch: UnifiedBatch, pace: Pace = PACE) -> float:
    """Seconds after which a step that never ends is given up."""
    clock = Clock(monkeypatch)
    with pytest.raises(ExecutorDied, match="longer than its deadline") as death:
        asyncio.run(PendingSteps(clock).run(Driven, lambda: None, lambda: patience(pace, batch)))
    assert death.value.cause == "hang"
    return clock.now - 100.0


def batch_of(*items: tuple[int, int]) -> UnifiedBatch:
    """Items of (new tokens, tokens before them)."""
    counts, past = (np.array(column, np.int32) for column in zip(*items, strict=True))
    number = np.arange(len(items), dtype=np.int32)
    return UnifiedBatch(
        1, 0, number.astype(np.int64), number, counts, past, np.ones(len(items), np.bool_),
        np.zeros(len(items), np.int32), np.zeros(int(counts.sum()), np.int32),
    )  # fmt: skip


def test_a_step_that_never_ends_is_given_up_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 5.0 < hung_after(monkeypatch, batch_of((1, 1000))) < 5.2
    assert 5.0 < hung_after(monkeypatch, batch_of(*[(1, 1000)] * 256)) < 5.2


def test_a_long_prompts_step_is_not_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """8,192 tokens behind 120,000: attention alone may take 20 times what the pace says of the rest."""
    took = hung_after(monkeypatch, batch_of((8192, 120_000)))
    assert took > 20 * 8192 * PACE.prompt_token and took > 7
    assert hung_after(monkeypatch, batch_of((8192, 0)), Pace(1e-3, ((1, 0.01),))) > 80


def test_what_the_host_does_meanwhile_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is compiled for a minute while the next step is launched: the loop stands still, the device does not."""
    clock, step = Clock(monkeypatch), Driven()
    pauses = iter([0.0, 45.0] * 3)

    def ready() -> bool:
        if (pause := next(pauses, None)) is None:
            step.done = True
        clock.sleep(pause or 0.0)
        return step.done

    monkeypatch.setattr(step, "ready", ready)
    output, _ = asyncio.run(PendingSteps(clock).run(lambda: step, lambda: None, lambda: 0.0))
    assert output is OUTPUT and clock.now > 100 + 3 * 45


def test_without_a_pace_no_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    slow = Step(clock, 60.0)
    assert asyncio.run(PendingSteps(clock).run(lambda: slow, lambda: None))[0] is OUTPUT


# -- callers that leave ----------------------------------------------------------------------------------------------------


async def settles(steps: PendingSteps) -> bool:
    """Whether `settled` returns within some turns of the loop."""
    waiting = asyncio.ensure_future(steps.settled())
    await asyncio.sleep(0.02)
    done = waiting.done()
    waiting.cancel()
    return done


@pytest.mark.parametrize("left", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
async def test_a_launched_step_stays_in_flight_though_its_caller_leaves(left: tuple[int, ...]) -> None:
    """Whichever of its two awaits the caller is at: the device computes the step, and its buffer is in use until then."""
    steps, out = PendingSteps(), [Driven(), Driven()]
    callers = [asyncio.create_task(steps.run(lambda step=step: step, lambda: None)) for step in out]  # type: ignore[misc]
    await asyncio.sleep(0.005)
    for number in left:
        callers[number].cancel()
    await asyncio.sleep(0.005)
    assert steps.busy and not await settles(steps)
    out[1].done = True
    assert steps.busy and not await settles(steps), "the first still runs"
    assert [step.taken for step in out] == [0, 0], "answered out of order"
    out[0].done = True
    await asyncio.wait_for(steps.settled(), 5)
    assert [step.taken for step in out] == [1, 1] and not steps.busy
    for number, caller in enumerate(callers):
        if number in left:
            assert caller.cancelled()
        else:
            assert (await caller)[0] is OUTPUT


async def test_a_step_that_could_not_be_launched_keeps_its_turn_though_its_caller_leaves() -> None:
    def refuse() -> PendingStep:
        raise ValueError("no such step")

    steps, first = PendingSteps(), Driven()
    one = asyncio.create_task(steps.run(lambda: first, lambda: None))
    two = asyncio.create_task(steps.run(refuse, lambda: None))
    await asyncio.sleep(0.005)
    two.cancel()
    await asyncio.sleep(0.005)
    assert two.cancelled() and not await settles(steps)
    first.done = True
    await one
    await asyncio.wait_for(steps.settled(), 5)
    assert not steps.busy


async def test_an_error_of_the_device_settles_a_step_whose_caller_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Driven):
        def result(self) -> UnifiedOutput:
            raise RuntimeError("an illegal memory access")

    steps, step = PendingSteps(), Broken()
    caller = asyncio.create_task(steps.run(lambda: step, lambda: None))
    await asyncio.sleep(0.005)
    caller.cancel()
    step.done = True
    await asyncio.wait_for(steps.settled(), 5)
    assert "an illegal memory access" in caplog.text and not steps.busy
