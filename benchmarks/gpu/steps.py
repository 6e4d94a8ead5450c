"""Between decode steps of a full batch: how long the device idles, and what a step costs the engine's thread."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import profiled, shapes
from benchmarks.gpu.engine import facts, limits_of, random_prompts
from benchmarks.gpu.part import Failed, Figures, Found, NotRun, Options
from benchmarks.gpu.serving import Crowd, Setup, engine, settled, until
from benchmarks.gpu.timing import Limits
from engine.core.engine import EngineCore

MOST_IDLE = 0.05
GAP = 10e-6
"""Seconds: kernels of one graph follow each other within a few microseconds, more is the host's making."""
_DEVICE_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_PATIENCE = 45.0
KERNELS = 15
"""Rows of a step's time by kernel."""
_NAMED = 120
"""Characters of a kernel's name that are kept: templates of libraries' fill a page."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the engine's side saw of some steps. Seconds."""

    steps: int
    wall: float
    thread: float
    """CPU time of the thread that schedules, encodes, decodes and commits."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Sequences that decode side by side, and how many of their steps are watched."""

    count: int
    prompt: int
    tokens: int
    watched: int
    max_model_len: int = 4096


FULL, ALONE = _Load(256, 512, 3_000, 200), _Load(1, 768, 7_000, 200, 8192)
"""A full batch, and one sequence, whose step is the shortest: it is read for several seconds."""
_TINY = _Load(4, 8, 3_000, 10)


def run(options: Options, found: Found) -> None:
    """256 sequences decode; first they are watched, then the device is profiled. Then one sequence alone."""
    limits = limits_of(options)
    absent: NotRun | None = None
    try:
        _measured(options, found, limits, _TINY if options.tiny else FULL)
    except NotRun as error:
        absent = error
    alone: Figures = {}

    def found_alone(more: Figures) -> None:
        alone.update(more)
        found({"one_sequence": alone})

    try:
        _measured(options, found_alone, limits, replace(_TINY, count=1) if options.tiny else ALONE)
    except NotRun as error:
        found_alone({"not_run": str(error)})
    if absent is not None:
        raise absent


def _measured(options: Options, found: Found, limits: Limits, load: _Load) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ[profiled.FOLDER] = folder
        try:
            asyncio.run(_run(options, found, limits, load, Path(folder)))
        finally:
            del os.environ[profiled.FOLDER]


async def _run(options: Options, found: Found, limits: Limits, load: _Load, folder: Path) -> None:
    shape = shapes.TINY if options.tiny else shapes.SMALL
    setup = Setup(shape, max_num_seqs=load.count, max_model_len=load.max_model_len, executor=profiled.NAME)
    async with engine(options, setup) as core:
        await settled(core)
        crowd = Crowd(core)
        crowd.ask(random_prompts(load.count, load.prompt, 0, shape), [load.tokens] * load.count)
        reading = asyncio.create_task(crowd.read())
        # All prompts are computed, and what is captured or compiled along the way is.
        await _stay(
            reading, until(lambda: min(crowd.counts) >= 40, _PATIENCE), "the decode steps did not begin"
        )
        window = await _watch(core, load.watched, reading)
        found(
            {
                "batch": load.count,
                "step_ms": 1e3 * window.wall / window.steps,
                "engine_ms_per_step": 1e3 * window.thread / window.steps,
                "engine_share_of_step": window.thread / window.wall,
                **facts(core, limits),
            }
        )
        (folder / profiled.ASK).touch()
        done = folder / profiled.DONE
        await _stay(reading, until(done.exists, _PATIENCE), "the executor's measurements did not end")
        crowd.leave()
        reading.cancel()
    found(answered(folder))


def answered(folder: Path) -> dict[str, Any]:
    """Figures of what a profiled executor left there. Raises Failed where something went wrong and nothing else is known."""
    steps, trace, problem = (folder / name for name in (profiled.STEPS, profiled.TRACE, profiled.PROBLEM))
    events = json.loads(trace.read_text("utf-8"))["traceEvents"] if trace.exists() else []
    pairs = json.loads(steps.read_text("utf-8")) if steps.exists() else []
    # The last line says what, the rest where.
    wrong = problem.read_text("utf-8").strip().splitlines()[-1] if problem.exists() else ""
    try:
        figures = idle_figures(device_intervals(events), pairs)
    except NotRun:
        if wrong:
            raise Failed(f"the device could not be measured: {wrong}") from None
        raise
    return figures | kernels_of_a_step(events) | ({"problem": wrong} if wrong else {})


