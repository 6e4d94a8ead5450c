"""What full-size runs have measured, printed and kept in benchmarks/results/chaos.json, a row for each test."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"


def record(
    test: str,
    *,
    count: int,
    failed: int,
    lost_or_repeated: int,
    restarts: int,
    longest_pause_s: float | None = None,
    load_s: float | None = None,
    **more: float,
) -> None:
    """Print a row and put it in the place of this test's last one.

    - `count`: requests; `failed`: those with an error; `lost_or_repeated`: tokens other than undisturbed, in all.
    - `longest_pause_s`: between two events of a stream. `load_s`: from the start of an executor until it is ready.
    """
    row = {
        "count": count,
        "failed": failed,
        "lost_or_repeated_tokens": lost_or_repeated,
        "longest_pause_s": longest_pause_s,
        "restarts": restarts,
        "load_s": load_s,
        **more,
    }
    row = {name: round(value, 3) for name, value in row.items() if value is not None}
    print(f"\n{test}: " + ", ".join(f"{name} {value:g}" for name, value in row.items()))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tests": {}}
    kept["cpu"], kept["cores"] = platform.machine(), len(os.sched_getaffinity(0))
    kept["tests"][test] = row
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
