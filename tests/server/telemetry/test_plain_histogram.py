"""Our histogram beside prometheus_client's: the same text."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from server.telemetry.plain_histogram import PlainHistogram

BOUNDS = (0.001, 0.0025, 0.5, 1, 2.5, 10, 131072)


def test_it_renders_what_the_librarys_would() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    one = Histogram("a_time_seconds", "Seconds of something.", buckets=BOUNDS, registry=theirs)
    other = PlainHistogram("a_time_seconds", "Seconds of something.", BOUNDS)
    ours.register(other)
    assert generate_latest(ours) == generate_latest(theirs)
    rng = random.Random(3)
    for value in [*BOUNDS, 0, 0.0, 200_000.0, *(rng.lognormvariate(0, 3) for _ in range(500))]:
        one.observe(value)
        other.observe(value)
    for _ in range(7):
        one.observe(0.25)
    other.observe(0.25, 7)
    assert generate_latest(ours) == generate_latest(theirs)
