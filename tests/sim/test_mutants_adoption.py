"""Every mistake in `mutants_adoption.py` and `mutants_snapshots.py` is noticed by one of a few seeds."""

from __future__ import annotations

import logging

import pytest

from tests.sim.mutants_adoption import ADOPTION_MUTANTS
from tests.sim.mutants_snapshots import SNAPSHOT_MUTANTS
from tests.sim.scenario import draw, notice, simulate
from tests.tiers import sweep

SEEDS = 160
FIRST = {
    "newcomers_first": 520,
    "duplicates_have_no_key": 600,
    "window_gone_before_the_seals": 100,
    "snapshots_checksum_never_compared": 1500,
}
"""Seeds to begin with for what takes long to find from 0 on."""
SNAPSHOT_SEEDS = 1200
CHUNKS, CHUNK = 24, 150
"""Of these seeds one in twelve has snapshots that outlive the executor: 300 in all."""


@pytest.mark.long
@pytest.mark.parametrize("name", ADOPTION_MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    ADOPTION_MUTANTS[name](monkeypatch)
    first = FIRST.get(name, 0)
    seeds = (seed for seed in range(first, first + SEEDS) if _outlives(seed, with_states=False))
    notice(seeds, ADOPTION_MUTANTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", SNAPSHOT_MUTANTS)
def test_a_mistake_with_snapshots_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    SNAPSHOT_MUTANTS[name](monkeypatch)
    first = FIRST.get(name, 0)
    seeds = (seed for seed in range(first, first + SNAPSHOT_SEEDS) if _outlives(seed, with_states=True))
    notice(seeds, SNAPSHOT_MUTANTS[name])


@sweep(every=12)
@pytest.mark.parametrize("first", range(1000, 1000 + CHUNKS * CHUNK, CHUNK))
def test_seeds_with_snapshots_that_outlive(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cohort.engine")
    for seed in range(first, first + CHUNK):
        if not _outlives(seed, with_states=True):
            continue
        try:
            simulate(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, replay with: python -m tests.sim {seed}") from error


def _outlives(seed: int, with_states: bool) -> bool:
    scenario = draw(seed)
    return bool(scenario.fingerprint) and bool(scenario.num_states) is with_states
