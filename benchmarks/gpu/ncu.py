"""The part `ncu`: what Nsight Compute counts of three kernels (`counted.py`), each launched once: bytes, time, and what its warps
wait for.

Clocks are left as they are. Nsight Compute empties the caches before each pass, so that bytes from memory are at least those of
the inputs: fewer mean that another launch was counted.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.command import run, tool
from benchmarks.gpu.part import LIMIT, Failed, Found, NotRun, Options

TOOL = "ncu"
KERNELS = ("_split_kernel", "_extend_kernel", "_one_row_kernel")
READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
PERCENTS = {
    "memory_percent": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "compute_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Figures -> counters of the basic set."""
OPTIONS = (
    "--clock-control", "none", "--set", "basic", "--section", "WarpStateStats", "--metrics", f"{READ},{WRITTEN},{TIME}",
    "--kernel-name", f"regex:^({'|'.join(KERNELS)})$", "--page", "raw", "--csv", "--print-units", "base",
)  # fmt: skip
PROGRAM = ("-m", "benchmarks.gpu.counted")
LEAST_READ = 0.8
"""Share of the inputs' bytes that are read from memory at least; some lie in caches even so."""
MOST_BYTES_PER_S = 5.5e12
"""More than any device has that this is for."""
_STALL = re.compile(r"^smsp__average_warps_issue_stalled_(?P<why>\w+?)_per_issue_active\.ratio$")
_MOST_STALLS = 5
_UNITS = {
    "": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
    "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0,
}  # fmt: skip
"""To bytes and seconds; all others are as they are."""
_ERROR = re.compile(r"^==ERROR== (?P<why>.*)$", re.MULTILINE)
_REFUSED = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded", "not supported on", "Failed to initialize the profiler")
"""Words of errors by which the machine, not this code, is what does not do."""
_NONE = "No kernels were profiled"
_DEFAULT_S, _MARGIN_S = 60.0, 3.0

Counters = dict[str, float]
"""By name, in bytes, seconds, or the counter's own unit."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that was counted."""

    kernel: str
    counters: Counters


def read(text: str) -> list[Launch]:
    """The launches in Nsight Compute's CSV, of either form: a line for each launch with a line of units below the names, or a
    line for each counter. Lines before the names, and values that are no numbers, are passed over."""
    lines = text.splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith('"ID","')), None)
    if begin is None:
        return []
    names, *rows = csv.reader(line for line in lines[begin:] if line.startswith('"'))
    if "Metric Name" in names:
        return _by_counter(names, rows)
    kernel = names.index("Kernel Name")
    units = rows[0] if rows else []
    return [
        Launch(_plain(row[kernel]), _counters(zip(names, units, row, strict=False)))
        for row in rows[1:]
        if len(row) > kernel
    ]


def _by_counter(names: list[str], rows: Iterable[list[str]]) -> list[Launch]:
    at = {
        name: names.index(name)
        for name in ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
    }
    found: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    for row in rows:
        if len(row) > max(at.values()):
            _, counters = found.setdefault(row[at["ID"]], (row[at["Kernel Name"]], []))
            counters.append((row[at["Metric Name"]], row[at["Metric Unit"]], row[at["Metric Value"]]))
    return [Launch(_plain(kernel), _counters(counters)) for kernel, counters in found.values()]


def _counters(columns: Iterable[tuple[str, str, str]]) -> Counters:
    found: Counters = {}
    for name, unit, value in columns:
        try:
            found[name] = float(value.replace(",", "")) * _UNITS.get(unit, 1.0)
        except ValueError:
            continue
    return found


def _plain(kernel: str) -> str:
    """A kernel's name without its arguments."""
    return kernel.partition("(")[0].strip()


