"""Every mistake in `mutants.py` is noticed by a seed, soon."""

from __future__ import annotations

import logging

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.scenario import simulate

pytestmark = pytest.mark.long

SEEDS = 500
FIRST = {
    "abort_in_flight_forgotten": 150,
    "void_results_count": 2050,
    "partial_block_named": 40,
    "read_in_the_same_step": 40,
}
"""Seeds to begin with for what takes long to find from 0 on."""


@pytest.mark.long(every=5)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    MUTANTS[name](monkeypatch)
    first = FIRST.get(name, 0)
    for seed in range(first, first + SEEDS):
        try:
            simulate(seed)
        except Exception as error:
            print(f"{name}: seed {seed}: {type(error).__name__}: {error}")
            return
    raise AssertionError(f"{SEEDS} seeds do not notice: {MUTANTS[name].__doc__}")
