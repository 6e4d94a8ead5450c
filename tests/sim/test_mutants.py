"""Every mistake in `mutants.py` is noticed by a seed, soon."""

from __future__ import annotations

import logging

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.scenario import notice

pytestmark = pytest.mark.long

SEEDS = 500
FIRST = {
    "abort_in_flight_forgotten": 150,
    "void_results_count": 2050,
    "partial_block_named": 40,
    "read_in_the_same_step": 40,
    "stride_outlives_a_slide": 80,
    "stride_whatever_is_in_flight": 150,
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
    notice(range(first, first + SEEDS), MUTANTS[name])
