"""The verdict notices what grows, and bears what does not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.soak.gauges import Process, Sample
from tests.soak.verdict import Bounds, faults, theil_sen, trends

SERVER = Process(10, 150.0, 140.0, 100.0, 20, 9)
EXECUTOR = Process(11, 250.0, 240.0, 150.0, 14, 6)


def flat(count: int = 30) -> list[Sample]:
    """With an allocator's noise, caches that fill in the first minutes, and executors that are killed for two thirds."""
    rng = random.Random(1)
    samples = []
    for minute in range(count):
        warming = max(0.0, 3 - minute) * 8
        server = replace(
            SERVER, rss=150 + rng.uniform(-2, 2) - warming, anon=100 + rng.uniform(-2, 2) - warming
        )
        pid = 100 + min(minute, 2 * count // 3)
        executor = replace(EXECUTOR, pid=pid, rss=250 + rng.uniform(-2, 2), anon=150 + rng.uniform(-2, 2))
        samples.append(
            Sample(minute, minute > 2 * count // 3, server, executor, 2, 0, 0, 0, 5 * minute, minute, 0, 140)
        )
    return samples


def changed(samples: list[Sample], of: str, **slopes: float) -> list[Sample]:
    """With so much more of a process's numbers each minute."""
    found = []
    for one in samples:
        process = getattr(one, of)
        grown = {name: getattr(process, name) + slope * one.minute for name, slope in slopes.items()}
        found.append(replace(one, **{of: replace(process, **grown)}))
    return found


def test_what_is_flat_passes() -> None:
    assert list(faults(flat(), Bounds.of(30))) == []


@pytest.mark.parametrize("of", ["server", "executor"])
@pytest.mark.parametrize("name", ["rss", "anon"])
def test_a_leak_is_noticed(of: str, name: str) -> None:
    found = list(faults(changed(flat(), of, **{name: 1.0}), Bounds.of(30)))
    assert found and all(of in fault and ("MiB a minute" in fault or "grew" in fault) for fault in found), (
        found
    )


def test_a_slow_leak_is_noticed_by_what_it_adds_up_to() -> None:
    found = list(faults(changed(flat(60), "server", rss=0.45), Bounds.of(60)))
    assert any("server RSS grew by" in fault for fault in found), found


def test_what_is_counted_may_not_change() -> None:
    for of, name in (("server", "descriptors"), ("server", "threads"), ("executor", "descriptors")):
        assert len(list(faults(changed(flat(), of, **{name: 1}), Bounds.of(30)))) == 1, (of, name)
    assert len(list(faults(changed(flat(), "executor", threads=10), Bounds.of(30)))) == 1
    for name in ("children", "series"):
        samples = flat()
        samples[-1] = replace(samples[-1], **{name: 500})
        assert len(list(faults(samples, Bounds.of(30)))) == 1, name


def test_a_quiet_moment_is_empty() -> None:
    for name in ("blocks", "running", "waiting"):
        samples = flat()
        samples[0] = replace(samples[0], **{name: 1})
        [fault] = faults(samples, Bounds.of(30))
        assert name in fault


def test_an_executor_that_never_stays_says_nothing() -> None:
    samples = [replace(one, executor=replace(one.executor, pid=number)) for number, one in enumerate(flat())]
    [fault] = faults(samples, Bounds.of(30))
    assert "too few" in fault


def test_theil_sen_bears_outliers() -> None:
    times = [float(minute) for minute in range(20)]
    values = [2 * minute + 5 for minute in times]
    assert theil_sen(times, values) == pytest.approx(2)
    values[3], values[17] = 500, -500
    assert theil_sen(times, values) == pytest.approx(2, abs=0.2)
    assert trends(flat())[0].slope == pytest.approx(0, abs=0.1)


def test_short_runs_may_warm_up_and_no_more() -> None:
    """A last life of a minute may be up to sixteen MiB larger at its end."""
    short = [replace(one, minute=one.minute / 15) for one in flat()]
    assert list(faults(changed(short, "executor", rss=2.0), Bounds.of(2))) == []
    assert list(faults(changed(short, "executor", rss=80.0), Bounds.of(2)))
