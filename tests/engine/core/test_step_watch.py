"""What subscribers hear of each step."""

from __future__ import annotations

import asyncio

import pytest

from engine.core.engine import EngineCore
from engine.core.step_watch import SequenceEnd, StepRecord
from engine.mailbox import Mailbox
from executors.contract import Int32Array, SealedBlocks
from executors.testing.fakes.failures import Failure
from tests.engine.harness import engine, fake, read, request


async def finish(core: EngineCore, *prompts: list[int], max_tokens: int = 6) -> None:
    boxes = [Mailbox() for _ in prompts]
    for prompt, box in zip(prompts, boxes, strict=True):
        core.submit(request(prompt, max_tokens), box)
    await asyncio.gather(*(read(box) for box in boxes))


async def test_every_token_of_every_step() -> None:
    heard: list[StepRecord] = []
    async with engine(fake(), max_num_batched_tokens=8) as core:
        core.watch.subscribe(heard.append)
        await finish(core, list(range(20)), [1, 2, 3])
    assert [record.step_id for record in heard] == list(range(1, len(heard) + 1))
    kinds: dict[int, str] = {}
    prompt: dict[int, int] = {}
    sampled: dict[int, int] = {}
    for record in heard:
        items = record.items
        assert record.began < record.ended and not record.error
        for seq_id, kind, count, new in zip(
            items.seq_ids, items.kinds, items.num_q_tokens, items.num_sampled, strict=True
        ):
            kinds[seq_id] = kinds.get(seq_id, "") + kind
            sampled[seq_id] = sampled.get(seq_id, 0) + new
            if kind == "p":
                prompt[seq_id] = prompt.get(seq_id, 0) + count
    assert kinds[1].startswith("ppp") and kinds[1].endswith("ddddd") and kinds[2] == "pddddd"
    assert prompt == {1: 20, 2: 3} and sampled == {1: 6, 2: 6}
    starts = [view for record in heard for view in record.started]
    assert [(view.seq_id, view.prompt_tokens, view.request_id) for view in starts] == [
        (1, 20, "test"),
        (2, 3, "test"),
    ]
    assert sorted(seq_id for record in heard for seq_id, _ in record.first_tokens) == [1, 2]


async def test_steps_of_the_same_streams_share_their_items() -> None:
    heard: list[StepRecord] = []
    async with engine(fake()) as core:
        core.watch.subscribe(heard.append)
        await finish(core, [1, 2, 3], max_tokens=20)
    decodes = [record.items for record in heard if record.items.kinds == "d"]
    assert len(decodes) == 19 and all(items is decodes[0] for items in decodes)


async def test_a_death_and_what_is_computed_anew() -> None:
    heard: list[StepRecord] = []
    executor = fake()
    executor.failures = [Failure("die", step=4)]
    async with engine(executor) as core:
        core.watch.subscribe(heard.append)
        await finish(core, [1, 2, 3], max_tokens=8)
    failed = [record for record in heard if record.error]
    assert len(failed) == 1 and failed[0].items.num_sampled == (0,)
    after = heard[heard.index(failed[0]) + 1]
    assert after.epoch == failed[0].epoch + 1 and after.items.kinds == "r"
    assert sum(sum(record.items.num_sampled) for record in heard) == 8
    assert sum(len(record.first_tokens) for record in heard) == 1


async def test_nothing_after_the_last_subscriber_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[StepRecord] = []

    def broken(record: StepRecord) -> None:
        raise ValueError("a bug of the listener")

    async with engine(fake()) as core:
        leave, leave_too = core.watch.subscribe(broken), core.watch.subscribe(heard.append)
        await finish(core, [1, 2])
        assert heard and "a listener to steps failed" in caplog.text
        before = len(heard)
        leave()
        leave_too()
        assert not core.watch.active
        await finish(core, [1, 2])
        assert len(heard) == before


