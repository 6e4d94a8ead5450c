"""What waits: how long it will take, who is refused for it, and deadlines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.errors import DeadlinePassed, EngineError, Overloaded
from engine.mailbox import Mailbox
from engine.metrics_sink import MetricsSink
from engine.request import Request, Stage, TokenDelta
from engine.sequence import Sequence, SequenceStatus
from engine.waiting.fair import Fair
from engine.waiting.order import QUEUE_POLICIES, Priority
from engine.waiting.queue import MAX_RETRY_AFTER, WaitingQueue
from executors.contract import SamplingParams, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, read, request, run
from tests.engine.waiting.test_fair import seq
from tests.sim.virtual_loop import in_virtual_time
from tests.text_requests import changed


def asked(tenant: str = "", priority: int = 0) -> Request:
    return changed(seq(0, tenant).request, priority=priority)


class Past:
    """A waiting queue, and a clock that is set by hand."""

    def __init__(self, num_slots: int, policy: str = "fcfs") -> None:
        self.now = 0.0
        self.waiting = WaitingQueue(QUEUE_POLICIES[policy](), lambda: self.now)
        self.waiting.open(num_slots)

    def begin(self, *seqs: Sequence) -> None:
        for one in seqs:
            self.waiting.submit(one)
            self.waiting.start(one)

    def end(self, *seqs: Sequence) -> None:
        for one in seqs:
            self.waiting.end(one)

    def wait(self, waiting: int) -> float:
        """So many wait: how long does the next one?"""
        for number in range(self.waiting.count, waiting):
            self.waiting.submit(seq(number, tokens=100))
        return self.waiting.wait(asked())


def test_the_estimate_follows_what_was_measured() -> None:
    past = Past(4)
    assert (past.waiting.wait(asked()), past.waiting.retry_after(asked())) == (0.0, 1)
    assert past.wait(10) == 0.0, "nothing was measured yet"
    cold = Past(4)
    cold.waiting.estimate.observe(0.9, 3)
    assert cold.wait(10) == 0.0, "the first step of a cold executor tells little"
    past.waiting.estimate.observe(1.0, 500)
    past.waiting.estimate.observe(9.0, 0)
    assert past.wait(10) == pytest.approx(2.0), "1000 tokens; steps without prompts tell nothing of them"
    past = Past(4)
    old = [seq(number) for number in range(4)]
    past.begin(*old)
    past.now = 20.0
    past.end(*old)
    past.begin(*(seq(number) for number in range(4)))
    past.now = 25.0
    # The four end in 15 s, the next four 20 s later, and so on.
    assert past.wait(3) == pytest.approx(15.0)
    assert past.wait(4) == pytest.approx(35.0)
    assert past.wait(10) == pytest.approx(55.0)
    assert past.waiting.retry_after(asked()) == 28
    past.waiting.estimate.stuck(2)
    assert past.wait(10) > 100, "the pool has room for two only"
    past.now = 90.0
    assert past.wait(0) < 130, "who is over the time ends any moment, not long ago"
    for number in range(500):
        past.waiting.submit(seq(number))
    assert past.waiting.retry_after(asked()) == MAX_RETRY_AFTER


def test_long_answers_that_are_about_to_end_keep_nobody_waiting() -> None:
    past = Past(64)
    for _ in range(2):
        together = [seq(number) for number in range(64)]
        past.begin(*together)
        past.now += 170
        assert past.wait(63) == pytest.approx(10 if past.now > 180 else 0)
        past.now += 10
        past.end(*together)


def test_what_was_measured_alone_tells_how_many_do_together() -> None:
    past = Past(64)
    for number in range(100):
        past.begin(one := seq(number))
        past.waiting.estimate.observe(0.02, 30)
        past.now += 0.5
        past.end(one)
    assert past.wait(63) < 5, "64 slots are free: only their prompts are in the way"
    assert past.wait(640) > 4.5, "ten rounds"


def test_others_count_as_far_as_they_come_before() -> None:
    queue = WaitingQueue(Fair())
    for number in range(100):
        queue.submit(seq(number, "many", tokens=50))
    queue.submit(seq(200, "few"))
    assert (queue.ahead(asked("many")).count, queue.ahead(asked("many")).tokens) == (101, 5010)
    assert (queue.ahead(asked("few")).count, queue.ahead(asked("few")).tokens) == (3, 70)
    assert queue.ahead(asked("new")).count == 2
    urgent = WaitingQueue(Priority())
    urgent.submit(Sequence(1, asked(priority=5), Mailbox(), 0))
    assert (urgent.ahead(asked(priority=4)).count, urgent.ahead(asked(priority=5)).count) == (0, 1)
    urgent.estimate.observe(5.0, 10)
    assert urgent.wait(asked(priority=4)) == 0.0 < urgent.wait(asked(priority=5))


def test_only_who_still_waits_expires_and_once() -> None:
    queue = WaitingQueue()
    started, late, patient = seq(1, deadline=1.0), seq(2, deadline=1.0), seq(3, deadline=9.0)
    for one in (started, late, patient):
        queue.submit(one)
    started.status = SequenceStatus.RUNNING
    queue.start(started)
    assert list(queue.not_started.past_deadline(0.9)) == []
    assert list(queue.not_started.past_deadline(1.0)) == [late]
    assert list(queue.not_started.past_deadline(5.0)) == []


def choices(count: int, tokens: int) -> list[Sequence]:
    """Of one call."""
    together = [seq(number, tokens=tokens) for number in range(count)]
    for one in together:
        one.siblings, one.is_first, one.mailbox = together, one is together[0], together[0].mailbox
    return together


def test_a_prompt_that_choices_share_counts_once() -> None:
    shared, apart = WaitingQueue(), WaitingQueue()
    shared.open(4, shares_prompts=True)
    apart.open(4)
    together = choices(8, 1000)
    for one in together:
        shared.submit(one)
        apart.submit(one)
    assert (shared.count, shared.tokens) == (8, 1000)
    assert (apart.count, apart.tokens) == (8, 8000), "where nothing is shared each one computes it"
    shared.start(together[0])
    assert (shared.count, shared.tokens) == (7, 0)
    for one in together[1:]:
        shared.end(one)
    assert (shared.count, shared.tokens, shared.ahead(asked()).count) == (0, 0, 0)
    for one in (told := choices(3, 100)):
        one.request = replace(one.request, prompt_logprobs=0)
        shared.submit(one)
    assert shared.tokens == 300, f"{told} compute it each in their own name"


def test_time_without_an_executor_is_not_how_long_sequences_take() -> None:
    past = Past(4)
    past.begin(*(old := [seq(number) for number in range(4)]))
    past.now = 1.0
    past.waiting.estimate.observe(0.5, 0)
    past.now = 11.0  # silent for ten seconds, then given up
    past.waiting.estimate.stopped()
    past.now = 14.0
    past.waiting.estimate.stopped()  # and lost again before it did anything
    assert past.wait(3) == 0.0, "nothing has ended yet"
    past.now = 20.5
    past.waiting.estimate.observe(0.5, 0)
    past.now = 21.0
    past.end(*old)
    past.begin(*(seq(number) for number in range(4)))
    assert past.wait(3) == pytest.approx(2.0), "1.0 s before, 1.0 s after"
    past.waiting.estimate.stopped()
    past.now = 50.0
    assert past.wait(3) == pytest.approx(2.0), "no nearer to their ends while nothing is done"


def test_who_begins_after_an_idle_hour_is_not_older_than_it_is() -> None:
    past = Past(1)
    past.waiting.estimate.observe(0.1, 0)
    past.now = 3600.0
    past.begin(one := seq(1))
    past.now = 3602.0
    past.waiting.estimate.stopped()
    past.now = 3605.0
    past.waiting.estimate.observe(1.0, 0)
    past.end(one)
    past.begin(seq(2))
    assert past.wait(0) == 0.0
    assert past.wait(1) == pytest.approx(2.0), "two of a second each: all the first one had of an executor"


def test_deadlines_of_who_has_gone_are_not_kept() -> None:
    queue = WaitingQueue()
    queue.submit(seq(0))  # never started, so the queue is never empty
    late = [seq(number, deadline=5.0) for number in range(1, 4)]
    for one in late:
        queue.submit(one)
    for number in range(1000):
        queue.submit(one := seq(10 + number, deadline=1e6 + number))
        if number % 2:
            queue.start(one)
        queue.end(one)
    assert len(queue.not_started._deadlines) < 100
    assert list(queue.not_started.past_deadline(9.0)) == late


def test_the_rest_of_a_call_that_was_started_does_not_expire() -> None:
    queue = WaitingQueue()
    started, waiting = (
        [seq(number, deadline=1.0) for number in (1, 2)],
        [seq(3, deadline=1.0), seq(4, deadline=1.0)],
    )
    started[1].mailbox, waiting[1].mailbox = started[0].mailbox, waiting[0].mailbox
    for one in (*started, *waiting):
        queue.submit(one)
    queue.start(started[0])
    queue.end(started[0])
    assert list(queue.not_started.past_deadline(2.0)) == waiting
    assert list(queue.not_started.past_deadline(3.0)) == []


class Refusals(MetricsSink):
    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.outcomes: list[str] = []

    def refused(self, code: str) -> None:
        self.refusals.append(code)

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        self.outcomes.append(outcome)


@in_virtual_time
async def test_a_deadline_that_passes_in_the_queue_drops_the_request() -> None:
    made, computed = fake(step_delay_ms=10, seqs=1), set()
    decode = made.unified_decode

    async def watched(batch: UnifiedBatch) -> UnifiedOutput:
        computed.update(batch.seq_ids.tolist())
        return await decode(batch)

    made.unified_decode = watched  # type: ignore[method-assign]
    heard = Refusals()
    async with engine(made, heard, max_num_seqs=1) as core:
        running = asyncio.create_task(run(core, request([1], 30)))
        await asyncio.sleep(0.03)
        mailbox = Mailbox()
        seq_id = core.submit(changed(request([2], 5), deadline=core.clock() + 0.05), mailbox)
        delta = await read(mailbox)
        assert isinstance(delta.error, DeadlinePassed)
        assert delta.error.status == 429 and delta.error.retry_after >= 1
        assert not running.done()
        assert (await running)[0] == expected_tokens([1], 30)
        assert seq_id not in computed, "not a token was spent on it"
        assert (heard.refusals, heard.outcomes) == (["deadline_exceeded"], ["abort", "length"])


@in_virtual_time
async def test_choices_that_come_too_late_are_one_refusal() -> None:
    heard = Refusals()
    async with engine(fake(step_delay_ms=10, seqs=1), heard, max_num_seqs=1) as core:
        running = asyncio.create_task(run(core, request([1], 30)))
        await asyncio.sleep(0.03)
        late = core.clock() + 0.05
        calls = Mailbox(), Mailbox()
        for mailbox in calls:
            choices = [
                changed(request([2], 5), deadline=late, sampling=SamplingParams(choice=i)) for i in range(3)
            ]
            core.submit_choices(choices, mailbox)
        for mailbox in calls:
            errors: list[EngineError | None] = []
            while len(errors) < 3:
                errors += [delta.error for delta in (await mailbox.take()).values()]
            assert all(isinstance(error, DeadlinePassed) for error in errors)
        assert heard.refusals == ["deadline_exceeded"] * 2
        await running


@in_virtual_time
async def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    async with engine(fake(step_delay_ms=10, seqs=1), max_num_seqs=1) as core:
        await run(core, request([5], 5))
        running = asyncio.create_task(run(core, request([1], 20)))
        waiting = [asyncio.create_task(run(core, request([i], 20))) for i in range(5)]
        await asyncio.sleep(0.02)
        with pytest.raises(DeadlinePassed) as refused:
            core.submit(changed(request([2], 5), deadline=core.clock() + 0.02), Mailbox())
        assert refused.value.code == "deadline_exceeded"
        core.submit(changed(request([2], 1), deadline=core.clock() + 60), Mailbox())
        await asyncio.gather(running, *waiting)


@in_virtual_time
async def test_a_deadline_passes_while_the_executor_is_away() -> None:
    made = fake(seqs=2)
    made.failures.append(Failure("die", token=9, times=1))
    begin, away, back = made.begin_epoch, asyncio.Event(), asyncio.Event()

    async def slow(epoch: int) -> None:
        if epoch > 1:
            away.set()
            await back.wait()
        await begin(epoch)

    made.begin_epoch = slow  # type: ignore[method-assign]
    async with engine(made, recovery_timeout=30) as core:
        running = asyncio.create_task(run(core, request([9], 5)))
        await away.wait()
        mailbox = Mailbox()
        core.submit(changed(request([2], 5), deadline=core.clock() + 0.05), mailbox)
        assert isinstance((await read(mailbox)).error, DeadlinePassed)
        back.set()
        assert (await running)[0] == expected_tokens([9], 5)


@in_virtual_time
async def test_a_queue_of_so_many_seconds_is_full() -> None:
    """By what was measured: a request of 20 tokens takes 0.2 s here."""
    async with engine(fake(step_delay_ms=10, seqs=1), max_num_seqs=1, max_queue_wait=1.0) as core:
        await run(core, request([5], 20))
        first, count, refused = Mailbox(), 0, None
        core.submit(request([0], 20), first)
        while refused is None and count < 100:
            try:
                core.submit(request([count], 20), Mailbox())
                count += 1
            except Overloaded as error:
                refused = error
        assert refused is not None and refused.status == 429 and refused.retry_after in (1, 2)
        assert 2 <= count <= 7
        core.submit(request([77], 2), first, 1)  # a call that is in already is not refused half way
        assert await core.drain(10)


@in_virtual_time
async def test_a_call_is_let_in_whole_or_not_at_all() -> None:
    """One with more parts than may wait was refused for ever, by itself alone."""
    async with engine(fake(seqs=2), max_num_seqs=2, max_queued_seqs=4, max_queued_tokens=20) as core:
        for _ in range(2):
            choices, prompts = Mailbox(), Mailbox()
            core.submit_choices(
                [replace(request([1, 2], 3), sampling=SamplingParams(choice=i)) for i in range(9)], choices
            )
            with pytest.raises(Overloaded):
                core.submit(request([1], 3), Mailbox())
            assert await core.drain(5)
            core._health.stage = Stage.READY
            for number in range(9):
                core.submit(request([number] * 15, 3), prompts, number)
            assert await core.drain(5)
            core._health.stage = Stage.READY
            assert len(await prompts.take()) == 9


@in_virtual_time
async def test_a_full_queue_is_not_full_for_who_has_little_in_it() -> None:
    async with engine(
        fake(step_delay_ms=10, seqs=1), max_num_seqs=1, max_queued_seqs=10, scheduling_policy="fair"
    ) as core:
        mailbox = Mailbox()
        for number in range(10):
            core.submit(changed(request([number], 5), tenant="many"), mailbox, number)
        with pytest.raises(Overloaded):
            core.submit(changed(request([1], 5), tenant="many"), Mailbox())
        for number in range(5):
            core.submit(changed(request([number], 5), tenant="few"), mailbox, 100 + number)
        for tenant in ("many", "few"):
            with pytest.raises(Overloaded):
                core.submit(changed(request([1], 5), tenant=tenant), Mailbox())
        core.submit(changed(request([1], 5), tenant="third"), mailbox, 200)
        assert await core.drain(10)


@in_virtual_time
async def test_too_many_tokens_in_the_queue_are_refused_with_a_time() -> None:
    async with engine(fake(step_delay_ms=5, seqs=1), max_num_seqs=1, max_queued_tokens=50) as core:
        running = asyncio.create_task(run(core, request([1], 20)))
        await asyncio.sleep(0.02)
        core.submit(request([1] * 200, 1), Mailbox())  # nothing waits: it may come, however long it is
        with pytest.raises(Overloaded) as refused:
            core.submit(request([1], 1), Mailbox())
        assert isinstance(refused.value.retry_after, int) and refused.value.retry_after >= 1
        await running
        await core.drain(5)


@in_virtual_time
async def test_a_deadline_spares_every_part_of_a_call_that_was_started() -> None:
    async with engine(fake(step_delay_ms=10, seqs=1), max_num_seqs=1) as core:
        mailbox, asked = Mailbox(), request([1, 2], 12)
        timed = changed(asked, deadline=core.clock() + 0.05)
        core.submit_choices([timed, timed], mailbox)
        core.submit(timed, mailbox, 2)
        ended = dict[int, TokenDelta]()
        while len(ended) < 2:
            for key, delta in (await mailbox.take()).items():
                ended.setdefault(key, TokenDelta()).merge(delta)
            ended = {key: delta for key, delta in ended.items() if delta.tokens}
        assert core.clock() > timed.context.deadline  # type: ignore[operator]
        core.submit(timed, mailbox, 3)  # as an embedding call does, which hands in its prompts by and by
        while any(key not in ended or ended[key].finish_reason is None for key in range(4)):
            for key, delta in (await mailbox.take()).items():
                ended.setdefault(key, TokenDelta()).merge(delta)
        for delta in ended.values():
            assert [token.token_id for token in delta.tokens] == expected_tokens([1, 2], 12), delta.error


@in_virtual_time
async def test_prompts_in_the_cache_do_not_lengthen_the_queue() -> None:
    """400 tokens each, of which one block or two are computed: the pace is told in the unit of the queue."""
    async with engine(
        fake(step_delay_ms=5, seqs=4, block_size=4, num_blocks=400), max_num_seqs=4, max_num_batched_tokens=64
    ) as core:
        prefix = [1] * 200
        await run(core, request([*prefix, 0], 2))
        await asyncio.gather(*(run(core, request([*prefix, number], 2)) for number in range(8)))
        mailbox, started = Mailbox(), core.clock()
        for number in range(100):
            core.submit(request([*prefix, number], 2), mailbox, number)
        told = core._waiting.wait(request([1], 1))
        assert await core.drain(20)
        took = core.clock() - started
        assert told < 2 * took, f"{told:.2f} s were told, {took:.2f} s it took"


@in_virtual_time
async def test_one_death_does_not_lengthen_the_queue() -> None:
    made = fake(seqs=4, step_delay_ms=5)
    made.failures.append(Failure("die", token=9, times=1))
    begin = made.begin_epoch

    async def slow(epoch: int) -> None:
        await asyncio.sleep(1.0 if epoch > 1 else 0)
        await begin(epoch)

    made.begin_epoch = slow  # type: ignore[method-assign]
    async with engine(made, max_num_seqs=4, recovery_timeout=30) as core:
        await asyncio.gather(*(run(core, request([number], 10)) for number in range(6, 10)))
        assert core.journal.epoch == 2
        mailbox = Mailbox()
        for number in range(40):
            core.submit(request([number], 10), mailbox, number)
        assert 0 < core._waiting.wait(request([1], 1)) < 5, (
            "ten rounds of a tenth of a second, not of more than one"
        )
        assert await core.drain(20)
