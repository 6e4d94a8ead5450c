"""Cohort and another server on this machine's CPUs, in turn, under named workloads.

    python -m benchmarks.peers [--workloads single,burst,steady,wide,prefix,tiny] [--rounds 2]    # beside vLLM
    python -m benchmarks.peers --peer llamacpp [--gguf smollm2,qwen3-0.6b-q4_k_m,FILE.gguf]       # the same GGUF file
    python -m benchmarks.peers --quantization int8    # Cohort with and without it
    python -m benchmarks.peers --peer cohort          # Cohort against itself: how much of a ratio is noise

In each round one server is started, measured under all workloads and stopped, and then the other: A B A B. Only one is up
at a time, for an idle one takes CPU, too. The first run of a workload after a start is thrown away. vLLM is installed and
llama.cpp built on first use (benchmarks/peers/install.py, llamacpp.py); vLLM takes a minute or two to start, twice a round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import compare, gguf_files, limits, llamacpp, models, roofline, servers
from benchmarks.peers.roofline import Cost
from benchmarks.peers.servers import Room, Side
from benchmarks.shapes import SHAPES
from executors.contract.errors import ConfigError
from executors.gguf.file import read_gguf
from server.commands.bench.report import client_facts
from server.commands.bench.workloads import WORKLOADS
from tools.neutral_paths import neutral

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
SMALL = "qwen3-tiny"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that both sides serve from the same files. `vocab_size`: what prompts are drawn from; None where each server
    tells it. `facts`: for the report."""

    name: str
    path: Path
    cost: Cost
    vocab_size: int | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server: for a model, in a room, and the workloads that it is measured under. `timed`: whether the
    seconds until it is ready are one of the figures."""

    subject: Subject
    room: Room
    workloads: list[str]
    timed: bool


def main() -> None:
    """Compare under each model that was asked for."""
    asked = _arguments()
    try:
        sides = _sides(asked)
        subjects = [_of_gguf(name) for name in asked.gguf] or [_of_shape(asked.shape)]
    except (RuntimeError, FileNotFoundError, ConfigError) as error:
        sys.exit(f"benchmarks.peers: {error}")
    for subject in subjects:
        _compare(asked, sides, subject, asked.json or RESULTS / f"{_report_name(asked, subject)}.json")


def _compare(asked: argparse.Namespace, sides: tuple[Side, Side], subject: Subject, file: Path) -> None:
    """Run all rounds; results are written after each."""
    names = [side.name for side in sides]
    starts = _starts(asked, subject)
    small = roofline.of_shape(SMALL)
    values: compare.Values = {}
    reports: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": {
            "workloads": asked.workloads, "rounds": asked.rounds, "repeat": asked.repeat, **subject.facts,
            "sides": {side.name: {"command": list(side.command), "env": _told(side)} for side in sides},
        },
        "client": client_facts(),
        "limits": limits.measured(),
    }  # fmt: skip
    if asked.peer == "llamacpp":
        report["config"]["peer"] = f"llama.cpp of llama-cpp-python {llamacpp.VERSION}"
    print(json.dumps(report["limits"]), flush=True)
    for number in range(asked.rounds):
        for side in sides:
            reports += _round(side, asked, number, starts, values)
        report["limits"] = limits.higher(report["limits"], limits.measured())
        found = compare.results(values, names, subject.cost, small, report["limits"])
        report |= {"rounds_done": number + 1, "results": found, "runs": reports}
        file.write_text(json.dumps(neutral(report), indent=1, allow_nan=False) + "\n")
        print(
            f"{subject.name}, after round {number + 1} of {asked.rounds}:\n{compare.table(found, names)}",
            flush=True,
        )
    print(f"written to {file}")


def _starts(asked: argparse.Namespace, subject: Subject) -> list[Start]:
    """A start for each model and room that the workloads need, with the asked one's first."""
    usual = servers.SLOTS if asked.gguf else servers.ROOM
    grouped: dict[tuple[bool, Room], list[str]] = {}
    for name in asked.workloads:
        small = compare.COMPARED[name].small_model and subject.name != SMALL
        room = usual if WORKLOADS[name].context <= usual.context else servers.DEEP
        grouped.setdefault((small, room), []).append(name)
    ordered = sorted(grouped, key=lambda group: (group[0], group[1] != usual))
    return [
        Start(_of_shape(SMALL) if small else subject, room, grouped[small, room], at == 0 and not small)
        for at, (small, room) in enumerate(ordered)
    ]


def _round(
    side: Side, asked: argparse.Namespace, number: int, starts: list[Start], values: compare.Values
) -> list[dict[str, Any]]:
    """One side, under all workloads. Returns the reports of `cohort bench`."""
    reports: list[dict[str, Any]] = []
    for start in starts:
        subject, log = start.subject, _log(side)
        print(f"round {number + 1}: {side.name}, {subject.name}: {', '.join(start.workloads)}", flush=True)
        with servers.serving(side, subject.path, log, start.room) as (url, seconds):
            if start.timed:
                compare.take_start(values, side.name, seconds)
            report = _bench(url, start.workloads, asked.repeat, number, subject.vocab_size)
        compare.take(values, side.name, report)
        reports.append(
            {
                "side": side.name, "round": number, "shape": subject.name, "start_s": seconds,
                "room": {"seqs": start.room.seqs, "context": start.room.context}, **report,
            }
        )  # fmt: skip
    return reports


