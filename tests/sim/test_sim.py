"""500 seeds of the simulation; `python -m tests.sim` runs 10,000. A failing seed is replayed with `python -m tests.sim SEED`."""

from __future__ import annotations

import logging

import pytest

from tests.sim.scenario import simulate
from tests.tiers import sweep

SEEDS, CHUNK = 500, 25


@sweep(every=6)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cohort.engine")
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, replay with: python -m tests.sim {seed}") from error


def test_a_seed_always_runs_the_same_way() -> None:
    first, second = simulate(11), simulate(11)
    assert first.stats() == second.stats()
