"""500 seeds of the simulation; `python -m tests.sim` runs 10,000. A failing seed is replayed with `python -m tests.sim SEED`."""

from __future__ import annotations

from typing import cast

import pytest

from tests.sim.executor import SimExecutor
from tests.sim.scenario import draw, simulate
from tests.sim.seeds import MistakeTable, hold
from tests.tiers import sweep

SEEDS, CHUNK = 500, 25


@sweep(every=6)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first: int, caplog: pytest.LogCaptureFixture) -> None:
    hold(range(first, first + CHUNK), caplog)


def test_a_seed_always_runs_the_same_way() -> None:
    first, second = simulate(11), simulate(11)
    assert first.stats() == second.stats()


def test_devices_get_a_third_step_while_steps_are_short() -> None:
    """In some of the seeds whose executor takes three, by default: the queue has room for it, and not behind prompts."""
    seeds = [seed for seed in range(300) if (one := draw(seed)).as_device and one.max_in_flight == 3]
    assert len(seeds) > 15
    third = 0
    for seed in seeds[:12]:
        third += cast("SimExecutor", simulate(seed).executor).num_third
    assert third > 0


def test_a_mistake_that_changes_nothing_is_not_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(patch: pytest.MonkeyPatch) -> None:
        """The engine stays as it is."""

    with pytest.raises(AssertionError, match="no seed notices: The engine stays as it is"):
        MistakeTable({"none": none}, count=3).notice("none", monkeypatch, caplog)
