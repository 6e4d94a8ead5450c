"""Seeds with a disk hold, and every mistake in `tier.py` is noticed by one of them."""

from __future__ import annotations

import logging

import pytest

from tests.sim.scenario import draw
from tests.sim.tier import TIER_MUTANTS, concerns, simulate_tier
from tests.tiers import sweep

CHUNKS, CHUNK = 8, 150
"""Of these seeds a third has a disk: 300 and more in all."""
_MOST = 1600
"""Seeds that are looked through for one that notices a mistake."""
# Of those that few seeds notice, one that does: the search begins there.
_NOTICING = {
    "seals_not_compared": 103,
    "another_life_not_noticed": 547,
    "steps_in_flight_not_waited_for": 325,
    "used_before_its_read_is_answered": 170,
}


def _hold(seeds: range) -> int:
    hits = 0
    for seed in seeds:
        if concerns(draw(seed)):
            try:
                hits += simulate_tier(seed)
            except Exception as error:
                raise AssertionError(f"seed {seed} of tests.sim.tier.simulate_tier") from error
    return hits


def test_a_few_seeds_with_a_disk(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cohort.engine")
    assert _hold(range(60)) > 0


@sweep(every=8)
@pytest.mark.parametrize("first", range(2000, 2000 + CHUNKS * CHUNK, CHUNK))
def test_seeds_with_a_disk(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cohort.engine")
    assert _hold(range(first, first + CHUNK)) > 0


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", TIER_MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    TIER_MUTANTS[name](monkeypatch)
    for seed in (_NOTICING.get(name, 0), *range(_MOST)):
        if concerns(draw(seed)):
            try:
                simulate_tier(seed)
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}")
                return
    raise AssertionError(f"no seed notices: {TIER_MUTANTS[name].__doc__}")
