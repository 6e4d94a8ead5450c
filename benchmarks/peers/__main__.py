"""Cohort and vLLM on this machine's CPUs, in turn, under named workloads.

    python -m benchmarks.peers [--workloads single,burst,steady,wide,prefix,tiny] [--rounds 2]
    python -m benchmarks.peers --quantization int8    # Cohort with and without it
    python -m benchmarks.peers --peer cohort          # Cohort against itself: how much of a ratio is noise

In each round one server is started, measured under all workloads and stopped, and then the other: A B A B. Only one is up
at a time, for an idle one takes CPU, too. The first run of a workload after a start is thrown away. vLLM is installed on
first use (benchmarks/peers/install.py); it takes a minute or two to start, twice a round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import compare, limits, models, servers
from benchmarks.peers.servers import Side
from benchmarks.shapes import SHAPES
from server.commands.bench.report import client_facts
from tools.neutral_paths import neutral

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
SMALL = "qwen3-tiny"
SCHEMA = 1


def main() -> None:
    """Run all rounds; results are written after each."""
    asked = _arguments()
    ours, theirs = sides = _sides(asked)
    values: compare.Values = {}
    reports: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": {
            "workloads": asked.workloads, "rounds": asked.rounds, "repeat": asked.repeat, "shape": asked.shape,
            "sides": {side.name: {"command": list(side.command), "env": _told(side)} for side in sides},
        },
        "client": client_facts(),
        "limits": limits.measured(),
    }  # fmt: skip
    print(json.dumps(report["limits"]), flush=True)
    for number in range(asked.rounds):
        for side in sides:
            reports += _round(side, asked, number, values)
        report["limits"] = limits.higher(report["limits"], limits.measured())
        found = compare.results(values, [ours.name, theirs.name], asked.shape, SMALL, report["limits"])
        report |= {"rounds_done": number + 1, "results": found, "runs": reports}
        asked.json.write_text(json.dumps(neutral(report), indent=1, allow_nan=False) + "\n")
        print(
            f"after round {number + 1} of {asked.rounds}:\n{compare.table(found, [ours.name, theirs.name])}",
            flush=True,
        )
    print(f"written to {asked.json}")


def _round(
    side: Side, asked: argparse.Namespace, number: int, values: compare.Values
) -> list[dict[str, Any]]:
    """One side, under all workloads: a start for each model that they need. Returns the reports of `cohort bench`."""
    reports: list[dict[str, Any]] = []
    for shape in (asked.shape, SMALL):
        names = [name for name in asked.workloads if compare.COMPARED[name].small_model == (shape == SMALL)]
        if asked.shape == SMALL:  # one model for all
            names = asked.workloads
        if not names or any(report["shape"] == shape for report in reports):
            continue
        model = models.ensure(shape)
        log = _log(side)
        print(f"round {number + 1}: {side.name}, {shape}: {', '.join(names)}", flush=True)
        with servers.serving(side, model, log) as (url, seconds):
            if shape == asked.shape:
                compare.take_start(values, side.name, seconds)
            report = _bench(url, names, asked.repeat, number)
        compare.take(values, side.name, report)
        reports.append({"side": side.name, "round": number, "shape": shape, "start_s": seconds, **report})
    return reports


def _bench(url: str, names: list[str], repeat: int, seed: int) -> dict[str, Any]:
    """The report of `cohort bench`, in a process of its own: what else lives here would show in its timing.

    Raises RuntimeError where nothing could be measured. Both sides get the same prompts, by the seed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "server.cli", "bench", url, "--model", servers.MODEL_NAME, "--workload", ",".join(names),
            "--repeat", str(repeat), "--seed", str(seed), "--json", str(file),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not file.exists():
            raise RuntimeError(done.stderr.strip() or f"cohort bench ended with {done.returncode}")
        report: dict[str, Any] = json.loads(file.read_text())
    for entry in report["workloads"]:
        failed = sum(run["failed"] for run in entry["runs"])
        if failed:
            raise RuntimeError(
                f"{entry['workload']['name']}: {failed} requests failed: {entry['runs'][0]['first_error']}"
            )
    return report


def _sides(asked: argparse.Namespace) -> tuple[Side, Side]:
    """The two that are compared. The first is the one whose advantage is told."""
    flags = shlex.split(asked.flags)
    if asked.quantization:
        ours = servers.cohort(f"cohort-{asked.quantization}", "--quantization", asked.quantization, *flags)
        return ours, servers.cohort("cohort", *flags)
    if asked.peer == "cohort":
        return servers.cohort("cohort", *flags), servers.cohort("cohort-again")
    return servers.cohort("cohort", *flags), servers.vllm()


def _told(side: Side) -> dict[str, str]:
    """Its variables; PATH would tell more about whoever runs this than about the server."""
    return {name: value for name, value in side.env.items() if name != "PATH"}


def _log(side: Side) -> Path:
    folder = ROOT / ".reports/peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{side.name}.log"


def _arguments() -> argparse.Namespace:
    known = [name for name in compare.COMPARED if name != compare.START]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", default=",".join(known), help="with commas [%(default)s]")
    parser.add_argument("--rounds", type=int, default=2, help="times each server is started per model [2]")
    parser.add_argument("--repeat", type=int, default=4, help="runs per workload, the first thrown away [4]")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES, help="the large model [%(default)s]")
    parser.add_argument("--peer", default="vllm", choices=("vllm", "cohort"))
    parser.add_argument("--quantization", help="compare Cohort with this and without it")
    parser.add_argument("--flags", default="", help="more flags of `cohort serve`, as one word")
    parser.add_argument("--json", type=Path, help="[benchmarks/results/peers.json]")
    asked = parser.parse_args()
    asked.workloads = [name.strip() for name in asked.workloads.split(",") if name.strip()]
    if unknown := sorted(set(asked.workloads) - set(known)):
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    if asked.rounds < 1 or asked.repeat < 1:
        parser.error("--rounds and --repeat: at least 1")
    if asked.json is None:
        name = f"peers-{asked.quantization}" if asked.quantization else "peers"
        asked.json = RESULTS / (
            f"{name}.json" if asked.peer == "vllm" or asked.quantization else "peers-noise.json"
        )
    return asked


if __name__ == "__main__":
    main()
