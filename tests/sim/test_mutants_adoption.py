"""Every mistake in `mutants_adoption.py` is noticed by one of a few seeds."""

from __future__ import annotations

import logging

import pytest

from tests.sim.mutants_adoption import ADOPTION_MUTANTS
from tests.sim.scenario import draw, notice

SEEDS = 160
FIRST = {"newcomers_first": 520, "duplicates_have_no_key": 600, "window_gone_before_the_seals": 100}
"""Seeds to begin with for what takes long to find from 0 on."""


@pytest.mark.long
@pytest.mark.parametrize("name", ADOPTION_MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    ADOPTION_MUTANTS[name](monkeypatch)
    first = FIRST.get(name, 0)
    seeds = (seed for seed in range(first, first + SEEDS) if draw(seed).fingerprint)
    notice(seeds, ADOPTION_MUTANTS[name])
