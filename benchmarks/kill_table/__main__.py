"""Fills the table of one server; `benchmarks.kill_table` says how."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from benchmarks.kill_table.answers import logprob_difference, same
from benchmarks.kill_table.calls import LENGTH, kinds
from benchmarks.kill_table.faults import FAULTS, Fault, memory_group
from benchmarks.kill_table.rounds import (
    NEWCOMER_AFTER_S,
    PIECES,
    Observation,
    References,
    observe,
    undisturbed,
)
from benchmarks.kill_table.running import Running
from benchmarks.kill_table.subjects import ROOT, SEQUENCES, Subject, subject
from tools.neutral_paths import neutral

RESULTS = ROOT / "benchmarks/results"


def main() -> int:
    """Run the faults and write the results. Returns 1 if a cell could not be filled."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill_table", description="what clients see while a server breaks"
    )
    parser.add_argument("--server", choices=("cohort", "vllm", "llamacpp"), default="cohort")
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault strikes [3]")
    parser.add_argument("--faults", default=",".join(fault.name for fault in FAULTS), help="some of them")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds until a client gives up [60]")
    parser.add_argument(
        "--json", type=Path, help="the result's file [benchmarks/results/kill-table-SERVER.json]"
    )
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server does not stay
    chosen = [fault for fault in FAULTS if fault.name in arguments.faults.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        table = Table(subject(arguments.server, folder), folder, arguments.patience)
        began = time.monotonic()
        for number in range(arguments.rounds):
            *others, last = [fault for fault in chosen if not fault.harmless] or chosen
            harmless = [fault for fault in chosen if fault.harmless and fault is not last]
            for fault in others:
                table.fill([fault], number + 1)
            table.fill([*harmless, last], number + 1)
    result = table.result(arguments.rounds, time.monotonic() - began)
    target = arguments.json or RESULTS / f"kill-table-{arguments.server}.json"
    target.write_text(json.dumps(neutral(result), indent=1) + "\n")
    print(f"{target}: {len(table.failures)} could not be filled")
    return 1 if table.failures else 0


class Table:
    """The cells of one server, filled fault by fault."""

    def __init__(self, of: Subject, folder: Path, patience: float) -> None:
        self.subject, self._folder, self._patience = of, folder, patience
        self.observations: dict[str, list[Observation]] = {}
        self.references = References()
        self.failures: list[str] = []
        self.load_s: list[float] = []

    def fill(self, faults: Sequence[Fault], number: int) -> None:
        """Start a server and let the faults strike it in turn: all but the last leave it as good as new."""
        fault = faults[-1]
        if fault.poisons and self.subject.poison is None:
            return
        extra = self.subject.poison[0] if fault.poisons and self.subject.poison else ()
        log = self._folder / f"{self.subject.name}-{fault.name}-{number}.log"
        try:
            with memory_group(fault) as group:
                running = Running(self.subject, log, extra, group.enter if group else None)
                self.load_s.append(running.load_s)
                try:
                    for one in faults:
                        self._add(one, number, asyncio.run(self._observe(running, one, group)))
                finally:
                    running.stop()
        except RuntimeError as failure:
            self.failures.append(f"{fault.name}, round {number}: {failure}")
            print(self.failures[-1], file=sys.stderr, flush=True)

    def _add(self, fault: Fault, number: int, found: Observation) -> None:
        self.observations.setdefault(fault.name, []).append(found)
        shown = ", ".join(
            f"{name} {verdict.sight} {verdict.pause_s:.1f} s" for name, verdict in found.verdicts.items()
        )
        again = "-" if found.serves_again_s is None else f"{found.serves_again_s:.1f} s"
        print(
            f"{self.subject.title}, {fault.name}, round {number}: {shown}; serves again {again}", flush=True
        )

    async def _observe(self, running: Running, fault: Fault, group: Any) -> Observation:
        await undisturbed(running, self.references, self._patience)
        return await observe(running, fault, self.references, group, self._patience)

    def result(self, rounds: int, seconds: float) -> dict[str, Any]:
        """All that the page shows."""
        return {
            "server": self.subject.name,
            "title": self.subject.title,
            "version": self.subject.version,
            "model": self.subject.model,
            "options": self.subject.options,
            "processes": self.subject.processes,
            "poison": self.subject.poison_note,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": _commit(),
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": self.subject.threads,
            "load_average": round(os.getloadavg()[2], 1),
            "system": f"{platform.system()} {platform.release()}",
            "rounds": rounds,
            "seconds": round(seconds),
            "tokens": LENGTH,
            "sequences": SEQUENCES,
            "pieces_at_the_fault": PIECES,
            "newcomer_after_s": NEWCOMER_AFTER_S,
            "patience_s": self._patience,
            "start_s": [round(value, 1) for value in self.load_s],
            "without_a_fault": self._without_a_fault(),
            "failures": self.failures,
            "faults": {name: [one.as_json() for one in found] for name, found in self.observations.items()},
        }

    def _without_a_fault(self) -> dict[str, dict[str, Any]]:
        """Of each kind: runs, different answers among them, seconds, and how far log probabilities lie apart."""
        found = {}
        for call in kinds():
            records = self.references.records.get(call.name, [])
            different: list[Any] = []
            for record in records:
                if not any(same(record.answer, other) for other in different):
                    different.append(record.answer)
            apart = [logprob_difference(record.answer, records[0].answer) for record in records]
            found[call.name] = {
                "runs": len(records),
                "answers": len(different),
                "seconds": [round(record.seconds, 2) for record in records],
                "longest_pause_s": round(max((record.longest_pause for record in records), default=0.0), 2),
                "logprobs_apart": round(max(apart, default=0.0), 6),
            }
        return found


def _commit() -> str:
    """The checkout's, with `+` where files differ from it."""
    words = ["git", "-C", str(ROOT)]
    head = subprocess.run([*words, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*words, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
