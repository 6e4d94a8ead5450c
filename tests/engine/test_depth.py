"""Three steps are out while steps are short, and two behind long ones: on devices, unless the configuration says otherwise."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.assembly import step_depth
from engine.core.engine import EngineCore
from engine.core.inbox import Inbox
from engine.core.steps import SHORT_STEP_S, PendingStep, StepDepth, StepQueue
from engine.mailbox import Mailbox
from executors.contract import ModelExecutor, UnifiedBatch, UnifiedOutput
from executors.process.inline import InlineExecutor
from executors.testing.fakes.oracle import expected_tokens
from tests.engine import harness
from tests.engine.harness import GREEDY, fake, read, request

SHORT, LONG = 0.9e-3, 6e-3


class Paced:
    """Computes steps one after the other on a clock of its own, each in `step_s` seconds (0.02 with a prompt in it); `depths`:
    how many were out when a step was submitted, itself included, beside whether it is of decodes only."""

    def __init__(self, step_s: float, device: str = "cuda:0", takes: int = 3) -> None:
        self.executor = fake()
        self.step_s = step_s
        self.now = 0.0
        self.out = 0
        self.depths: list[tuple[int, bool]] = []
        self._computes, info, limits = (
            self.executor.unified_decode,
            self.executor.info,
            self.executor.capabilities,
        )
        self.executor.info = lambda: replace(info(), device=device)  # type: ignore[method-assign]
        self.executor.capabilities = lambda: replace(limits(), max_in_flight=takes)  # type: ignore[method-assign]
        self.executor.unified_decode = self._unified_decode  # type: ignore[method-assign]
        self._last: asyncio.Future[None] | None = None

    def clock(self) -> float:
        return self.now

    async def _unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        decodes = len(batch.token_ids) == len(batch)
        self.out += 1
        self.depths.append((self.out, decodes))
        before, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine
        # The fake knows no grammars; what counts here is that the engine does.
        starts = tuple(replace(start, grammar=None) for start in batch.starts)
        output = await self._computes(replace(batch, starts=starts))
        if before is not None:
            await before
        for _ in range(20):  # turns of the loop, in which the engine submits what it may
            await asyncio.sleep(0)
        self.now += self.step_s if decodes else 0.02
        self.out -= 1
        mine.set_result(None)
        return output


async def served(paced: Paced, **config: Any) -> list[list[int]]:
    """Tokens of two long answers, beside which a prompt comes late."""
    mailboxes = [Mailbox() for _ in range(3)]
    async with harness.engine(paced.executor, clock=paced.clock, **config) as core:
        for number in range(2):
            core.submit(request([number + 1], 90), mailboxes[number])
        while len(paced.depths) < 60:  # noqa: ASYNC110 - the clock is the test's own
            await asyncio.sleep(0)
        core.submit(request([3] * 30, 40), mailboxes[2])
        answers = await asyncio.gather(*(read(one) for one in mailboxes))
    return [[token.token_id for token in one.tokens] for one in answers]


EXPECTED = [expected_tokens([1], 90), expected_tokens([2], 90), expected_tokens([3] * 30, 40)]


async def test_three_steps_are_out_while_they_are_short() -> None:
    paced = Paced(SHORT)
    assert await served(paced) == EXPECTED
    depths = [depth for depth, _ in paced.depths]
    assert max(depths[:6]) == 2, "nothing is known of its steps yet"
    assert max(depths) == 3 and depths[30:50] == [3] * 20
    (prompt,) = (n for n, (_, decodes) in enumerate(paced.depths) if n > 50 and not decodes)
    assert depths[prompt] == 3, "behind short ones it may come early"
    assert max(depths[prompt + 1 : prompt + 3]) == 2, "behind it nothing is computed ahead"
    assert depths[prompt + 5 : prompt + 15] == [3] * 10, "one long step says nothing of those of decodes"


async def test_two_steps_are_out_while_they_are_long() -> None:
    paced = Paced(LONG)
    assert await served(paced) == EXPECTED
    assert max(depth for depth, _ in paced.depths) == 2


@pytest.mark.parametrize(("step_s", "most", "lines"), [(SHORT, None, 1), (LONG, None, 0), (SHORT, 3, 0)])
async def test_the_first_third_step_is_logged_once(
    step_s: float, most: int | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And not where a number is set, which steps that are long get as well."""
    caplog.set_level(logging.INFO, "cohort.engine")
    paced = Paced(step_s)
    assert await served(paced, max_in_flight=most) == EXPECTED
    assert caplog.messages.count("steps are short: three are in flight") == lines


