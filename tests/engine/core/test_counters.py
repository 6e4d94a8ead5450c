"""Figures that are counted once for many sequences are those of each."""

from __future__ import annotations

from engine.core.counters import Counters
from engine.metrics_sink import MetricsSink


class Intervals(MetricsSink):
    """Each token's interval."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def tokens(self, count: int, inter_token: float, sequences: int = 1) -> None:
        self.seconds += [inter_token / count] * count * sequences


def test_equal_gaps_of_a_step_count_for_each_sequence() -> None:
    sink = Intervals()
    Counters(sink).tokens_committed({(1, 0.25): 3, (2, 0.25): 1, (1, 0.5): 1})
    assert sorted(sink.seconds) == [0.125, 0.125, 0.25, 0.25, 0.25, 0.5]
