"""An executor's answer that does not fit the step: a failed step like any other, not the end of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from engine.core.engine import EngineCore
from engine.errors import BrokeExecutor
from engine.request import Stage
from executors.contract import ItemOutput, SampledToken, UnifiedBatch, UnifiedOutput
from executors.process.inline import InlineExecutor
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, request, run

Spoil = Callable[[UnifiedBatch, UnifiedOutput], None]


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def cut_short(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.num_tokens, output.token_ids = output.num_tokens[:-1], output.token_ids[:-1]


def zeroed(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.num_tokens, output.token_ids, output.details = np.zeros_like(output.num_tokens), ids(), {}


def one_zeroed(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.num_tokens, output.token_ids = ids(0, *output.num_tokens[1:]), output.token_ids[1:]


def an_item_more(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.num_tokens, output.token_ids = ids(*output.num_tokens, 1), ids(*output.token_ids, 7)


def a_token_more(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.num_tokens, output.token_ids = ids(2, *output.num_tokens[1:]), ids(7, *output.token_ids)


def ids_missing(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.token_ids = output.token_ids[:-1]


def swapped(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.num_tokens, output.token_ids = ids(2, -1, *output.num_tokens[2:]), output.token_ids[:-1]


def of_nobody(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.details = {len(batch): ItemOutput((SampledToken(7),))}


def details_without_tokens(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.details = {0: ItemOutput(prompt_logprobs=())}


def no_token(batch: UnifiedBatch, output: UnifiedOutput) -> None:
    output.token_ids = np.full_like(output.token_ids, -1)


SPOILS: tuple[Spoil, ...] = (
    cut_short, zeroed, one_zeroed, an_item_more, a_token_more, ids_missing, swapped, of_nobody, details_without_tokens,
    no_token,
)  # fmt: skip


def spoiled(made: FakeExecutor, spoil: Spoil, steps: range) -> None:
    """Those steps are computed as they ought to be, and answered otherwise."""
    works, done = made.unified_decode, 0

    async def unified_decode(batch: UnifiedBatch) -> UnifiedOutput:
        nonlocal done
        output = await works(batch)
        done += 1
        if done in steps:
            spoil(batch, output)
        return output

    made.unified_decode = unified_decode  # type: ignore[method-assign]


async def streams(core: EngineCore) -> None:
    """Four, which finish as they ought to."""
    found = await asyncio.gather(*(run(core, request([i, 1, 2], 20)) for i in range(4)))
    assert [ids for ids, _ in found] == [expected_tokens([i, 1, 2], 20) for i in range(4)]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
async def test_the_step_is_computed_again(spoil: Spoil, in_flight: int) -> None:
    made = fake()
    spoiled(made, spoil, range(5, 6))
    async with engine(InlineExecutor(made.config, made), max_in_flight=in_flight) as core:  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            await streams(core)
        assert (core.stats().epoch, core.stats().resumed, core.stats().stage) == (2, 4, Stage.READY)


async def test_a_chunk_gives_no_token() -> None:
    """Nor does the answer to it claim one for the prompt that is half computed."""
    made = fake()
    spoiled(made, a_token_more, range(1, 2))
    async with engine(made, max_num_batched_tokens=8) as core:
        async with asyncio.timeout(10):
            assert (await run(core, request([3] * 20, 5)))[0] == expected_tokens([3] * 20, 5)
        assert core.stats().epoch == 2


async def test_answers_to_one_request_that_are_always_so_fail_it_and_not_the_server() -> None:
    made = fake()
    spoiled(made, zeroed, range(5, 8))
    async with engine(made) as core:
        async with asyncio.timeout(10):
            with pytest.raises(BrokeExecutor, match=r"the executor failed: .* neither a token nor a result"):
                await run(core, request([1], 20))
            await streams(core)
        assert (core.stats().epoch, core.stats().stage) == (4, Stage.READY)


async def test_drafts_may_give_more_and_not_too_many() -> None:
    class Right:
        def propose(self, seq):  # type: ignore[no-untyped-def]
            known = len(seq.output_token_ids)
            return expected_tokens(seq.request.prompt_token_ids, known + 2)[known:]

    made = fake()
    spoiled(made, a_token_more, range(3, 4))
    async with engine(made, max_num_batched_tokens=64) as core:
        assert core._scheduler is not None
        core._scheduler.policies.drafter = Right()
        async with asyncio.timeout(10):
            await streams(core)
        assert core.stats().epoch == 2 and made.steps < 20
