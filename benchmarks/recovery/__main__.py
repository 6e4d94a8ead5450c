"""Runs the cases, prints a table and writes the record; `benchmarks.recovery` says what is measured."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from benchmarks.recovery import arena
from benchmarks.recovery.cases import CASES, Case
from benchmarks.recovery.rounds import Kill, killed, load_seconds, undisturbed
from tests.e2e.server_process import ServerProcess
from tools.neutral_paths import ROOT, neutral

_READY_WITHIN = 300.0
_COLUMNS = (
    "case",
    "streams",
    "bytes flipped",
    "load s",
    "longest pause s",
    "computed again",
    "blocks kept",
    "damaged",
    "wrong tokens",
)


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if a case is not as it has to be; each reason is a line of stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description="kill executors under long prompts"
    )
    parser.add_argument(
        "--only", default=",".join(CASES), metavar="NAMES", help="of the cases, with commas between them"
    )
    parser.add_argument("--short", action="store_true", help="four streams, and the first case alone")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--prompt", type=int, default=7000, help="tokens [7000]")
    parser.add_argument("--kills", type=int, default=1, help="of each case, without flipped bytes [1]")
    parser.add_argument(
        "--flip", type=int, default=0, metavar="N", help="one more kill, with N bytes of KV flipped after it"
    )
    parser.add_argument("--json", type=Path, help="the record's file [none]")
    given = parser.parse_args(argv)
    if unknown := set(given.only.split(",")) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server does not stay
    streams = given.streams or (4 if given.short else 8)
    names = given.only.split(",")[: 1 if given.short else None]
    print("| " + " | ".join(_COLUMNS) + " |\n|" + "---|" * len(_COLUMNS), flush=True)
    rows, faults = [], []
    for name in names:
        row, found = asyncio.run(measure(CASES[name], streams, given.prompt, given.kills, given.flip))
        rows.append(row)
        faults += [f"{name}: {fault}" for fault in found]
    if given.json:
        about = {
            "commit": _commit(),
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "prompt_tokens": given.prompt,
        }
        given.json.write_text(
            json.dumps(neutral({**about, "faults": faults, "cases": rows}), indent=1) + "\n"
        )
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


async def measure(
    case: Case, streams: int, prompt: int, kills: int, flips: int
) -> tuple[dict[str, Any], list[str]]:
    """The record of a case, and what is wrong with it. Prints its lines of the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with ServerProcess(
            case.arguments(folder, streams, prompt), folder, ready_within=_READY_WITHIN
        ) as server:
            load_s = await load_seconds(server)
            expected = await undisturbed(server, case.bodies(streams, prompt))
            found = [await killed(server, expected) for _ in range(kills)]
            _show(case, load_s, found)
            faults = [fault for kill in found for fault in kill.faults(streams, load_s)]
            try:
                memory = arena.memory(server.pid)
                if flips:
                    found.append(await killed(server, expected, flips))
                    _show(case, load_s, found[-1:])
                    faults += found[-1].faults(streams, load_s)
            except arena.NoArena as missing:
                memory = 0
                faults.append(str(missing))
    row = {"case": case.name, "streams": streams, "load_s": load_s, "arena_bytes": memory}
    return {**row, "kills": [asdict(kill) for kill in found]}, faults


def _show(case: Case, load_s: float, kills: list[Kill]) -> None:
    for kill in kills:
        cells = (
            case.name, len(kill.pauses), kill.flipped, f"{load_s:.2f}", f"{max(kill.pauses):.2f}", f"{kill.again:,}",
            kill.kept, kill.damaged, kill.wrong_tokens,
        )  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
