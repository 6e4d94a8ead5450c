"""`python -m tests.server.models.simulated SEED` replays one schedule, `... --seeds 10000 --jobs 2` runs many.

Each seed is drawn three times, with faults, without, and as an embedding model beside a chat: see `simulation.py`.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
import traceback

import server.models.table as table_module
from tests.server.models.simulation import Broken, simulate, simulate_pair
from tests.sim.virtual_loop import run

_MODULE = "tests.server.models.simulated"


def schedule(seed: int) -> dict[str, int]:
    """Run the seed's three schedules; returns how often what happened. Raises Broken, and Deadlock of the virtual loop."""
    counts = run(simulate(seed))
    calm = run(simulate(seed, faults=False))
    if calm["ended"]:
        raise Broken("a call was ended although nothing failed")
    pair = run(simulate_pair(seed))
    return {word: count + calm[word] + pair.get(word, 0) for word, count in counts.items()}


def be_silent() -> None:
    """Thousands of lines take longer than what they tell of."""
    silent = logging.getLogger("silent")
    silent.disabled = True
    table_module.log = silent


def _run(seeds: range, until: float) -> tuple[int, int]:
    """Run these seeds, as many as begin before `until` by the monotonic clock. Returns how many held and how many failed."""
    be_silent()
    held = failed = 0
    for seed in seeds:
        if time.monotonic() > until:
            break
        try:
            schedule(seed)
            held += 1
        except Exception as error:
            failed += 1
            print(
                f"seed {seed}: {type(error).__name__}: {error}   (replay: python -m {_MODULE} {seed})",
                flush=True,
            )
    return held, failed


def _share(first: int, end: int, jobs: int, seconds: float) -> tuple[int, int]:
    """As `_run`, in processes of their own: every `jobs`-th seed in each."""
    command = [sys.executable, "-m", _MODULE, "--jobs", "1", "--step", str(jobs), "--seconds", str(seconds)]
    parts = [
        subprocess.Popen(
            [*command, "--first", str(first + part), "--seeds", str(end - first - part)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(jobs)
    ]
    held = failed = 0
    for part in parts:
        lines = part.communicate()[0].splitlines()
        print(*lines[:-1], sep="\n", end="\n" if lines[:-1] else "")
        if part.returncode not in (0, 1):
            raise RuntimeError(f"a process ended with code {part.returncode}")
        one, other = map(int, lines[-1].split()[::2])
        held, failed = held + one, failed + other
    return held, failed


def main() -> int:
    """Run, and return the exit code: 0 if every schedule keeps the rules."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no seed after this time")
    given = parser.parse_args()
    if given.seed is not None:
        try:
            print(schedule(given.seed))
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    began, end = time.monotonic(), given.first + given.seeds
    if given.jobs == 1:
        held, failed = _run(range(given.first, end, given.step), began + given.seconds)
    else:
        held, failed = _share(given.first, end, given.jobs, given.seconds)
        print(f"{time.monotonic() - began:.0f} s:", end=" ")
    print(f"{held} held, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
