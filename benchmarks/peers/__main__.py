"""Cohort and another server on this machine's CPUs, in turn, under named workloads.

    python -m benchmarks.peers                        # beside vLLM, five rounds: what README's headline is made from
    python -m benchmarks.peers --peer llamacpp        # the same GGUF file; [--gguf smollm2,qwen3-0.6b-q4_0,FILE.gguf]
    python -m benchmarks.peers --peer openvino        # one stream; --peer ik compares AVX2 code with AVX2 code
    python -m benchmarks.peers --workloads single,prefix,tiny --rounds 2 --no-headline
    python -m benchmarks.peers --quantization int8    # Cohort with and without it
    python -m benchmarks.peers --peer cohort          # Cohort against itself: how much of a ratio is noise

In each round one server is started, measured under all workloads and stopped, and then the other: A B A B. Only one is up
at a time, for an idle one takes CPU, too. The first run of a workload after a start is thrown away; with --repeat 1 a few short
requests are. The peers are installed or built on first use.

Beside each round the load of other processes and the rate of reading memory are recorded. A round that was loaded does not
count for the headline, and up to --spare more take its place. All rounds go to the results file. The headline is a file of its
own (benchmarks/peers/headline.py); where it is refused, the reasons are printed and recorded. Exit code: 0 where each headline
that the peer has was written or --no-headline was given, 3 where one was refused.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import (
    arguments,
    beside,
    compare,
    gguf_files,
    headline,
    install,
    limits,
    llamacpp,
    machine,
    models,
    one_stream_install,
    roofline,
    servers,
    tree,
)  # fmt: skip
from benchmarks.peers.roofline import Cost
from benchmarks.peers.servers import Room, Side
from clients.bench.report import client_facts
from clients.bench.workloads import WORKLOADS
from executors.contract.errors import ConfigError
from executors.gguf.file import read_gguf
from tools.neutral_paths import neutral

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
SMALL = "qwen3-tiny"
SCHEMA = 2
IDLE_SECONDS = 5.0
"""For a look at the machine before the first round."""
VERSIONS = {
    "vllm": install.VERSION,
    "llamacpp": f"llama-cpp-python {llamacpp.VERSION}",
    "openvino": one_stream_install.VERSIONS["openvino"],
    "ik": f"ik-llama-cpp-python {one_stream_install.VERSIONS['ik']}",
}
"""Of what is compared with."""


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
    """Compare under each model that was asked for. Ends with 3 where a headline was refused."""
    asked = arguments.parse(__doc__)
    try:
        sides = _sides(asked)
        subjects = [_of_gguf(name) for name in asked.gguf] or [_of_shape(asked.shape)]
    except (RuntimeError, FileNotFoundError, ConfigError) as error:
        sys.exit(f"benchmarks.peers: {error}")
    here = machine.this()
    refused = False
    for subject in subjects:
        file = asked.json or RESULTS / f"{_report_name(asked, subject)}-{here.name}.json"
        try:
            refused |= not _compare(asked, sides, subject, here, file)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            sys.exit(f"benchmarks.peers: {error}; the rounds before are in {file}, if there were any")
    if refused and asked.for_headline:
        sys.exit(3)


def _compare(
    asked: argparse.Namespace, sides: tuple[Side, Side], subject: Subject, here: machine.Machine, file: Path
) -> bool:
    """Run all rounds; results are written after each. Returns whether a headline was written."""
    names = [side.name for side in sides]
    starts, values, reports = _starts(asked, subject), compare.Values(), list[dict[str, Any]]()
    unfit = _unfit(asked, subject)
    conditions: list[dict[str, Any]] = []
    report = _opened(asked, sides, subject, here)
    print(f"{here.words}\n{json.dumps(report['limits'])}", flush=True)
    _announce(asked, names, unfit)
    if asked.for_headline and not unfit:
        _rehearse(sides, starts[0])
    while not _enough(asked, conditions, unfit):
        number = len(conditions)
        conditions.append(_round_of_all(number, sides, asked, starts, values, reports))
        headline.judge(conditions)
        found = compare.results(values, names, subject.cost, roofline.of_shape(SMALL), report["limits"])
        report |= {"rounds_done": number + 1, "conditions": conditions, "results": found, "runs": reports}
        _write(file, report | {"headline": False, "why": ["not finished"]})
        print(f"{subject.name}, after round {number + 1}:\n{compare.table(found, names)}", flush=True)
        _print_each("does not count", conditions[-1]["why"])
    report["limits"] = limits.higher(report["limits"], limits.measured())
    report["results"] = compare.results(
        values, names, subject.cost, roofline.of_shape(SMALL), report["limits"]
    )
    why = headline.refused(unfit, conditions, tree.state())
    if not why:
        try:
            made = headline.made(asked.peer, VERSIONS[asked.peer], report, values, names)
        except ValueError as error:
            why = [str(error)]
        else:
            target = headline.path(file.parent, asked.peer, here.name)
            _write(target, made)
            print(f"headline: {target}; `python -m tools.benchmark_block write` puts it into README")
    _write(file, report | {"headline": not why, "why": why})
    print(f"written to {file}")
    if asked.for_headline:
        _print_each("no headline", why)
    return not why


def _rehearse(sides: tuple[Side, Side], start: Start) -> None:
    """Start each side once: kernels that a new commit compiles, caches and files not read yet belong to no round."""
    for side in sides:
        print(f"starting {side.name} once before the rounds", flush=True)
        with servers.serving(side, start.subject.path, _log(side), start.room):
            pass


def _unfit(asked: argparse.Namespace, subject: Subject) -> list[str]:
    """Why this run cannot become a headline, as far as that is known before it."""
    if not asked.for_headline:
        return ["not asked for"]
    return headline.unfit(asked.peer, subject.name, asked.workloads, asked.rounds, asked.flags, tree.state())


def _enough(asked: argparse.Namespace, conditions: list[dict[str, Any]], unfit: list[str]) -> bool:
    """Whether no round is left to run: of those for a headline loaded ones are run again."""
    spare = 0 if unfit else asked.spare
    trusted = sum(one["trusted"] for one in conditions)
    return len(conditions) >= asked.rounds and (
        spare == 0 or trusted >= asked.rounds or len(conditions) >= asked.rounds + spare
    )


def _announce(asked: argparse.Namespace, names: list[str], unfit: list[str]) -> None:
    each = arguments.seconds_of_round(names, asked.workloads, asked.repeat)
    once = 2 * arguments.LIMITS_SECONDS
    if asked.for_headline and not unfit:
        once += arguments.seconds_of_round(names, [], 1)
    total = (asked.rounds * each + once) / 60
    more = f", at most {asked.spare} rounds more where some were loaded" if asked.spare and not unfit else ""
    print(
        f"{asked.rounds} rounds of {each:.0f} s: {total:.0f} minutes on two cores of a Zen 5{more}",
        flush=True,
    )
    if asked.for_headline:
        _print_each("no headline will be written", unfit)
        now: list[dict[str, Any]] = []
        with beside.watched("now", now):
            time.sleep(IDLE_SECONDS)
        shares = f"{now[0]['others']:.1%} of the cores and the hypervisor {now[0]['stolen']:.1%}"
        print(
            f"right now others take {shares}; more than {headline.MAX_OTHERS:.0%} spoils a round", flush=True
        )


def _print_each(beginning: str, reasons: list[str]) -> None:
    for reason in reasons:
        print(f"{beginning}: {reason}", flush=True)


def _opened(
    asked: argparse.Namespace, sides: tuple[Side, Side], subject: Subject, here: machine.Machine
) -> dict[str, Any]:
    """What a report has before its first round."""
    report = {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": {
            "workloads": asked.workloads, "rounds": asked.rounds, "repeat": asked.repeat, **subject.facts,
            "sides": {side.name: {"command": list(side.command), "env": _told(side)} for side in sides},
        },
        "machine": here.facts(),
        "client": client_facts(),
        "limits": limits.measured(),
    }  # fmt: skip
    if asked.peer in VERSIONS:
        report["config"]["peer"] = VERSIONS[asked.peer]
    return report


def _round_of_all(
    number: int, sides: tuple[Side, Side], asked: argparse.Namespace, starts: list[Start], values: compare.Values,
    reports: list[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """One round of both sides. Returns its conditions, for headline.judge."""
    code = tree.state()
    records: list[dict[str, Any]] = []
    readings = [limits.reading()]
    for side in sides:
        reports += _round(side, asked, number, starts, values, records)
        readings.append(limits.reading())
    return {
        "round": number, "commit": code.commit, "changed": list(code.changed), "beside": records,
        "read_gb_per_s": readings,
    }  # fmt: skip


def _write(file: Path, report: dict[str, Any]) -> None:
    file.write_text(json.dumps(neutral(report), indent=1, allow_nan=False) + "\n")


def _starts(asked: argparse.Namespace, subject: Subject) -> list[Start]:
    """A start for each model and room that the workloads need, with the asked one's first."""
    usual = servers.SLOTS if asked.gguf else servers.ROOM
    if asked.peer in arguments.ONE_STREAM:
        usual = servers.DEEP
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
    side: Side, asked: argparse.Namespace, number: int, starts: list[Start], values: compare.Values,
    records: list[dict[str, Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    """One side, under all workloads. Returns the reports of `cohort bench`; `records` takes what ran beside."""
    reports: list[dict[str, Any]] = []
    for start in starts:
        subject, log = start.subject, _log(side)
        print(f"round {number + 1}: {side.name}, {subject.name}: {', '.join(start.workloads)}", flush=True)
        with contextlib.ExitStack() as stack:
            with beside.watched(f"{side.name}, start", records):
                url, seconds = stack.enter_context(servers.serving(side, subject.path, log, start.room))
            if start.timed:
                compare.take_start(values, side.name, seconds)
            with beside.watched(f"{side.name}, {','.join(start.workloads)}", records):
                report = _measured(url, start.workloads, asked.repeat, number, subject.vocab_size)
        compare.take(values, side.name, report)
        reports.append(
            {
                "side": side.name, "round": number, "shape": subject.name, "start_s": seconds,
                "room": {"seqs": start.room.seqs, "context": start.room.context}, **report,
            }
        )  # fmt: skip
    return reports


def _measured(url: str, names: list[str], repeat: int, seed: int, vocab_size: int | None) -> dict[str, Any]:
    """One report of all these workloads. Those that take long run once, after the others have warmed the server up."""
    if repeat == 1:
        _run_bench(
            url,
            ["burst"],
            "--requests",
            "8",
            "--output-tokens",
            "8",
            "--repeat",
            "1",
            *_of_vocabulary(vocab_size),
        )
    short = [name for name in names if not compare.COMPARED[name].once]
    parts = [_bench(url, short, repeat, seed, vocab_size)] if short else []
    if once := [name for name in names if compare.COMPARED[name].once]:
        parts.append(_bench(url, once, 1, seed, vocab_size))
    return {**parts[0], "workloads": [entry for part in parts for entry in part["workloads"]]}


def _bench(url: str, names: list[str], repeat: int, seed: int, vocab_size: int | None) -> dict[str, Any]:
    """The report of `cohort bench`, in a process of its own: what else lives here would show in its timing.

    Raises RuntimeError where nothing could be measured. Both sides get the same prompts, by the seed.
    """
    report = _run_bench(url, names, "--repeat", str(repeat), "--seed", str(seed), *_of_vocabulary(vocab_size))
    for entry in report["workloads"]:
        failed = sum(run["failed"] for run in entry["runs"])
        if failed:
            raise RuntimeError(
                f"{entry['workload']['name']}: {failed} requests failed: {entry['runs'][0]['first_error']}"
            )
    return report


def _of_vocabulary(size: int | None) -> list[str]:
    return [] if size is None else ["--vocab-size", str(size)]


def _run_bench(url: str, names: list[str], *flags: str) -> dict[str, Any]:
    """What one call of `cohort bench` reports. Raises RuntimeError where it reports nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "server.cli", "bench", url, "--model", servers.MODEL_NAME, "--workload", ",".join(names),
            "--json", str(file), *flags,
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not file.exists():
            raise RuntimeError(done.stderr.strip() or f"cohort bench ended with {done.returncode}")
        report: dict[str, Any] = json.loads(file.read_text())
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
        case "openvino":
            return ours, servers.one_stream("openvino")
        case "ik":
            # Its package is compiled for AVX2.
            return servers.cohort(
                "cohort-avx2", "--cpu-isa", "avx2", *flags, dtype=dtype
            ), servers.one_stream("ik")
        case "cohort":
            return ours, servers.cohort("cohort-again", dtype=dtype)
        case "llamacpp":
            return ours, servers.llama()
    return ours, servers.vllm(asked.peer_dtype)


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
    name = {"vllm": "peers", "cohort": "peers-noise"}.get(asked.peer, f"peers-{asked.peer}")
    if asked.peer_dtype != "bfloat16":
        name += f"-beside-{asked.peer_dtype}"
    return f"{name}-{subject.name}" if asked.gguf else name


def _told(side: Side) -> dict[str, str]:
    """Its variables; PATH would tell more about whoever runs this than about the server."""
    return {name: value for name, value in side.env.items() if name != "PATH"}


def _log(side: Side) -> Path:
    folder = ROOT / ".reports/peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{side.name}.log"


if __name__ == "__main__":
    # By default the process would end at once, and leave the server that it started behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main()
