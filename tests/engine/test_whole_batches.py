"""Streams that came at different moments are all in each next step: tokens in flight make no halves that take turns."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from engine.core.scheduler import Scheduler
from engine.sequence import Sequence
from executors.contract import UnifiedBatch, UnifiedOutput
from tests.engine import harness
from tests.sim.virtual_loop import run

TOKENS, SPREAD = 80, 12
SHORT, LONG = 0.9e-3, 4e-3


class Device(harness.OnADevice):
    """Computes steps one after the other, each in `step_s` whatever its rows."""

    def __init__(self, step_s: float) -> None:
        super().__init__(harness.fake("paged_fake", block_size=16, num_blocks=1024))
        self._step_s = step_s

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self.sizes[len(batch)] += 1
        # The fake knows no grammars; what counts here is that the engine does.
        starts = tuple(replace(start, grammar=None) for start in batch.starts)
        async with self.turn:
            await asyncio.sleep(self._step_s)
            output: UnifiedOutput = await self.inner.unified_decode(replace(batch, starts=starts))
        return output


async def _sizes(streams: int, out: int | None, step_s: float, grammars: int) -> Counter[int]:
    """Sizes of the steps of streams that come within `SPREAD` steps, the first few of which follow a grammar."""
    device, moments = Device(step_s), random.Random(streams)
    async with harness.engine(device, max_in_flight=out) as core:  # type: ignore[arg-type]

        async def ask(number: int, moment: float) -> None:
            await asyncio.sleep(moment * step_s)
            asked = harness.request([number + 1, 2, 3, 4], TOKENS)
            await harness.run(core, replace(asked, grammar="any") if number < grammars else asked)

        await asyncio.gather(*(ask(number, SPREAD * moments.random()) for number in range(streams)))
    return device.sizes


@pytest.mark.parametrize("grammars", [0, 1])
@pytest.mark.parametrize(("out", "step_s"), [(1, SHORT), (2, SHORT), (3, LONG), (None, SHORT), (None, LONG)])
@pytest.mark.parametrize("streams", [2, 3, 8])
def test_all_streams_share_steps(streams: int, out: int | None, step_s: float, grammars: int) -> None:
    sizes = run(_sizes(streams, out, step_s, grammars))
    assert sizes[streams] >= TOKENS - SPREAD - 4, "some are left out though nothing holds them back"
    assert sum(sizes.values()) <= TOKENS + SPREAD + 4, "streams take turns"


def test_streams_that_wait_for_their_tokens_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a sequence could not go on before its token is back."""
    grant = Scheduler._grant_one_each

    def known(self: Scheduler, decodes: Iterable[Sequence], plan: Any) -> None:
        grant(self, [seq for seq in decodes if not seq.num_pending_tokens], plan)

    monkeypatch.setattr(Scheduler, "_grant_one_each", known)
    with pytest.raises(AssertionError):
        test_all_streams_share_steps(2, 2, SHORT, 1)
