"""No request waits longer than allowed to be started: it is refused on arrival, or dropped when its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import DeadlinePassed, Overloaded
from engine.mailbox import Mailbox
from engine.metrics_sink import MetricsSink
from engine.request import FinishReason, Stage, TokenDelta
from engine.sequence import Sequence
from engine.waiting.not_started import NotStarted
from executors.contract import SampledToken, SamplingParams, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import fake, read, request
from tests.engine.waiting.test_fair import seq
from tests.sim.virtual_loop import run
from tests.text_requests import changed


@dataclass
class Heard(MetricsSink):
    refusals: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)

    def refused(self, code: str) -> None:
        self.refusals.append(code)

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        self.outcomes.append(outcome)


async def started(made: FakeExecutor, observer: MetricsSink | None = None, **config: Any) -> EngineCore:
    """An engine on the loop's clock."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "restart_pause": 0.01, **config}
    core = EngineCore(made, EngineConfig(**settings), observer, clock=asyncio.get_running_loop().time)
    await core.start()
    return core


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Outcome:
    """Of one request: when it was refused on arrival, dropped or answered first, in seconds after it came."""

    refused: bool = False
    dropped: float | None = None
    first: float | None = None
    error: Overloaded | None = None


async def ask(core: EngineCore, number: int, tokens: int, max_tokens: int) -> Outcome:
    began, mailbox = now(), Mailbox()
    try:
        core.submit(request([number] * tokens, max_tokens), mailbox)
    except Overloaded as error:
        return Outcome(refused=True, error=error)
    delta = (await mailbox.take())[0]
    took = now() - began
    if delta.error is None:
        return Outcome(first=took)
    assert isinstance(delta.error, Overloaded)
    return Outcome(dropped=took, error=delta.error)


async def burst(made: FakeExecutor, wait: float, heard: Heard | None = None) -> list[Outcome]:
    """60 prompts of 200 tokens within 60 ms, on an engine that has just started."""
    core = await started(made, heard, max_num_seqs=60, max_num_batched_tokens=256, max_queue_wait=wait)
    tasks = []
    for number in range(60):
        tasks.append(asyncio.create_task(ask(core, number, 200, 20)))
        await asyncio.sleep(0.001)
    found = await asyncio.gather(*tasks)
    assert await core.drain(1000)
    await core.stop()
    core.check_integrity()
    return found


def slow(**options: float) -> FakeExecutor:
    """A prompt takes 0.4 s."""
    return fake(seqs=60, num_blocks=4000, step_delay_ms=20, prompt_token_ms=2, **options)


@pytest.mark.parametrize("wait", [2.0, 5.0])
def test_the_first_burst_is_refused_when_it_comes(wait: float) -> None:
    heard = Heard()
    found = run(burst(slow(), wait, heard))
    refused = [one for one in found if one.refused]
    served = [one.first for one in found if one.first is not None]
    dropped = [one for one in found if one.dropped is not None]
    assert len(refused) >= 40 and len(dropped) <= 3 and len(refused) + len(served) + len(dropped) == 60
    assert max(served) < wait + 1.5, "what was started in time is answered soon after"
    assert len(served) >= wait / 1.2, "as many as can be started in that time"
    assert all(one.error is not None and one.error.status == 429 for one in refused + dropped)
    assert all(one.error.retry_after >= 1 for one in refused if one.error)
    assert heard.refusals == ["overloaded"] * (60 - len(served))
    assert heard.outcomes.count("length") == len(served)


def test_the_first_burst_is_dropped_where_no_pace_is_known() -> None:
    """By an executor that reports none, nobody is refused before something was measured; nobody waits longer for it."""
    made = slow()
    made.pace = lambda: None  # type: ignore[method-assign]
    found = run(burst(made, 2.0))
    assert not any(one.refused for one in found)
    dropped = [one.dropped for one in found if one.dropped is not None]
    assert len(dropped) >= 40 and dropped == pytest.approx([2.0] * len(dropped), abs=0.01)
    assert max(one.first for one in found if one.first is not None) < 3.5


def test_a_burst_that_can_be_served_is() -> None:
    found = run(burst(slow(), 60.0))
    assert all(one.first is not None for one in found)


