"""The part `sanitizer`: twelve launches (`sanitized.py`) under compute-sanitizer's memcheck and racecheck.

torch's own cache of memory is off, so that each tensor is an allocation and an access behind it is seen. The launches run once
unwatched first, which compiles them; then both tools run beside each other.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks.gpu.command import Done, run, tool
from benchmarks.gpu.part import LIMIT, Failed, Found, NotRun, Options

TOOL = "compute-sanitizer"
CHECKS: dict[str, tuple[str, ...]] = {
    # Calls of the driver that fail are not errors: torch and Triton ask for functions that a driver may lack.
    "memcheck": ("--report-api-errors", "no", "--print-limit", "20"),
    "racecheck": ("--print-limit", "20"),
}
"""Options of each tool."""
LAUNCHES = 12
MOST_ERROR = 0.03
"""Relative, of a result in bf16."""
PROGRAM = ("-m", "tests.gpu.sanitized")
_DEFAULT_S, _MARGIN_S = 60.0, 3.0
_MOST_NAMED = 5

_SUMMARIES = {
    "memcheck": re.compile(r"ERROR SUMMARY: (?P<errors>\d+) errors?"),
    "racecheck": re.compile(
        r"RACECHECK SUMMARY: \d+ hazards? displayed \((?P<errors>\d+) errors?, (?P<warnings>\d+) warnings?\)"
    ),
}
_FINDING = re.compile(
    r"^=+ (?P<what>(?:Invalid|Misaligned|Error: Race|Warning: Race|Error: Potential|Program hit|Barrier).*)$"
)
_PLACE = re.compile(r"^=+ +at (?P<place>\S.*)$")
_REFUSED = re.compile(
    r"^=+ (?:Error: )?(?P<why>.*(?:Device not supported|Target application terminated before first instrumented"
    r"|Unable to find injection library|Internal Sanitizer Error|Error setting up the environment).*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Watched:
    """What a tool said. `errors` and `warnings` by its summary, None if there is none; `launches` that ended, with
    `wrong` results; `first` findings with their kernels; `refused`: why the tool did not watch."""

    launches: int
    wrong: list[str]
    errors: int | None
    warnings: int
    first: list[str]
    refused: str | None


def read(check: str, output: str) -> Watched:
    """What the output of a tool, and of what it watched, says."""
    launches, wrong = _launches(output)
    summary = list(_SUMMARIES[check].finditer(output))
    counts = {name: int(value) for one in summary[-1:] for name, value in one.groupdict().items()}
    refusal = _REFUSED.search(output)
    return Watched(
        launches, wrong, counts.get("errors"), counts.get("warnings", 0), _findings(output),
        refusal["why"].strip() if refusal else None,
    )  # fmt: skip


def _launches(output: str) -> tuple[int, list[str]]:
    count, wrong = 0, []
    for line in output.splitlines():
        if line.startswith('{"launch"'):
            count += 1
            row = json.loads(line)
            if not row["error"] <= MOST_ERROR:
                wrong.append(f"{row['launch']}: {row['error']:.3g}")
    return count, wrong


def _findings(output: str) -> list[str]:
    found: list[str] = []
    for line in output.splitlines():
        place = _PLACE.match(line)
        if (finding := _FINDING.match(line)) is not None:
            found.append(finding["what"].strip())
        elif place is not None and found and " at " not in found[-1]:
            found[-1] += f" at {place['place'].strip()}"
    return found[:_MOST_NAMED]


def fault(check: str, done: Done, watched: Watched) -> str | None:
    """Why a check has not passed, None if it has."""
    if done.code is None:
        return (
            f"{check}: not done within {done.seconds:.0f} s, after {watched.launches} of {LAUNCHES} launches"
        )
    if watched.errors:
        return f"{check}: {watched.errors} errors: {'; '.join(watched.first) or 'none is named'}"
    if watched.wrong:
        return f"{check}: wrong results: {'; '.join(watched.wrong)}"
    if watched.launches != LAUNCHES:
        return (
            f"{check}: {watched.launches} of {LAUNCHES} launches, exit code {done.code}; {_last(done.output)}"
        )
    if watched.errors is None:
        return f"{check}: no summary; {_last(done.output)}"
    return f"{check}: exit code {done.code}; {_last(done.output)}" if done.code else None


def _last(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:300] if lines else "no output"


def watch(options: Options, found: Found) -> None:
    """Failed names errors, wrong results and launches that are missing; NotRun a tool that is, or refuses the device."""
    began = time.monotonic()
    limit = float(os.environ.get(LIMIT, "0")) or _DEFAULT_S
    program = (sys.executable, *PROGRAM)
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    plain = run([*program, "--compile"], limit - _MARGIN_S, environment)
    launches, wrong = _launches(plain.output)
    found({"launches": launches, "unwatched_seconds": plain.seconds})
    if plain.code != 0 or wrong or launches != LAUNCHES:
        raise Failed(
            f"unwatched: {launches} of {LAUNCHES} launches, {'; '.join(wrong) or _last(plain.output)}"
        )
    if options.device == "cpu":
        raise NotRun(f"{TOOL} watches CUDA devices; {launches} launches are right, interpreted")
    path = tool(TOOL)
    if path is None:
        raise NotRun(f"{TOOL} is not installed")
    left = limit - (time.monotonic() - began) - _MARGIN_S
    done = _side_by_side([path], program, left, environment)
    watched = {name: read(name, one.output) for name, one in done.items()}
    for name, one in watched.items():
        found({name: asdict(one) | {"seconds": done[name].seconds}})
        print(f"{name}\n{done[name].output}", flush=True)
    refused = [one.refused for one in watched.values() if one.refused is not None]
    if len(refused) == len(watched):
        raise NotRun(f"{TOOL}: {refused[0]}")
    faults = [text for name, one in watched.items() if (text := fault(name, done[name], one)) is not None]
    if faults:
        raise Failed("; ".join(faults))


def _side_by_side(
    path: Sequence[str], program: Sequence[str], seconds: float, environment: Mapping[str, str]
) -> dict[str, Done]:
    """Each tool's run, beside each other."""

    def one(name: str) -> Done:
        return run([*path, "--tool", name, *CHECKS[name], *program], seconds, environment)

    with ThreadPoolExecutor(len(CHECKS)) as pool:
        return dict(zip(CHECKS, pool.map(one, CHECKS), strict=True))
