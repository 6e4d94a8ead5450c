"""What early launches (`executors/kernels/triton/early.py`) bring to a decode step: its graph replayed alone, with them and
without, one executor after the other in this process; then the time of a step by kernel.

`served-0.6b` measures the step as it is served; this part is for knowing why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import served
from benchmarks.gpu.engine import random_prompts
from benchmarks.gpu.part import Found, Options
from benchmarks.gpu.serving import Crowd, until
from benchmarks.gpu.steps import device_intervals, kernels_of_a_step
from executors.kernels.triton import early

ROWS, KEYS = (1, 2, 4, 8, 16, 64, 256), 512
PROFILED = (1, 8, 64)
_REPLAYS, _PATIENCE = 100, 8.0
KV_BYTES, TINY_KV_BYTES = 40 << 30, 64 << 20


def run(options: Options, found: Found) -> None:
    """Milliseconds by rows, both ways; kernels of a step, with early launches."""
    # The second executor finds memory whatever the first one has not given back yet.
    options = replace(
        options, mode="inline", kv_cache_memory_bytes=TINY_KV_BYTES if options.tiny else KV_BYTES
    )
    for name, way in (
        ("one after the other", early.one_after_the_other()),
        ("early", contextlib.nullcontext()),
    ):
        figures: dict[str, Any] = {}

        def found_so(more: dict[str, Any], name: str = name, figures: dict[str, Any] = figures) -> None:
            figures.update(more)
            found({name: figures})

        with way, asyncio.Runner(loop_factory=served.event_loop()) as runner:
            runner.run(_run(options, found_so, name == "early"))


async def _run(options: Options, found: Found, with_kernels: bool) -> None:
    async with served.started(options, found) as (stages, _):
        await stages.run("steps", 30.0, lambda stages: _steps(stages, with_kernels))
        await stages.run("single", 8.0, served.single)
        stages.end()


async def _steps(stages: served.Stages, with_kernels: bool) -> None:
    if not stages.launches:
        stages.found({"device_ms_by_rows": "not on a CPU: the host computes its steps"})
        return
    by_rows: dict[int, float] = {}
    async with stages.engine(prefix_caching=False) as core:
        for rows in ROWS:
            crowd = Crowd(core)
            crowd.ask(random_prompts(rows, KEYS, rows, stages.shape), [2000] * rows)
            reading = asyncio.create_task(crowd.read())
            await until(lambda crowd=crowd: min(crowd.counts) >= 4, _PATIENCE)  # type: ignore[misc]
            by_rows[rows] = 1e3 * await stages.asking.replay(rows, _REPLAYS, _PATIENCE)
            stages.found({"device_ms_by_rows": dict(by_rows)})
            if with_kernels and rows in PROFILED:
                events = await asyncio.to_thread(profiled, 0.25)
                spans = device_intervals(events)
                stages.found({f"step of {rows} rows": kernels_of_a_step(events) | gaps(spans)})
            crowd.leave()
            reading.cancel()
            await until(lambda: core.stats().running == 0, _PATIENCE)


def profiled(seconds: float) -> list[dict[str, Any]]:
    """Events of the device in so many seconds of this process, as in a Chrome trace."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        time.sleep(seconds)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["traceEvents"]
    return events


def gaps(spans: list[tuple[float, float]]) -> dict[str, float]:
    """Share of the time in which nothing runs, and in which more than one kernel does."""
    busy = overlap = 0.0
    reached = spans[0][0] if spans else 0.0
    for begin, end in spans:
        overlap += max(0.0, min(end, reached) - begin)
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    whole = reached - spans[0][0] if spans else 0.0
    return {"idle_share": 1 - busy / whole, "overlap_share": overlap / whole} if whole else {}
