"""Every mistake in `mutants_states.py` is noticed by one of a few seeds, and the engine without one holds on all of them."""

from __future__ import annotations

import logging

import pytest

from tests.sim.mutants_states import STATE_MUTANTS
from tests.sim.scenario import draw, notice, simulate
from tests.tiers import sweep

SEEDS = 600
FIRST = {"slot_of_this_step_given_away": 280}
"""Seeds to begin with for what takes long to find from 0 on."""


CHUNKS, CHUNK = 24, 100
"""Of these seeds one in seven has states: 345 in all."""


@pytest.mark.long
@pytest.mark.parametrize("name", STATE_MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    STATE_MUTANTS[name](monkeypatch)
    first = FIRST.get(name, 0)
    seeds = (seed for seed in range(first, first + SEEDS) if draw(seed).num_states)
    notice(seeds, STATE_MUTANTS[name])


@sweep(every=12)
@pytest.mark.parametrize("first", range(500, 500 + CHUNKS * CHUNK, CHUNK))
def test_seeds_with_states(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cohort.engine")
    for seed in range(first, first + CHUNK):
        if not draw(seed).num_states:
            continue
        try:
            simulate(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, replay with: python -m tests.sim {seed}") from error
