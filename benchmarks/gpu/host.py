"""The part `turnaround`: `benchmarks.turnaround` on this machine's processors, whose speed decides how short a step may be.

The device is a fake on the CPU: a GPU that is there is not used, and no step is computed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from benchmarks.gpu.part import Failed, Found, Options

ROWS = (1, 256)
STEP_MS = 4.0
"""Longer than most turnarounds: else times contain waiting for the device."""
_TINY_STEP_MS = 24.0
"""Tests run beside others, which make turnarounds longer."""
LEAST_STEPS = 100
"""Turnarounds of a round: of 224 steps some are left out at either end."""
MOST_LATE = 0.2
"""Share of turnarounds that may be longer than a step."""


def run(options: Options, found: Found) -> None:
    """Microseconds from a result that was seen to the launch of the second-next step, by number of rows."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from benchmarks.host_step import SETTINGS
    from benchmarks.turnaround import measure

    step_ms = _TINY_STEP_MS if options.tiny else STEP_MS
    measured: dict[str, Mapping[str, float]] = {}
    for rows in ROWS[:1] if options.tiny else ROWS:
        measured[str(rows)] = asyncio.run(measure(rows, SETTINGS["plain"], 1, step_ms, 1))[2]
        found({"turnaround_us": measured, "step_ms": step_ms})
    wrong = [text for rows, row in measured.items() if (text := fault(rows, row)) is not None]
    if wrong:
        raise Failed("; ".join(wrong))


def fault(rows: str, row: Mapping[str, float]) -> str | None:
    """Why a measurement is none, None if it is one."""
    if row["steps"] < LEAST_STEPS:
        return f"{rows} rows: {row['steps']:.0f} turnarounds, fewer than {LEAST_STEPS}"
    if row["late"] > MOST_LATE:
        return f"{rows} rows: {row['late']:.0%} of the turnarounds are longer than a step, so they contain waiting"
    return None
