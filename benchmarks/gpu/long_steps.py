"""What a step of prompts takes that no graph has room for: its time on the device by kernel, what the device idles in it, how
long calls of the driver take the host, and in which lines the host's thread is meanwhile.

`served-0.6b` measures such steps as they are served; this part is for knowing why.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu import served
from benchmarks.gpu.early_launches import KV_BYTES, TINY_KV_BYTES, gaps, profiled
from benchmarks.gpu.engine import random_prompts
from benchmarks.gpu.part import Found, Options
from benchmarks.gpu.steps import device_intervals, kernels_of_a_step

STEPS = ((16, 128), (32, 128), (1, 4096), (64, 128), (1, 8192))
"""Prompts and their tokens: the first has a graph, so the others are seen beside it."""
_TINY_STEPS = ((2, 8), (4, 8))
_ROUNDS, _PATIENCE = 6, 8.0
_COMPUTING = "/executors/llm/step/"
"""In the path of a file whose functions compute a step, on a device: launch it."""
_CALLS = frozenset(("cuda_runtime", "cuda_driver"))
_MOST = 12


def run(options: Options, found: Found) -> None:
    """Figures by prompts; see the module."""
    options = replace(
        options, mode="inline", kv_cache_memory_bytes=TINY_KV_BYTES if options.tiny else KV_BYTES
    )
    with asyncio.Runner(loop_factory=served.event_loop()) as runner:
        runner.run(_run(options, found))


async def _run(options: Options, found: Found) -> None:
    every: dict[str, Any] = {}

    def found_so(name: str, figures: dict[str, Any]) -> None:
        every[name] = figures
        found({"long_steps": every})

    async with served.started(options, found) as (stages, _):
        for count, length in _TINY_STEPS if options.tiny else STEPS:
            await stages.run(
                f"{count} x {length}",
                10.0,
                lambda stages, count=count, length=length: _look(stages, found_so, count, length),  # type: ignore[misc]
            )
        stages.end()


async def _look(
    stages: served.Stages, found: Callable[[str, dict[str, Any]], None], count: int, length: int
) -> None:
    name = f"{count} x {length}"
    async with stages.engine(prefix_caching=False) as core:

        async def ask(seed: int) -> float:
            return 1e3 * await served.first_tokens(core, random_prompts(count, length, seed, stages.shape))

        figures: dict[str, Any] = {"first_tokens_ms": [await ask(seed) for seed in range(_ROUNDS)]}
        found(name, figures)
        with whereabouts() as places:
            for seed in range(_ROUNDS):
                await ask(_ROUNDS + seed)
        figures |= {"host": shares(places)}
        found(name, figures)
        if not stages.launches:
            return
        watching = asyncio.create_task(stages.asking.steps(0.25, _PATIENCE))
        await asyncio.sleep(0.08)
        for seed in range(3):
            await ask(2 * _ROUNDS + seed)
        figures |= {"steps_ms": [round(1e3 * (end - begin), 3) for begin, end in await watching]}
        found(name, figures)
        profiling = asyncio.create_task(asyncio.to_thread(profiled, 0.4))
        await asyncio.sleep(0.1)
        while not profiling.done():
            await ask(3 * _ROUNDS)
        events = await profiling
        figures |= kernels_of_a_step(events) | gaps(device_intervals(events)) | {"calls": calls(events)}
        found(name, figures)


# -- the host's side -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def whereabouts(every: float = 5e-4) -> Iterator[Counter[str]]:
    """Looks every so many seconds at the threads that compute a step, and counts their places: the innermost function of the
    project and the innermost of all, as "file:function < file:function". Looking takes the interpreter's lock, which slows a busy
    thread down a little."""
    places: Counter[str] = Counter()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for frame in sys._current_frames().values():
                if (place := _place(frame)) is not None:
                    places[place] += 1
            time.sleep(every)

    looking = threading.Thread(target=look, name="whereabouts", daemon=True)
    looking.start()
    try:
        yield places
    finally:
        over.set()
        looking.join()


def _place(frame: FrameType) -> str | None:
    """None for a thread that computes nothing."""
    last, own = _named(frame), None
    outer: FrameType | None = frame
    while outer is not None:
        file = outer.f_code.co_filename
        if own is None and "/executors/" in file:
            own = _named(outer)
        if _COMPUTING in file:
            return last if own == last else f"{own} < {last}"
        outer = outer.f_back
    return None


def _named(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"


def shares(places: Counter[str]) -> dict[str, float]:
    """Of all looks, the places that were seen most."""
    total = sum(places.values())
    return {place: round(seen / total, 3) for place, seen in places.most_common(_MOST)}


def calls(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls of the runtime and the driver in a Chrome trace, those that took most time first: how many, milliseconds of all, and
    microseconds of the longest."""
    spent: defaultdict[str, list[float]] = defaultdict(list)
    for one in events:
        if one.get("ph") == "X" and one.get("cat") in _CALLS:
            spent[str(one.get("name", ""))].append(float(one["dur"]))
    most = sorted(spent.items(), key=lambda one: -sum(one[1]))[:_MOST]
    return [{"call": name, "count": len(us), "ms": sum(us) / 1e3, "longest_us": max(us)} for name, us in most]