async def _stay(reading: asyncio.Task[None], waiting: Any, missing: str) -> None:
    """Wait, but not for sequences that have ended or failed."""
    waited = asyncio.ensure_future(waiting)
    await asyncio.wait((reading, waited), return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        waited.cancel()
        reading.result()
        raise Failed("the sequences ended before the measurement")
    if not waited.result():
        raise Failed(missing)


async def _watch(core: EngineCore, steps: int, reading: asyncio.Task[None]) -> Window:
    """So many steps of a batch that does not change."""
    begin, wall, thread = core.stats().steps, time.perf_counter(), time.thread_time()
    await _stay(reading, until(lambda: core.stats().steps >= begin + steps, _PATIENCE), "the steps hang")
    return Window(core.stats().steps - begin, time.perf_counter() - wall, time.thread_time() - thread)


def device_intervals(events: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    """(begin, end), seconds, of everything that ran on the device, from a Chrome trace, whose times are microseconds."""
    return sorted(
        (float(one["ts"]) / 1e6, (float(one["ts"]) + float(one["dur"])) / 1e6)
        for one in events
        if one.get("ph") == "X" and one.get("cat") in _DEVICE_WORK
    )


def kernels_of_a_step(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Figures: the device's time in a step by kernel, those that take most of it first, from a Chrome trace. Microseconds and
    launches of a step, of which each ends with one copy to the host; of the whole trace where there is no such copy."""
    seconds: defaultdict[str, float] = defaultdict(float)
    times = Counter[str]()
    steps = 0
    for one in events:
        if one.get("ph") == "X" and one.get("cat") in _DEVICE_WORK:
            name = str(one.get("name", ""))
            seconds[name] += float(one["dur"])
            times[name] += 1
            steps += one["cat"] == "gpu_memcpy" and "DtoH" in name
    if not seconds:
        return {}
    total, of = sum(seconds.values()), max(1, steps)
    most = sorted(seconds.items(), key=lambda one: -one[1])
    rows = [
        {"kernel": name[:_NAMED], "us": spent / of, "launches": times[name] / of, "share": spent / total}
        for name, spent in most[:KERNELS]
    ]
    left = {"other_kernels_us": sum(spent for _, spent in most[KERNELS:]) / of}
    return {"profiled_steps": steps, "device_us_per_step": total / of, "kernels_of_a_step": rows, **left}


def idle_figures(
    intervals: list[tuple[float, float]], steps: Sequence[tuple[float, float]] = ()
) -> dict[str, Any]:
    """What the device idles, by the profiler's `intervals` and by events around `steps` (see `profiled.Marks`), each (begin, end)
    in seconds of a clock of its own.

    The profiler judges, which sees more. One that is not let near the device, or was set up twice, may see nothing without a
    word: then events do. Raises NotRun where there is neither.
    """
    by_events = _between_steps(steps)
    if len(intervals) >= 2:
        return {**_between_kernels(intervals), **by_events, "judged_by": "the profiler's kernels"}
    if not by_events:
        raise NotRun("the profiler saw no work of the device: its idle time is not known")
    return {
        **by_events,
        "judged_by": "events around steps: the profiler saw no work of the device",
        "reached": by_events["idle_share_by_events"] < MOST_IDLE,
    }


def _between_kernels(intervals: list[tuple[float, float]]) -> dict[str, Any]:
    """Shares of the time between the first and the last interval in which none runs."""
    begin, reached = intervals[0]
    gaps = []
    for start, end in intervals[1:]:
        if start > reached:
            gaps.append(start - reached)
        reached = max(reached, end)
    span = reached - begin
    between = sum(gap for gap in gaps if gap >= GAP)
    return {
        "profiled_seconds": span,
        "profiled_kernels": len(intervals),
        "idle_share": sum(gaps) / span,
        "idle_share_between_steps": between / span,
        "longest_gap_us": 1e6 * max(gaps, default=0.0),
        "reached": between / span < MOST_IDLE,
    }


def _between_steps(steps: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The share of the time from the first to the last; nothing for fewer than two, which have none between them."""
    if len(steps) < 2:
        return {}
    # Events are half a microsecond exact, and a step seems to begin before the end of the one before it.
    gaps = [max(0.0, begin - end) for (_, end), (begin, _) in itertools.pairwise(steps)]
    return {
        "steps_by_events": len(steps),
        "idle_share_by_events": sum(gaps) / (steps[-1][1] - steps[0][0]),
        "longest_gap_by_events_us": 1e6 * max(gaps),
    }
