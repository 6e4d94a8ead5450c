"""The report of `cohort bench`, as JSON.

    schema      1; a number that changes when a field changes its meaning
    when        start, UTC
    config      url, model, repeat, warm_up (runs thrown away), seed, prompts (how they were made)
    client      this machine and installation: cohort's version, commit and whether files differ from it (None outside a
                checkout), python, packages, hardware (as `cohort doctor` tells it)
    server      what it says of itself: version, and model (Cohort's own only)
    workloads   for each: workload (its numbers), warm_up and runs (all figures of each run, see figures.py), and
                summary: median, min and max over the runs

Rates are per second, times in milliseconds where the name says ms; what there is nothing to tell of is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clients.bench.figures import summary
from clients.bench.workloads import Workload

SCHEMA = 1
_PACKAGES = ("uvloop", "httptools", "msgspec", "torch", "numpy")


def of_workload(
    workload: Workload, warm_up: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The entry of one workload."""
    return {
        "workload": asdict(workload),
        "warm_up": list(warm_up),
        "runs": list(runs),
        "summary": summary(runs),
    }


def client_facts() -> dict[str, Any]:
    """This installation and this machine."""
    import platform
    from importlib import metadata

    from server import __version__
    from server.system.executor_tool import ToolError, ask

    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    try:
        hardware = ask("box", {})
    except ToolError as error:
        hardware = {"error": str(error)}
    return {
        "cohort": __version__,
        **commit(),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": packages,
        "hardware": hardware,
    }


def commit() -> dict[str, Any]:
    """The commit of the checkout that this code runs from; None for an installed wheel, which may lie inside another project's
    checkout."""
    import subprocess
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {"commit": None, "modified": None}

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "modified": None if status is None else bool(status)}
