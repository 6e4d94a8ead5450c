"""`PlainHistogram`: a histogram without labels, for what is counted for every token or call."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class PlainHistogram(Collector):
    """Counts in plain integers. One writer: the event loop. prometheus_client's own histogram takes two locks for each value and
    tries its bounds one after the other, which is as long as the rest of a token's way through the engine's delivery."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        """`bounds`: upper limits of the buckets, ascending, without infinity."""
        self._name, self._about = name, about
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `count` occurrences of this value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[Metric]:
        """The histogram."""
        family = HistogramMetricFamily(self._name, self._about, labels=[])
        names = [*map(str, self._bounds), "+Inf"]
        below = itertools.accumulate(self._counts)
        family.add_metric(
            [], [(name, float(count)) for name, count in zip(names, below, strict=True)], self._sum
        )
        yield family
