"""Every mistake in `mutants_adoption.py` and `mutants_snapshots.py` is noticed by one of a few seeds."""

from __future__ import annotations

import pytest

from tests.sim.mutants_adoption import ADOPTION_MUTANTS
from tests.sim.mutants_snapshots import SNAPSHOT_MUTANTS
from tests.sim.scenario import Scenario
from tests.sim.seeds import MistakeTable, hold
from tests.tiers import sweep

CHUNKS, CHUNK = 24, 150
"""Of these seeds one in twelve has snapshots that outlive the executor: 300 in all."""


def _blocks_outlive(scenario: Scenario) -> bool:
    return bool(scenario.fingerprint) and not scenario.num_states


def _snapshots_outlive(scenario: Scenario) -> bool:
    return bool(scenario.fingerprint) and scenario.num_states > 0


BLOCKS = MistakeTable(
    ADOPTION_MUTANTS,
    160,
    {"newcomers_first": 520, "duplicates_have_no_key": 600, "window_gone_before_the_seals": 100},
    _blocks_outlive,
)
SNAPSHOTS = MistakeTable(
    SNAPSHOT_MUTANTS, 1200, {"snapshots_checksum_never_compared": 1500}, _snapshots_outlive
)


@pytest.mark.long
@pytest.mark.parametrize("name", ADOPTION_MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    BLOCKS.notice(name, monkeypatch, caplog)


@pytest.mark.long
@pytest.mark.parametrize("name", SNAPSHOT_MUTANTS)
def test_a_mistake_with_snapshots_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    SNAPSHOTS.notice(name, monkeypatch, caplog)


@sweep(every=12)
@pytest.mark.parametrize("first", range(1000, 1000 + CHUNKS * CHUNK, CHUNK))
def test_seeds_with_snapshots_that_outlive(first: int, caplog: pytest.LogCaptureFixture) -> None:
    hold(range(first, first + CHUNK), caplog, _snapshots_outlive)
