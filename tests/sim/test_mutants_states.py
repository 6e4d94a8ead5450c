"""Every mistake in `mutants_states.py` is noticed by one of a few seeds, and the engine without one holds on all of them."""

from __future__ import annotations

import pytest

from tests.sim.mutants_states import STATE_MUTANTS
from tests.sim.scenario import Scenario
from tests.sim.seeds import MistakeTable, hold
from tests.tiers import sweep

CHUNKS, CHUNK = 24, 100
"""Of these seeds one in seven has states: 345 in all."""


def _has_states(scenario: Scenario) -> bool:
    return scenario.num_states > 0


TABLE = MistakeTable(STATE_MUTANTS, 600, {"slot_of_this_step_given_away": 280}, _has_states)


@pytest.mark.long
@pytest.mark.parametrize("name", STATE_MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    TABLE.notice(name, monkeypatch, caplog)


@sweep(every=12)
@pytest.mark.parametrize("first", range(500, 500 + CHUNKS * CHUNK, CHUNK))
def test_seeds_with_states(first: int, caplog: pytest.LogCaptureFixture) -> None:
    hold(range(first, first + CHUNK), caplog, _has_states)
