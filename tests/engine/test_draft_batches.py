"""Drafts on a device, whose steps overlap: a batch stays whole, rests where drafts do not pay, and prompts end no rest."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from engine.core.scheduler import Scheduler
from engine.policies.draft_length import DraftLengths
from engine.sequence import Sequence
from executors.contract import Pace, UnifiedBatch, UnifiedOutput
from tests.engine import harness
from tests.sim.virtual_loop import run

STEP_S, ROW_S = 4e-3, 2e-5
PACE = Pace(ROW_S, ((1, STEP_S), (8, STEP_S + 7 * ROW_S), (64, STEP_S + 63 * ROW_S)))


class Device(harness.OnADevice):
    """Its steps take their time one after the other."""

    def pace(self) -> Pace:
        return PACE

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        async with self.turn:
            await asyncio.sleep(STEP_S + ROW_S * len(batch.token_ids))
            output: UnifiedOutput = await self.inner.unified_decode(batch)
            self.sizes[batch.num_decodes] += 1
            return output


class Hopeless:
    """Proposes, at every seventh token, what is wrong."""

    def propose(self, seq: Sequence) -> list[int]:
        return [0] * 4 if seq.num_known_tokens % 7 == 0 else []


async def _rate(drafts: int, streams: int, prompts: bool) -> tuple[float, Counter[int]]:
    """Tokens per second of streams that come one after the other, beside prompts or not."""
    inner = harness.fake("paged_fake", seqs=16, block_size=16, num_blocks=4096)
    inner.max_model_len = 8192
    device, tokens = Device(inner), 200
    options = {"max_num_batched_tokens": 64, "num_speculative_tokens": drafts, "max_num_seqs": 16}
    async with harness.engine(device, **options) as core:  # type: ignore[arg-type]
        if drafts:
            core._scheduler.policies.drafter = Hopeless()  # type: ignore[assignment]

        async def ask(number: int) -> None:
            await asyncio.sleep(0.013 * number)
            await harness.run(core, harness.request([number + 1, 2, 3, 4], tokens))

        async def read_prompts() -> None:
            for number in range(1000):
                await harness.run(core, harness.request([(number * 7 + i) % 50 for i in range(3000)], 1))

        others = asyncio.create_task(read_prompts()) if prompts else None
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(ask(number) for number in range(streams)))
        seconds = asyncio.get_running_loop().time() - began
        if others is not None:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
    return streams * tokens / seconds, device.sizes


@pytest.mark.parametrize("streams", [2, 6])
def test_streams_that_come_later_share_the_steps_of_those_that_draft(streams: int) -> None:
    without, _ = run(_rate(0, streams, False))
    found, sizes = run(_rate(4, streams, False))
    assert found > 0.95 * without
    assert sizes[streams] > 0.8 * sum(sizes.values()), "halves of the batch take turns"


def test_drafts_that_never_pay_rest_beside_prompts_too() -> None:
    without, _ = run(_rate(0, 4, True))
    found, _ = run(_rate(4, 4, True))
    assert found > 0.85 * without


def _halves(patch: pytest.MonkeyPatch) -> None:
    """Sequences go as soon as each can, whatever others do."""
    grant = Scheduler._grant_with_drafts
    patch.setattr(
        Scheduler,
        "_grant_with_drafts",
        lambda self, decodes, drafter, _, plan: grant(self, decodes, drafter, True, plan),
    )


def _mixed_steps_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Steps with prompts let no rest begin."""
    patch.setattr(DraftLengths, "step_landed", lambda self: None)


def test_halves_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _halves(monkeypatch)
    with pytest.raises(AssertionError):
        test_streams_that_come_later_share_the_steps_of_those_that_draft(6)


def test_steps_that_do_not_count_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _mixed_steps_do_not_count(monkeypatch)
    with pytest.raises(AssertionError):
        test_drafts_that_never_pay_rest_beside_prompts_too()