async def test_steps_that_become_long_are_noticed() -> None:
    paced = Paced(SHORT)
    mailbox = Mailbox()
    async with harness.engine(paced.executor, clock=paced.clock) as core:
        core.submit(request([1], 200), mailbox)
        reading = asyncio.create_task(read(mailbox))
        while len(paced.depths) < 60:  # noqa: ASYNC110
            await asyncio.sleep(0)
        paced.step_s = 2 * SHORT_STEP_S
        await reading
    depths = [depth for depth, _ in paced.depths]
    assert depths[50:58] == [3] * 8 and max(depths[80:]) == 2


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_number_that_is_set_counts_whatever_steps_take(most: int) -> None:
    paced = Paced(LONG)
    assert await served(paced, max_in_flight=most) == EXPECTED
    assert max(depth for depth, _ in paced.depths) == most


@pytest.mark.parametrize("most", [None, 3])
async def test_beside_a_grammar_two_steps_are_out(most: int | None) -> None:
    """The launch of a third one would wait within the executor for the token of the first."""
    paced = Paced(SHORT)
    plain, shaped = Mailbox(), Mailbox()
    async with harness.engine(paced.executor, clock=paced.clock, max_in_flight=most) as core:
        core.submit(request([1], 240), plain)
        reading = asyncio.create_task(read(plain))
        while len(paced.depths) < 60:  # noqa: ASYNC110
            await asyncio.sleep(0)
        begun = len(paced.depths)
        core.submit(replace(request([2], 40), grammar="root ::= any"), shaped)
        await read(shaped)
        ended = len(paced.depths)
        await reading
    depths = [depth for depth, _ in paced.depths]
    assert depths[50:begun] == [3] * (begun - 50)
    assert max(depths[begun + 3 : ended - 3]) == 2
    assert depths[ended + 20 : ended + 40] == [3] * 20


@pytest.mark.parametrize(
    ("gaps", "three"),
    [
        (
            (SHORT, 4 * SHORT),
            True,
        ),  # a device that waits for its host: short steps, and a wait behind each second one
        ((SHORT, SHORT), True),
        ((LONG, SHORT, LONG, LONG), False),
        ((LONG, LONG), False),
    ],
)
async def test_a_wait_for_the_host_is_no_part_of_a_step(gaps: tuple[float, ...], three: bool) -> None:
    now = 0.0
    queue = StepQueue(fake(), Inbox(), lambda: now)
    queue.depth = StepDepth(3, 2)
    for number in range(80):
        began, now = now, now + gaps[number % len(gaps)]
        queue.seconds(PendingStep(OneDecode(), None, began))  # type: ignore[arg-type]
    queue.out.extend(PendingStep(OneDecode(), None, now) for _ in range(2))  # type: ignore[arg-type, misc]
    assert queue.room is three


class OneDecode:
    """What a queue asks of a step of one token of one sequence."""

    token_ids = (1,)

    def __len__(self) -> int:
        return 1


async def test_on_a_cpu_each_step_waits_for_the_one_before() -> None:
    paced = Paced(SHORT, device="cpu")
    assert await served(paced) == EXPECTED
    assert max(depth for depth, _ in paced.depths) == 1


async def test_an_executor_that_takes_two_gets_two() -> None:
    paced = Paced(SHORT, takes=2)
    assert await served(paced) == EXPECTED
    assert max(depth for depth, _ in paced.depths) == 2


def depth(executor: ModelExecutor, **config: Any) -> StepDepth:
    return step_depth(executor, EngineConfig(**config))


async def test_the_depth_that_an_executor_gets() -> None:
    for takes, device, expected in ((1, "cuda:0", 1), (2, "cuda:0", 2), (3, "cuda:0", 3), (3, "cpu", 1)):
        made = Paced(SHORT, device, takes).executor
        await made.warmup()
        assert depth(made) == StepDepth(expected, min(2, expected))
        assert depth(made, max_in_flight=8) == StepDepth(takes, takes)
        wrapped = InlineExecutor(made.config, made)
        await wrapped.warmup()
        assert wrapped.capabilities().max_in_flight == max(2, takes)
        await wrapped.shutdown()


def test_tokens_that_steps_in_flight_compute_of_one_sequence() -> None:
    """A third step is out behind two of one token each only, unless that was set."""
    assert StepDepth(1, 1).most_granted(512) == 512
    assert StepDepth(2, 2).most_granted(512) == StepDepth(3, 2).most_granted(512) == 1024
    assert StepDepth(3, 3).most_granted(512) == 1536 and StepDepth(3, 2).most_granted(1) == 3


async def test_a_stop_that_is_found_two_steps_late_shows_nothing_more() -> None:
    expected = expected_tokens([9, 9], 120)
    stop = expected[100]
    cut = expected.index(stop) + 1
    paced = Paced(SHORT)
    async with harness.engine(paced.executor, clock=paced.clock) as core:
        mailbox = Mailbox()
        core.submit(request([9, 9], 120, GREEDY, stop=(stop,)), mailbox)
        found = await read(mailbox)
        assert [token.token_id for token in found.tokens] == expected[:cut]
        await _settled(core)
        assert core.stats().kv_blocks_used == 0


async def _settled(core: EngineCore) -> None:
    for _ in range(200):
        await asyncio.sleep(0)
    assert not core._steps