def test_who_waits_is_dropped_during_a_step_and_without_another_request() -> None:
    """The one slot is taken by a single step of 100 s."""

    async def main() -> None:
        heard = Heard()
        core = await started(fake(seqs=1, step_delay_ms=100_000), heard, max_num_seqs=1, max_queue_wait=3.0)
        first = asyncio.create_task(ask(core, 1, 4, 1))
        await asyncio.sleep(1)
        began, mailbox = now(), Mailbox()
        core.submit(request([2] * 4, 5), mailbox)
        delta = await read(mailbox)
        assert now() - began == pytest.approx(3.0, abs=0.001)
        assert isinstance(delta.error, Overloaded) and not isinstance(delta.error, DeadlinePassed)
        assert "was not started within the 3 s" in delta.error.message and delta.error.retry_after >= 1
        assert (delta.finish_reason, heard.refusals) == (FinishReason.ERROR, ["overloaded"])
        assert (await first).first == pytest.approx(100.0)
        assert heard.outcomes == ["abort", "length"]
        assert core.num_waiting == core._waiting.count == 0
        await core.stop()
        core.check_integrity()

    run(main())


def test_who_waits_is_dropped_although_nothing_is_computed() -> None:
    """Whatever keeps the scheduler from granting anything."""

    async def main() -> None:
        core = await started(fake(seqs=1), max_num_seqs=1, max_queue_wait=3.0)
        assert core._scheduler is not None
        core._scheduler.schedule = lambda: None  # type: ignore[method-assign]
        await asyncio.sleep(5)
        outcome = await ask(core, 1, 4, 5)
        assert outcome.dropped == pytest.approx(3.0, abs=0.002)
        await core.stop()

    run(main())


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_deadline_is_kept_to_the_moment(max_in_flight: int) -> None:
    async def main() -> None:
        made = fake(seqs=1, step_delay_ms=10_000)
        limits = made.capabilities
        made.capabilities = lambda: replace(limits(), max_in_flight=2)  # type: ignore[method-assign]
        core = await started(made, max_num_seqs=1, max_in_flight=max_in_flight)
        first = asyncio.create_task(ask(core, 1, 4, 1))
        await asyncio.sleep(1)
        began, mailbox = now(), Mailbox()
        core.submit(changed(request([2] * 4, 5), deadline=began + 2.5), mailbox)
        assert isinstance((await read(mailbox)).error, DeadlinePassed)
        assert now() - began == pytest.approx(2.5, abs=0.001)
        await first
        await core.stop()

    run(main())


def test_choices_of_a_call_are_one_refusal() -> None:
    async def main() -> None:
        heard = Heard()
        core = await started(fake(seqs=1, step_delay_ms=50_000), heard, max_num_seqs=1, max_queue_wait=1.0)
        first = asyncio.create_task(ask(core, 1, 4, 1))
        await asyncio.sleep(0.1)
        mailbox = Mailbox()
        core.submit_choices(
            [replace(request([2], 5), sampling=SamplingParams(choice=i)) for i in range(3)], mailbox
        )
        errors: list[TokenDelta] = []
        while len(errors) < 3:
            errors += (await mailbox.take()).values()
        assert all(isinstance(one.error, Overloaded) for one in errors)
        assert heard.refusals == ["overloaded"]
        await first
        await core.stop()

    run(main())


def test_a_call_that_was_started_is_served_to_its_end() -> None:
    """Its second half waits longer than anybody may."""

    async def main() -> None:
        core = await started(fake(seqs=1, step_delay_ms=1000), max_num_seqs=1, max_queue_wait=3.0)
        mailbox = Mailbox()
        for number in range(3):
            core.submit(request([number], 5), mailbox, number)
        ended = []
        while len(ended) < 3:
            ended += [delta for delta in (await mailbox.take()).values() if delta.finish_reason is not None]
        assert [delta.error for delta in ended] == [None] * 3
        await core.stop()

    run(main())