def figures(launch: Launch) -> dict[str, Any]:
    """Of a launch: bytes read and written, microseconds, shares in percent, and the reasons for which its warps wait most, in
    cycles for each instruction that is issued. KeyError for a counter that is missing."""
    counters = launch.counters
    stalls = {
        found["why"]: value for name, value in counters.items() if (found := _STALL.match(name)) is not None
    }
    most = sorted(stalls, key=lambda why: -stalls[why])[:_MOST_STALLS]
    return {
        "read_bytes": counters[READ],
        "written_bytes": counters[WRITTEN],
        "us": 1e6 * counters[TIME],
        "gb_per_s": 1e-9 * (counters[READ] + counters[WRITTEN]) / counters[TIME],
        **{name: counters[one] for name, one in PERCENTS.items() if one in counters},
        "stalls": {why: stalls[why] for why in most},
    }


def faults(found: Mapping[str, Mapping[str, Any]], needed: Mapping[str, int]) -> list[str]:
    """What does not add up. `needed`: bytes of each kernel's inputs."""
    wrong = [f"{kernel}: not counted" for kernel in KERNELS if kernel not in found]
    for kernel, row in found.items():
        share = row["read_bytes"] / needed[kernel]
        if share < LEAST_READ:
            wrong.append(f"{kernel}: {100 * share:.0f}% of its inputs' bytes were read")
        if row["gb_per_s"] > 1e-9 * MOST_BYTES_PER_S:
            wrong.append(f"{kernel}: {row['gb_per_s']:.0f} GB/s")
        if not row["stalls"]:
            wrong.append(f"{kernel}: no reasons why warps wait")
    return wrong


def count(options: Options, found: Found) -> None:
    """See the module. NotRun where the tool is absent or may not read counters."""
    began = time.monotonic()
    limit = float(os.environ.get(LIMIT, "0")) or _DEFAULT_S
    program = [sys.executable, *PROGRAM, *(["--tiny"] if options.tiny else [])]
    plain = run(program, limit - _MARGIN_S)
    needed = {row["kernel"]: row["read"] for row in _rows(plain.output)}
    found({"needed_bytes": needed, "uncounted_seconds": plain.seconds})
    if plain.code != 0 or set(needed) != set(KERNELS):
        raise Failed(f"the launches alone: exit code {plain.code}; {_last(plain.output)}")
    if options.device == "cpu":
        raise NotRun(f"{TOOL} counts on CUDA devices; {len(needed)} launches ran, interpreted")
    path = tool(TOOL)
    if path is None:
        raise NotRun(f"{TOOL} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "counters.csv"
        left = limit - (time.monotonic() - began) - _MARGIN_S
        done = run([path, *OPTIONS, "--log-file", str(table), *program], left)
        text = done.output + (table.read_text("utf-8", "replace") if table.exists() else "")
    print(text, flush=True)
    launches = read(text)
    counted = {}
    for launch in launches:
        try:
            counted[launch.kernel] = figures(launch)
        except KeyError as missing:
            raise Failed(f"{launch.kernel}: no counter {missing}") from None
    found({"counted": counted})
    if not launches:
        raise _no_launches(text, done.code, done.seconds)
    wrong = faults(counted, needed)
    if len(launches) != len(KERNELS):
        wrong.append(f"{len(launches)} launches were counted, not {len(KERNELS)}")
    if wrong:
        raise Failed("; ".join(wrong))


def _no_launches(text: str, code: int | None, seconds: float) -> Exception:
    """Why nothing was counted."""
    errors = [one["why"] for one in _ERROR.finditer(text)]
    refused = next((why for why in errors if any(word in why for word in _REFUSED)), None)
    if refused is not None:
        return NotRun(f"{TOOL}: {refused}")
    if code is None:
        return Failed(f"{TOOL}: not done within {seconds:.0f} s")
    if errors:
        return Failed(f"{TOOL}: {errors[0]}")
    return Failed(f"{TOOL}: {_NONE.lower() if _NONE in text else f'exit code {code}; {_last(text)}'}")


def _rows(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"kernel"')]


def _last(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:300] if lines else "no output"
