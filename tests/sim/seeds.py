"""Runs of many seeds: those in which the engine must hold, and those of which one must notice a mistake."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.sim.scenario import Scenario, draw, simulate

Mistake = Callable[[pytest.MonkeyPatch], None]
"""Puts a mistake into the engine; its docstring says which."""


@dataclass(frozen=True, slots=True)
class MistakeTable:
    """Mistakes by their names, each of which must be noticed by one of the `count` seeds from `first[name]`, or from 0, on."""

    mistakes: Mapping[str, Mistake]
    count: int
    first: Mapping[str, int] = field(default_factory=dict)
    """Seeds to begin with for what takes long to find from 0 on."""
    concerns: Callable[[Scenario], bool] | None = None
    """Which scenarios could notice one; None: all. The others are passed over."""

    def notice(self, name: str, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """Make the mistake of this name, and simulate seeds until one fails. Raises AssertionError if none does."""
        caplog.set_level(logging.CRITICAL + 1, "cohort.engine")
        mistake, first = self.mistakes[name], self.first.get(name, 0)
        mistake(patch)
        for seed in _chosen(range(first, first + self.count), self.concerns):
            try:
                simulate(seed)
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}")
                return
        raise AssertionError(f"no seed notices: {mistake.__doc__}")


def hold(
    seeds: Iterable[int], caplog: pytest.LogCaptureFixture, concerns: Callable[[Scenario], bool] | None = None
) -> None:
    """Simulate these seeds, those alone whose scenario `concerns` chooses. Raises AssertionError, with the seed, if one fails."""
    caplog.set_level(logging.CRITICAL, "cohort.engine")
    for seed in _chosen(seeds, concerns):
        try:
            simulate(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, replay with: python -m tests.sim {seed}") from error


def _chosen(seeds: Iterable[int], concerns: Callable[[Scenario], bool] | None) -> Iterable[int]:
    return (seed for seed in seeds if concerns is None or concerns(draw(seed)))
