"""The latency budget while prompts never stop coming: what decodes take changes, and no step is without a chunk by itself."""

from __future__ import annotations

import random
import statistics

import pytest

from engine.policies.budget import LatencyBudget

MOST = 8192


def base_of(streams: int) -> float:
    """Seconds of a step of so many decodes, as on a GPU."""
    return 0.005 + 0.00027 * streams


def queued(
    budget: LatencyBudget,
    streams: int,
    base: float,
    cost: float,
    steps: int,
    rng: random.Random | None = None,
) -> list[int]:
    """So many steps while prompts wait; returns how many of their tokens each step had."""
    chunks = []
    for _ in range(steps):
        chunks.append(budget.prompt_tokens(streams, MOST))
        seconds = base + cost * chunks[-1]
        if rng is not None:
            seconds *= rng.uniform(0.95, 1.05) * (10 if rng.random() < 0.01 else 1)
        budget.observe(streams, chunks[-1], seconds)
    return chunks


def warm(streams: int, base: float, cost: float) -> LatencyBudget:
    """What quiet times teach: decodes alone, and now and then a prompt alone."""
    budget = LatencyBudget()
    for _ in range(20):
        budget.observe(0, 500, 0.005 + 500 * cost)
        budget.observe(streams, 0, base)
    return budget


@pytest.mark.parametrize("cost", [0.00002, 0.0002])
@pytest.mark.parametrize("streams", [8, 64, 200])
def test_many_streams_after_one(streams: int, cost: float) -> None:
    """The cost of the other streams is not that of the prompts' tokens."""
    budget, base = warm(1, base_of(1), cost), base_of(streams)
    chunks = [chunk for chunk in queued(budget, streams, base, cost, 200)[-32:] if chunk]
    assert len(chunks) >= 30
    assert chunks == pytest.approx([0.75 * base / cost] * len(chunks), rel=0.25)


@pytest.mark.parametrize(("before", "after"), [(0.010, 0.050), (0.050, 0.010), (0.010, 0.0101)])
def test_contexts_grow_and_shrink(before: float, after: float) -> None:
    """As many streams as before, whose steps take another time."""
    budget = warm(64, before, 0.00002)
    chunks = [chunk for chunk in queued(budget, 64, after, 0.00002, 200)[-32:] if chunk]
    assert len(chunks) >= 30
    assert chunks == pytest.approx([0.75 * after / 0.00002] * len(chunks), rel=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_stalls(seed: int) -> None:
    """A stall in the very step that measures is found out by the next one."""
    budget, base = warm(1, base_of(1), 0.00002), base_of(64)
    chunks = queued(budget, 64, base, 0.00002, 2000, random.Random(seed))[200:]
    assert statistics.mean(chunks) == pytest.approx(0.75 * base / 0.00002, rel=0.2)
    assert chunks.count(0) <= len(chunks) / 20


def test_prompts_give_way_seldom() -> None:
    budget = warm(64, base_of(64), 0.00002)
    assert 90 <= queued(budget, 64, base_of(64), 0.00002, 3200).count(0) <= 110
    alternating = [budget.prompt_tokens(streams, MOST) for streams in (63, 64) * 200]
    assert alternating.count(0) <= 26, "though nothing was measured of all this"


def test_streams_that_are_never_alone_are_not_waited_for() -> None:
    """Somebody else decides that a prompt goes on: each step has a chunk whatever is asked for."""
    budget = warm(1, base_of(1), 0.00002)
    chunks = []
    for _ in range(320):
        chunks.append(budget.prompt_tokens(64, MOST))
        budget.observe(64, max(8, chunks[-1]), base_of(64) + 0.00002 * max(8, chunks[-1]))
    assert chunks.count(0) <= 11