def test_streams_outlive_a_long_recovery_and_who_waits_is_told() -> None:
    """The executor dies and is away for 20 s, with 3 s to wait at most."""

    async def main() -> None:
        made = fake(seqs=2, step_delay_ms=10)
        made.failures.append(Failure("die", token=9, times=1))
        begin, away = made.begin_epoch, asyncio.Event()

        async def late(epoch: int) -> None:
            if epoch > 1:
                away.set()
                await asyncio.sleep(20)
            await begin(epoch)

        made.begin_epoch = late  # type: ignore[method-assign]
        core = await started(made, max_num_seqs=1, max_queue_wait=3.0, recovery_timeout=60.0)
        stream = Mailbox()
        core.submit(request([1, 9], 5), stream)
        reading = asyncio.create_task(read(stream))
        await away.wait()
        assert core.stage is Stage.RECOVERING
        began, waiting = now(), Mailbox()
        core.submit(request([2], 5), waiting)
        assert isinstance((await read(waiting)).error, Overloaded)
        assert now() - began == pytest.approx(3.0, abs=0.3)
        found = await reading
        assert [token.token_id for token in found.tokens] == expected_tokens([1, 9], 5)
        await core.stop()
        core.check_integrity()

    run(main())


def test_a_stream_that_is_resumed_is_not_dropped() -> None:
    """Its tokens were started elsewhere; it waits for as long as it takes."""

    async def main() -> None:
        core = await started(fake(seqs=1, step_delay_ms=1000), max_num_seqs=1, max_queue_wait=3.0)
        first = asyncio.create_task(ask(core, 1, 4, 10))
        await asyncio.sleep(0.1)
        whole = expected_tokens([2], 6)
        mailbox = Mailbox()
        core.submit(request([2], 6), mailbox, committed=[SampledToken(one) for one in whole[:3]])
        found = await read(mailbox)
        assert found.error is None and [token.token_id for token in found.tokens] == whole[3:]
        await first
        await core.stop()

    run(main())


def test_who_was_preempted_was_started() -> None:
    """The pool has room for one of two; the other stands still for longer than it might wait."""

    async def main() -> None:
        made = fake(seqs=2, step_delay_ms=500, num_blocks=8)
        core = await started(made, max_num_seqs=2, max_queue_wait=2.0, prefix_caching=False)
        mailboxes = [Mailbox(), Mailbox()]
        for number, mailbox in enumerate(mailboxes):
            core.submit(request([number] * 8, 20), mailbox)
        for number, mailbox in enumerate(mailboxes):
            found = await read(mailbox)
            assert found.error is None
            assert [token.token_id for token in found.tokens] == expected_tokens([number] * 8, 20)
        assert core.stats().preemptions > 0
        await core.stop()

    run(main())


def test_a_dropped_sequence_is_never_computed() -> None:
    async def main() -> None:
        made, computed = fake(seqs=1, step_delay_ms=5000), set()
        decode = made.unified_decode

        async def watched(batch: UnifiedBatch) -> UnifiedOutput:
            computed.update(batch.seq_ids.tolist())
            return await decode(batch)

        made.unified_decode = watched  # type: ignore[method-assign]
        core = await started(made, max_num_seqs=1, max_queue_wait=2.0)
        first = asyncio.create_task(ask(core, 1, 4, 3))
        await asyncio.sleep(0.1)
        mailbox = Mailbox()
        seq_id = core.submit(request([2], 5), mailbox)
        assert (await read(mailbox)).error is not None
        await first
        assert seq_id not in computed
        await core.stop()

    run(main())


