"""Is it flat? Judged on samples of quiet moments."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tests.soak.gauges import Sample

WARM_UP = 0.2
"""Share of the samples at the start that are not judged: caches fill, allocators take what they will keep."""
_POOL = min(32, (os.cpu_count() or 1) + 4)
"""Threads that asyncio's own pool may have, as Python's documentation says: the executor compiles grammars on them, and makes
one more whenever all are busy."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of memory that counts as flat: MiB a minute, and growth over all of the judged time as a share. Short runs may have `noise`
    MiB more, however short the time that is judged: an allocator that warms up is divided by less time there. Half an hour rises
    by 20 MiB in its first ten minutes and by less after. What two minutes are to find is 8 KiB a request: 20 MiB."""

    slope: float
    growth: float
    noise: float

    @classmethod
    def of(cls, minutes: float) -> Bounds:
        """For a run of so many minutes."""
        return cls(0.5, 0.05, 0.0) if minutes >= 20 else cls(0.5, 0.2, 16.0)


@dataclass(frozen=True, slots=True)
class Trend:
    """Of a process's memory: `slope` in MiB a minute, `growth` from the first to the last third as a share."""

    of: str
    slope: float
    growth: float
    first: float
    last: float
    samples: int
    minutes: float


def theil_sen(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes of all pairs (Theil 1950, Sen 1968): up to 29% of the values may be anything."""
    slopes = [
        (values[j] - values[i]) / (times[j] - times[i])
        for i, j in combinations(range(len(times)), 2)
        if times[j] != times[i]
    ]
    return statistics.median(slopes)


def judged(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Those after the warm-up."""
    return samples[max(1, round(len(samples) * WARM_UP)) :]


def one_life(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The last samples of one and the same executor without its first ones, which are its own warm-up."""
    last = [one for one in samples if one.executor.pid == samples[-1].executor.pid]
    return last[max(1, len(last) // 3) :]


def trend(of: str, samples: Sequence[Sample], value: Callable[[Sample], float]) -> Trend:
    """Of at least four samples."""
    values, third = [value(one) for one in samples], max(1, len(samples) // 3)
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    slope = theil_sen([one.minute for one in samples], values)
    minutes = samples[-1].minute - samples[0].minute
    return Trend(of, slope, last / first - 1, first, last, len(samples), minutes)


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """What grows, and how fast. The executor's within its last life, which nobody ended."""
    after, life = judged(samples), one_life(samples)
    return [
        trend("server RSS", after, lambda one: one.server.rss),
        trend("server anonymous", after, lambda one: one.server.anon),
        trend("executor RSS", life, lambda one: one.executor.rss),
        trend("executor anonymous", life, lambda one: one.executor.anon),
    ]


def faults(samples: Sequence[Sample], bounds: Bounds) -> Iterator[str]:
    """Everything that is not flat, and every quiet moment that was not empty."""
    for one in samples:
        for name in ("blocks", "running", "waiting"):
            if getattr(one, name):
                yield f"minute {one.minute:.1f}: {name} is {getattr(one, name)} while nobody asks for anything"
    after, life = judged(samples), one_life(samples)
    if len(life) < 4:
        yield f"the executor's last life has {len(life)} samples: too few to say anything"
        return
    for found in trends(samples):
        most = max(bounds.slope, bounds.noise / found.minutes)
        if found.slope > most:
            yield f"{found.of} grows by {found.slope:.2f} MiB a minute (bound {most:.2g})"
        if found.growth > bounds.growth:
            yield f"{found.of} grew by {found.growth:.1%} (bound {bounds.growth:.0%})"
    counted: list[tuple[str, Sequence[Sample], Callable[[Sample], int]]] = [
        ("the server's descriptors", after, lambda one: one.server.descriptors),
        ("the server's threads", after, lambda one: one.server.threads),
        ("its children", after, lambda one: one.children),
        ("series of metrics", after, lambda one: one.series),
        ("the executor's descriptors", life, lambda one: one.executor.descriptors),
    ]
    more = life[-1].executor.threads - life[0].executor.threads
    if more > _POOL:
        yield f"the executor has {more} threads more than at first"
    for name, where, value in counted:
        seen = [value(one) for one in where]
        if len(set(seen)) > 1:
            yield f"{name} are not the same at each quiet moment: {seen}"