async def test_sequences_that_run_come_before_those_that_wait() -> None:
    async with engine(fake(step_delay_ms=2), max_num_seqs=2) as core:
        boxes = [Mailbox() for _ in range(4)]
        for box in boxes:
            core.submit(request([1, 2, 3, 4, 5], 16), box)
        await boxes[1].take()
        views = core.sequences(3)
        assert [view.status for view in views] == ["running", "running", "waiting"]
        assert views[0].output_tokens and views[0].blocks >= 2 and not views[2].blocks
        await asyncio.gather(*(read(box) for box in boxes))
        assert not core.sequences(3)


async def test_ends_have_final_counts_and_follow_the_last_step() -> None:
    heard: list[StepRecord | SequenceEnd] = []
    both = asyncio.Event()

    def hear(record: StepRecord) -> None:
        heard.append(record)
        if record.items.kinds == "dd":
            both.set()

    async with engine(fake()) as core:
        core.watch.subscribe(hear, heard.append)
        boxes = [Mailbox(), Mailbox()]
        ids = [core.submit(request([1, 2, 3], 30), box) for box in boxes]
        await both.wait()
        core.finish(ids[0], 2)  # a stop string ended it there
        await read(boxes[1])
    ends = {end.view.seq_id: end for end in heard if isinstance(end, SequenceEnd)}
    assert {seq_id: (end.reason, end.view.output_tokens) for seq_id, end in ends.items()} == {
        ids[0]: ("stop", 2),
        ids[1]: ("length", 30),
    }
    for end in ends.values():
        view = end.view
        assert (view.status, view.blocks, view.shared_blocks) == ("finished", 0, 0)
        assert view.ttft is not None and 0 < view.ttft <= end.at - view.arrived
    last = heard[-2]
    assert (
        isinstance(heard[-1], SequenceEnd) and isinstance(last, StepRecord) and ids[1] in last.items.seq_ids
    )


async def test_ends_of_what_was_never_computed() -> None:
    ends: list[SequenceEnd] = []
    async with engine(fake(step_delay_ms=2), max_num_seqs=1) as core:
        core.watch.subscribe(lambda record: None, ends.append)
        first, second = Mailbox(), Mailbox()
        core.submit(request([1], 8), first)
        core.abort(core.submit(request([2], 8), second))
        await read(first)
    assert [(end.reason, end.view.output_tokens, end.view.ttft is None) for end in ends] == [
        ("abort", 0, True),
        ("length", 8, False),
    ]


async def test_streams_without_an_executor_are_recovering_and_the_outage_is_timed() -> None:
    executor = fake(step_delay_ms=2)
    executor.failures = [Failure("die", step=6)]
    seen: list[list[str]] = []
    stages: list[str] = []
    began = executor.begin_epoch

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        await asyncio.sleep(0.02)
        seen.append([view.status for view in core.sequences(9)])
        stages.append(core.stage)
        return await began(epoch, adopt)

    async with engine(executor, max_num_seqs=2) as core:
        executor.begin_epoch = begin_epoch  # type: ignore[method-assign]
        boxes = [Mailbox() for _ in range(3)]
        for box in boxes:
            core.submit(request([1, 2, 3], 12), box)
        await asyncio.gather(*(read(box) for box in boxes))
        assert seen == [["recovering", "recovering", "waiting"]] and stages == ["recovering"]
        [outage] = core.outages()
        assert outage.epoch == 1 and outage.cause == "executor_died:fake"
        assert outage.ended is not None and 0.02 <= outage.ended - outage.began < 1


async def test_a_preempted_sequence_is_not_recovering() -> None:
    async with engine(fake(num_blocks=24, step_delay_ms=1)) as core:  # 96 tokens for 8 sequences of up to 40
        boxes = [Mailbox() for _ in range(8)]
        for number, box in enumerate(boxes):
            core.submit(request([number, 2, 3], 37), box)
        statuses: set[str] = set()
        while core.num_waiting or core.sequences(1):
            statuses.update(view.status for view in core.sequences(8))
            await asyncio.sleep(0.001)
        assert statuses == {"waiting", "running", "preempted"} and not core.outages()