def at_every_turn(trial: Callable[[int], Coroutine[Any, Any, bool]]) -> int:
    """Run `trial` with 0, 1, 2, ... turns of the loop until it says that it was over before."""
    for count in range(2000):
        if not run(trial(count)):
            return count
    raise AssertionError("it never ends")


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_stop_at_any_moment_leaves_nothing_of_who_waits(max_in_flight: int) -> None:
    """One computes, one waits until it is dropped, and the engine is stopped in between."""

    async def trial(count: int) -> bool:
        made = fake(seqs=1, step_delay_ms=4)
        limits = made.capabilities
        made.capabilities = lambda: replace(limits(), max_in_flight=2)  # type: ignore[method-assign]
        core = await started(made, max_num_seqs=1, max_queue_wait=0.01, max_in_flight=max_in_flight)
        mailboxes = [Mailbox(), Mailbox()]
        for number, mailbox in enumerate(mailboxes):
            core.submit(request([number] * 3, 5), mailbox)
        readers = [asyncio.create_task(read(mailbox)) for mailbox in mailboxes]
        loop = asyncio.get_running_loop()
        for _ in range(count):
            if all(reader.done() for reader in readers):
                break
            await asyncio.sleep(0 if loop._ready else 0.0004)  # type: ignore[attr-defined]
        over = all(reader.done() for reader in readers)
        await core.stop()
        ends = [(await reader).error for reader in readers]
        if over:
            assert ends[0] is None and isinstance(ends[1], Overloaded)
        assert core.num_waiting == core._waiting.count == core._waiting.tokens == 0
        assert core._waiting.not_started.next_at() is None and not core._waiting._fresh
        core.check_integrity()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if not task.done()]
        return not over

    assert at_every_turn(trial) > 20


# -- NotStarted alone -----------------------------------------------------------------------------------------------------


class Waiters:
    def __init__(self, patience: float) -> None:
        self.now = 0.0
        self.not_started = NotStarted(patience, lambda: self.now)

    def add(self, number: int, at: float, deadline: float | None = None) -> Sequence:
        self.now = at
        self.not_started.add(one := seq(number, deadline=deadline))
        return one


def test_a_call_that_was_begun_elsewhere_is_never_late() -> None:
    waiters = Waiters(5.0)
    moved = waiters.add(1, at=1.0, deadline=2.0)
    waiters.not_started.call_started(moved.mailbox)
    assert (
        list(waiters.not_started.past_deadline(9.0)) == list(waiters.not_started.out_of_patience(9.0)) == []
    )


def test_the_age_of_the_oldest_that_waits() -> None:
    """Counted from its submission, while it was never started; a call that is half started still waits."""
    waiters = Waiters(5.0)
    first, second = waiters.add(1, at=1.0), waiters.add(2, at=3.0)
    waiters.now = 4.0
    assert waiters.not_started.oldest_wait() == 3.0
    waiters.now = 6.5
    assert list(waiters.not_started.out_of_patience(6.5)) == [first]
    assert waiters.not_started.oldest_wait() == 5.5, "it waits until it is taken out"
    waiters.not_started.remove(first)
    assert waiters.not_started.oldest_wait() == 3.5
    waiters.not_started.start(second)
    assert waiters.not_started.oldest_wait() == 0.0


def test_when_to_look_again() -> None:
    waiters = Waiters(5.0)
    assert waiters.not_started.next_at() is None
    first, second = waiters.add(1, at=1.0), waiters.add(2, at=2.0)
    assert waiters.not_started.next_at() == 6.0
    third = waiters.add(3, at=3.0, deadline=4.0)
    assert waiters.not_started.next_at() == 4.0
    assert list(waiters.not_started.past_deadline(4.0)) == [third]
    waiters.not_started.remove(third)
    assert waiters.not_started.next_at() == 6.0
    assert list(waiters.not_started.out_of_patience(5.9)) == []
    assert list(waiters.not_started.out_of_patience(6.0)) == [first]
    assert list(waiters.not_started.out_of_patience(6.0)) == [], "each once"
    waiters.not_started.start(second)
    assert waiters.not_started.next_at() is None


def test_the_moment_to_look_again_is_late_enough() -> None:
    """Whatever the floats: one who looks then finds somebody, and does not look for ever."""
    for number in range(200):
        waiters = Waiters(0.1 * number + 0.1)
        one = waiters.add(1, at=number * 0.7 + 1 / 3)
        at = waiters.not_started.next_at()
        assert at is not None and list(waiters.not_started.out_of_patience(at)) == [one]


def test_without_a_limit_nobody_is_dropped() -> None:
    waiters = Waiters(float("inf"))
    waiters.add(1, at=0.0)
    assert waiters.not_started.next_at() is None and list(waiters.not_started.out_of_patience(1e12)) == []
