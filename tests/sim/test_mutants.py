"""Every mistake in `mutants.py` is noticed by a seed, soon."""

from __future__ import annotations

import logging

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.scenario import simulate

SEEDS = 500


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS):
        try:
            simulate(seed)
        except BaseException as error:
            print(f"{name}: seed {seed}: {type(error).__name__}: {error}")
            return
    raise AssertionError(f"{SEEDS} seeds do not notice: {MUTANTS[name].__doc__}")
