"""A benchmark in two checkouts in turn, A B A B: how much slower is B, and how much of that is noise?

    python -m benchmarks.two_trees host --base DIR [--groups 3] [--rounds 6]
    python -m benchmarks.two_trees attention --base DIR [--only "decode 1"] [--memory file] [--kv int8] [--rounds 4]

A is the checkout in DIR, B this one; both run with this Python, each as a process of its own for every turn, and A once more
after each pair: what A differs from itself is the noise, in the same minutes. A figure is the median of a turn; a ratio is
between medians over turns. Fails (exit code 1) if a ratio is beyond its limit and beyond the noise of its row.

host        schedule + encode + decode + commit at 256 sequences, by this checkout's benchmarks.scheduler over the engine of each:
            one group of KV in A, `--groups` in B; at most 10% more in the median step and in the mean one
attention   the CPU kernel (benchmarks.attention), by shape: at most 2% more; 8% for one stream at 1,024 tokens and more, where a
            memory file's small pages show
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attention import cpu_name
from tools.neutral_paths import ROOT, neutral

SEQUENCES = 256
HOST_LIMIT, LIMIT, DEEP_LIMIT = 1.10, 1.02, 1.08
_DEEP = ("decode 1 x 1024", "decode 1 x 4096")

Figures = Mapping[str, float]
"""By row, the lower the better."""


@dataclass
class Row:
    """A figure of each turn: of A, of B, and of A once more."""

    a: list[float] = field(default_factory=list)
    b: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """B over all of A."""
        return statistics.median(self.b) / statistics.median([*self.a, *self.again])

    @property
    def noise(self) -> float:
        """A over A, at least 1."""
        ratio = statistics.median(self.again) / statistics.median(self.a)
        return max(ratio, 1 / ratio)

    def verdict(self, limit: float) -> str:
        """ "ok", "noise" where the ratio is beyond the limit by no more than A differs from itself, or "slow"."""
        if self.ratio <= limit:
            return "ok"
        return "noise" if self.ratio <= limit * self.noise else "slow"


def limit_of(name: str) -> float:
    """The largest ratio that a row may have."""
    return HOST_LIMIT if name.startswith("host") else DEEP_LIMIT if name in _DEEP else LIMIT


def host(tree: Path, groups: int) -> Figures:
    """Microseconds of a step. Raises subprocess.CalledProcessError if the tree cannot keep so many groups."""
    program = str(ROOT / "benchmarks/scheduler.py")
    words = ["-P", program, "--sizes", str(SEQUENCES), "--rounds", "6", "--groups", str(groups)]
    row = _run(tree, words)["microseconds"][str(SEQUENCES)]
    return {"host": row["total"], "host, mean": row["mean"]}


def attention(tree: Path, only: str, memory: str, kv: str) -> Figures:
    """Milliseconds of each shape. Raises subprocess.CalledProcessError if the tree's KV cannot lie in a file."""
    words = [
        "-m",
        "benchmarks.attention",
        "--ours",
        "--rounds",
        "3",
        "--only",
        only,
        "--memory",
        memory,
        "--kv",
        kv,
    ]
    found = _run(tree, words)["results"]
    return {name: statistics.median(one["cohort_ms"]) for name, one in found.items()}


def _run(tree: Path, words: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """The record that a program of a tree writes."""
    paths = f"{tree}{os.pathsep}{tree / 'tools/editable'}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        command = [sys.executable, *words, "--json", str(file)]
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, dict[str, dict[str, float]]] = json.loads(file.read_text())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("host", "attention"))
    parser.add_argument(
        "--base", type=Path, required=True, metavar="DIR", help="the checkout to compare with"
    )
    parser.add_argument("--rounds", type=int, default=4, help="turns of each [4]")
    parser.add_argument("--groups", type=int, default=3, help="of KV in B [3]")
    parser.add_argument("--only", default="", help="shapes with these words")
    parser.add_argument("--memory", choices=("own", "file"), default="own", help="of KV in B")
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16", help="the dtype of KV")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    base = given.base.resolve()

    def turn(new: bool) -> Figures:
        tree = ROOT if new else base
        if given.what == "host":
            return host(tree, given.groups if new else 1)
        return attention(tree, given.only, given.memory if new else "own", given.kv)

    rows: dict[str, Row] = {}
    load = os.getloadavg()[0]
    for _ in range(given.rounds):
        for side, new in (("a", False), ("b", True), ("again", False)):
            for name, value in turn(new).items():
                getattr(rows.setdefault(name, Row()), side).append(value)
    if not rows:
        parser.error(f"no shape has {given.only!r} in its name")
    slow = show(rows)
    if given.json:
        about = {
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "load_before": load,
            "arguments": vars(given),
        }
        table = {name: {**vars(row), "ratio": row.ratio, "noise": row.noise} for name, row in rows.items()}
        given.json.write_text(json.dumps(neutral({**about, "rows": table}), indent=1, default=str) + "\n")
    return 1 if slow else 0


def show(rows: Mapping[str, Row]) -> list[str]:
    """Print the table; the names of rows that are slower than they may be."""
    print("| | A | B | B / A | A / A | at most | |\n|---|---|---|---|---|---|---|")
    slow = []
    for name, row in rows.items():
        limit = limit_of(name)
        a, b, verdict = statistics.median([*row.a, *row.again]), statistics.median(row.b), row.verdict(limit)
        print(f"| {name} | {a:.2f} | {b:.2f} | {row.ratio:.3f} | {row.noise:.3f} | {limit:.2f} | {verdict} |")
        slow += [name] if verdict == "slow" else []
    return slow


if __name__ == "__main__":
    sys.exit(main())
