"""Programs that watch another one: where they are installed, and a run of one that ends when its time does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.part import ROOT, end_with_parent

PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
"""Folders beside those of PATH; of several that match, the last one by name."""
_STUCK_S = 5.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended: `code` None if its time was over. `output`: stdout and stderr together."""

    code: int | None
    output: str
    seconds: float


def tool(name: str, places: Sequence[str] = PLACES) -> str | None:
    """The path of a program, None where it is not installed."""
    if found := shutil.which(name):
        return found
    there = [path for place in places for path in sorted(Path("/").glob(f"{place.lstrip('/')}/{name}"))]
    return next((str(path) for path in reversed(there) if os.access(path, os.X_OK) and path.is_file()), None)


def run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Done:
    """Run a program for at most so many seconds, then kill it and what it started. OSError if it cannot be started."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, preexec_fn=end_with_parent,
        )  # fmt: skip
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(max(0.1, seconds))
        if code is None:
            # Not by a group of its own: the call that ends this part ends the part's group.
            for pid in (process.pid, *descendants(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # stuck in a driver, it ends when the driver lets it
            process.wait(_STUCK_S)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Done(code, text, time.monotonic() - began)


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