def _bench(url: str, names: list[str], repeat: int, seed: int, vocab_size: int | None) -> dict[str, Any]:
    """The report of `cohort bench`, in a process of its own: what else lives here would show in its timing.

    Raises RuntimeError where nothing could be measured. Both sides get the same prompts, by the seed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "server.cli", "bench", url, "--model", servers.MODEL_NAME, "--workload", ",".join(names),
            "--repeat", str(repeat), "--seed", str(seed), "--json", str(file),
        ]  # fmt: skip
        if vocab_size is not None:
            command += ["--vocab-size", str(vocab_size)]
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
    # What a GGUF file holds decides about its own types.
    dtype = "auto" if asked.gguf else "bfloat16"
    ours = servers.cohort("cohort", *flags, dtype=dtype)
    match asked.peer:
        case "cohort":
            return ours, servers.cohort("cohort-again", dtype=dtype)
        case "llamacpp":
            return ours, servers.llama()
    return ours, servers.vllm()


def _of_shape(shape: str) -> Subject:
    return Subject(shape, models.ensure(shape), roofline.of_shape(shape), None, {"shape": shape})


def _of_gguf(name: str) -> Subject:
    """Raises FileNotFoundError, ConfigError, and RuntimeError where the file cannot be made."""
    path = gguf_files.ensure(name)
    file = read_gguf(path, arrays=False)
    types: Counter[str] = Counter()
    for tensor in file.tensors.values():
        types[tensor.type] += tensor.num_bytes
    facts = {"name": name, "file": path.name, "bytes": path.stat().st_size, "bytes_of_types": dict(types)}
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    return Subject(
        Path(name).name.removesuffix(".gguf"), path, roofline.of_gguf(path), vocab_size, {"gguf": facts}
    )


def _report_name(asked: argparse.Namespace, subject: Subject) -> str:
    if asked.quantization:
        return f"peers-{asked.quantization}"
    name = {"vllm": "peers", "cohort": "peers-noise", "llamacpp": "peers-llamacpp"}[asked.peer]
    return f"{name}-{subject.name}" if asked.gguf else name


def _told(side: Side) -> dict[str, str]:
    """Its variables; PATH would tell more about whoever runs this than about the server."""
    return {name: value for name, value in side.env.items() if name != "PATH"}


def _log(side: Side) -> Path:
    folder = ROOT / ".reports/peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{side.name}.log"


def _arguments() -> argparse.Namespace:
    """What the command line says. Without --workloads: those that suit the peer."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", help="with commas [all; deep with --gguf, tiny without]")
    parser.add_argument("--rounds", type=int, default=2, help="times each server is started per model [2]")
    parser.add_argument("--repeat", type=int, default=4, help="runs per workload, the first thrown away [4]")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES, help="the large model [%(default)s]")
    parser.add_argument("--peer", default="vllm", choices=("vllm", "llamacpp", "cohort"))
    parser.add_argument(
        "--gguf",
        help="serve these, with commas, instead of the shape: "
        f"{', '.join(gguf_files.NAMES)}, or a file [with --peer llamacpp: all that have a name]",
    )
    parser.add_argument("--quantization", help="compare Cohort with this and without it")
    parser.add_argument("--flags", default="", help="more flags of `cohort serve`, as one word")
    parser.add_argument(
        "--json", type=Path, help="[benchmarks/results/peers.json, or with what differs behind it]"
    )
    asked = parser.parse_args()
    if asked.quantization and asked.peer == "llamacpp":
        parser.error("--quantization compares Cohort with itself")
    if asked.gguf is None and asked.peer == "llamacpp":
        asked.gguf = ",".join(gguf_files.NAMES)
    asked.gguf = _listed(asked.gguf)
    if asked.gguf and (asked.quantization or asked.peer == "vllm"):
        parser.error("--gguf: with --peer llamacpp or cohort, and without --quantization")
    if asked.json is not None and len(asked.gguf) > 1:
        parser.error("--json: with one file of --gguf, for each has a report")
    known = [name for name in compare.NAMES if not (asked.gguf and compare.COMPARED[name].small_model)]
    usual = [name for name in known if asked.gguf or WORKLOADS[name].context <= servers.ROOM.context]
    asked.workloads = _listed(asked.workloads) or usual
    if unknown := sorted(set(asked.workloads) - set(known)):
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    if asked.rounds < 1 or asked.repeat < 1:
        parser.error("--rounds and --repeat: at least 1")
    return asked


def _listed(words: str | None) -> list[str]:
    return [word.strip() for word in (words or "").split(",") if word.strip()]


if __name__ == "__main__":
    # By default the process would end at once, and leave the server that it started behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main()
