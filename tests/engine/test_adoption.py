"""KV that outlives the executor: what is computed again after a death, and what must not be adopted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.metrics_sink import MetricsSink
from engine.request import Stage
from executors.contract import ExecutorDied, Int32Array, SealedBlocks, UnifiedBatch, UnifiedOutput
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.paged import PagedFakeExecutor
from tests.engine.harness import engine, fake, read, request, run

PROMPT = [7 * i % 50 for i in range(21)]
DEATH_STEP = 6


def outliving(**options: str | int | float | bool) -> PagedFakeExecutor:
    """A fake whose blocks of 4 tokens outlive its process."""
    made = fake(**{"fingerprint": "a", **options})
    assert isinstance(made, PagedFakeExecutor)
    return made


class Record:
    """What was sent to an executor: tokens of each step by epoch, and what it was offered and has adopted."""

    def __init__(self, made: PagedFakeExecutor) -> None:
        self.tokens: dict[int, int] = {}
        self.offered: list[SealedBlocks | None] = []
        self.adopted: list[list[int]] = []
        self.order: list[tuple[int, int]] = []
        """(epoch, sequence) in order of their first steps in that epoch."""
        step, begin = made.unified_decode, made.begin_epoch

        async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
            self.tokens[batch.epoch] = self.tokens.get(batch.epoch, 0) + batch.num_prompt_tokens
            self.order += [(batch.epoch, start.seq_id) for start in batch.starts]
            return await step(batch)

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            adopted = await begin(epoch, adopt)
            self.offered.append(adopt)
            self.adopted.append(adopted.tolist())
            return adopted

        made.unified_decode, made.begin_epoch = unified_decode, begin_epoch  # type: ignore[method-assign]


async def streams(core: EngineCore, prompts: list[list[int]], count: int = 12) -> None:
    """All at once; each has to get the tokens of the oracle."""
    found = await asyncio.gather(*(run(core, request(prompt, count)) for prompt in prompts))
    assert [tokens for tokens, _ in found] == [expected_tokens(prompt, count) for prompt in prompts]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("native", [True, False])
async def test_a_stream_computes_its_last_block_again_and_no_more(prefix_caching: bool, native: bool) -> None:
    made = outliving(native=native)
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen = Record(made)
    async with engine(made, prefix_caching=prefix_caching) as core:
        await streams(core, [PROMPT, PROMPT[:9] + [3] * 9])
        assert core.stats().epoch == 2
    assert seen.offered[0] is None and seen.offered[1] is not None
    # 21 + 18 tokens and 4 or 5 of output each, of which 24 and 20 were in full blocks.
    assert len(seen.adopted[1]) >= 9
    assert seen.tokens[2] <= 2 * 4
    assert core.stats().kv_blocks_cached >= (9 if prefix_caching else 0)


async def test_without_a_fingerprint_nothing_is_sealed_or_offered() -> None:
    made = fake()
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen = Record(made)  # type: ignore[arg-type]
    async with engine(made) as core:
        await streams(core, [PROMPT])
    assert seen.offered == [None, None] and seen.tokens[2] >= len(PROMPT)


async def test_choices_of_a_call_share_what_they_adopt() -> None:
    made = outliving()
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen = Record(made)
    async with engine(made, prefix_caching=False) as core:
        mailbox = Mailbox()
        core.submit_choices([request(PROMPT, 12) for _ in range(3)], mailbox)
        whole = await asyncio.gather(*(read(mailbox, 0) for _ in range(1)))
        assert [token.token_id for token in whole[0].tokens] == expected_tokens(PROMPT, 12)
    assert seen.tokens[2] <= 3 * 5
    assert len(seen.adopted[1]) <= 5 + 3  # five of the prompt once, and at most one of each choice


async def test_damaged_blocks_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    made, counts = outliving(), list[tuple[int, int]]()

    class Sink(MetricsSink):
        def adopted(self, num_kept: int, num_damaged: int) -> None:
            counts.append((num_kept, num_damaged))

    made.failures.append(Failure("die", step=DEATH_STEP))
    seen, begin = Record(made), made.begin_epoch

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        if adopt is not None:
            made.scribble(0, adopt.blocks[2:3].tolist())
        return await begin(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    caplog.set_level(logging.WARNING, "cohort.engine")
    async with engine(made, Sink()) as core:
        await streams(core, [PROMPT])
    offered = len(seen.offered[1] or ())
    assert seen.adopted[1] == [i for i in range(offered) if i != 2]
    assert counts == [(offered - 1, 1)]
    assert f"{offered - 1} of {offered} KV blocks kept, 1 damaged" in caplog.text


async def test_another_fingerprint_adopts_nothing_and_calls_nothing_damaged() -> None:
    made, counts = outliving(), list[tuple[int, int]]()

    class Sink(MetricsSink):
        def adopted(self, num_kept: int, num_damaged: int) -> None:
            counts.append((num_kept, num_damaged))

    made.failures += [Failure("die", step=DEATH_STEP), Failure("die", step=DEATH_STEP + 6)]
    seen, begin, lives = Record(made), made.begin_epoch, iter("aba")

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        made.fingerprint = next(lives)
        return await begin(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    async with engine(made, Sink()) as core:
        await streams(core, [PROMPT])
    # What life b sealed says so: it is not life a's, though the life before b was an a.
    assert [one and one.fingerprint for one in seen.offered] == [None, "a", "b"]
    assert seen.adopted == [[], [], []] and counts == [(0, 0), (0, 0)]


async def test_a_second_death_before_a_token_empties_the_memory() -> None:
    made = outliving()
    made.failures += [Failure("die", step=DEATH_STEP), Failure("die", step=DEATH_STEP + 1)]
    seen = Record(made)
    async with engine(made) as core:
        await streams(core, [PROMPT, PROMPT[:10]])
    assert seen.offered[1] is not None and seen.offered[2] is None
    assert seen.tokens[3] >= len(PROMPT)


async def test_a_kill_for_want_of_memory_empties_the_memory() -> None:
    made = outliving()
    seen = Record(made)
    async with engine(made) as core:
        await streams(core, [PROMPT])
        core._inbox.report_death(ExecutorDied("the kernel killed it", "memory"))
        await streams(core, [PROMPT])
        assert core.stats().prefix_hits == 0
    assert seen.offered == [None, None]


async def test_a_prefix_of_a_request_that_has_ended_is_kept() -> None:
    made = outliving()
    async with engine(made) as core:
        await streams(core, [PROMPT])
        core._inbox.report_death(ExecutorDied("of itself", "exit"))
        await streams(core, [PROMPT])
        assert core.stats().epoch == 2 and core.stats().prefix_hits == 20


async def test_a_restart_that_dies_is_tried_again_without_adoption() -> None:
    made = outliving()
    made.failures.append(Failure("die", step=DEATH_STEP))
    works, left = made.begin_epoch, [ExecutorDied("killed as it began", "load")]
    offers: list[SealedBlocks | None] = []

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        offers.append(adopt)
        if epoch > 1 and left:
            raise left.pop()
        return await works(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    async with engine(made, recovery_timeout=5.0) as core:
        await streams(core, [PROMPT])
        assert not core._scheduler.sequences.returning  # type: ignore[union-attr]
    assert [offer is not None for offer in offers] == [False, True, False]


async def test_a_suspect_computes_all_of_its_own_again() -> None:
    """In two failed steps in a row: what it adopted may be the cause. Its prefix is nothing for others either."""
    made = outliving()
    made.failures.append(Failure("step_failed", seq=1, times=2))
    seen = Record(made)
    async with engine(made) as core:
        await streams(core, [PROMPT, [9] * 21])
        assert core.stats().epoch == 3
    assert seen.offered[2] is None or not len(seen.offered[2])
    assert seen.tokens[3] >= len(PROMPT)


async def test_streams_come_back_before_a_more_important_newcomer() -> None:
    """It would take the blocks that they adopt: the pool holds two sequences."""
    made = outliving(num_blocks=18)
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen, works = Record(made), made.begin_epoch
    newcomer = Mailbox()
    first = request(PROMPT, 12)
    first = replace(first, context=replace(first.context, priority=1))
    async with engine(made, scheduling_policy="priority", max_num_seqs=3) as core:  # type: ignore[arg-type]

        async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
            if adopt is not None:
                core.submit(request([1] * 40, 2), newcomer)
            return await works(epoch, adopt)

        made.begin_epoch = begin_epoch  # type: ignore[method-assign]
        boxes = [Mailbox(), Mailbox()]
        for box in boxes:
            core.submit(first, box)
        for box in boxes:
            assert [token.token_id for token in (await read(box)).tokens] == expected_tokens(PROMPT, 12)
        assert [token.token_id for token in (await read(newcomer)).tokens] == expected_tokens([1] * 40, 2)
    second_life = [seq for epoch, seq in seen.order if epoch == 2]
    assert second_life.index(max(second_life)) == 2
    assert seen.tokens[2] <= 2 * 4 + 40


async def test_the_story_says_that_kv_was_adopted() -> None:
    made = outliving()
    made.failures.append(Failure("die", step=DEATH_STEP))
    async with engine(made) as core:
        call = request(PROMPT, 12)
        await run(core, call)
    events = [(event.name, dict(event.details)) for event in call.context.story.events]
    [adopted] = [details["tokens"] for name, details in events if name == "kv_adopted"]
    names = [name for name, _ in events]
    assert adopted == 24 and names.index("restart") < names.index("kv_adopted") < names.index("resumed")


@contextmanager
def held(made: PagedFakeExecutor, began: asyncio.Event, go_on: asyncio.Event) -> Iterator[None]:
    """The next life begins when `go_on` is set."""
    works = made.begin_epoch

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        began.set()
        await go_on.wait()
        return await works(epoch, adopt)

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    yield


async def test_a_client_that_leaves_meanwhile_leaves_its_blocks() -> None:
    """Aborted while the next life begins: the other stream goes on, and what the first one computed is found."""
    made, began, go_on = outliving(), asyncio.Event(), asyncio.Event()
    made.failures.append(Failure("die", step=DEATH_STEP))
    seen = Record(made)
    async with engine(made) as core:
        with held(made, began, go_on):
            gone, stays = Mailbox(), Mailbox()
            seq_id = core.submit(request(PROMPT, 40), gone)
            core.submit(request([4] * 9, 12), stays)
            await began.wait()
            core.abort(seq_id)
            await asyncio.sleep(0.3)  # the loop looks after waiting sequences
            go_on.set()
            assert [token.token_id for token in (await read(stays)).tokens] == expected_tokens([4] * 9, 12)
            assert not core._scheduler.sequences.returning  # type: ignore[union-attr]
            made.failures.clear()
            await streams(core, [PROMPT])
    assert seen.tokens[2] <= 4 + 4


@pytest.mark.parametrize("drain", [True, False])
async def test_drain_and_stop_while_the_next_life_begins(drain: bool) -> None:
    """A drain lets the adopted stream go on to its end; a stop does not wait for the life that begins."""
    made, began, go_on = outliving(), asyncio.Event(), asyncio.Event()
    made.failures.append(Failure("die", step=DEATH_STEP))
    async with engine(made) as core:
        with held(made, began, go_on):
            mailbox = Mailbox()
            core.submit(request(PROMPT, 12), mailbox)
            await began.wait()
            if drain:
                draining = asyncio.create_task(core.drain(5))
                await asyncio.sleep(0)
                go_on.set()
                assert [token.token_id for token in (await read(mailbox)).tokens] == expected_tokens(
                    PROMPT, 12
                )
                assert await draining and core.stage is Stage.DRAINING
            else:
                await asyncio.wait_for(core.stop(), 5)
                assert (await read(mailbox)).error is not None


async def test_deaths_in_a_row_keep_what_was_sealed_before_each() -> None:
    made = outliving()
    made.failures += [Failure("die", step=DEATH_STEP + 5 * i) for i in range(4)]
    seen = Record(made)
    async with engine(made) as core:
        await streams(core, [PROMPT, PROMPT[:6] * 2], 24)
        assert core.stats().epoch == 5
    assert all(seen.tokens[epoch] <= 2 * 4 for epoch in range(2, 6))
    assert all(np.diff([len(one) for one in seen.adopted[1:]]) >= 0)
