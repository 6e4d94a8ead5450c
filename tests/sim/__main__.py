"""`python -m tests.sim SEED` replays one seed, `python -m tests.sim --seeds 10000` runs many on all cores."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
import traceback

from tests.sim.scenario import draw, simulate


def _replay(seed: int) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    scenario = draw(seed)
    print(
        *(f"{name}: {getattr(scenario, name)}" for name in scenario.__slots__ if name != "streams"), sep="\n"
    )
    print(*scenario.streams, sep="\n")
    try:
        print(simulate(seed).stats())
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(seeds: range) -> int:
    """How many of these fail."""
    logging.disable(logging.CRITICAL)
    failed = 0
    for seed in seeds:
        try:
            simulate(seed)
        except Exception as error:
            failed += 1
            print(
                f"seed {seed}: {type(error).__name__}: {error}   (replay: python -m tests.sim {seed})",
                flush=True,
            )
    return failed


def _share(first: int, end: int, jobs: int) -> int:
    """Run the seeds in processes of their own, every `jobs`-th in each; returns how many processes found a failure."""
    command = [sys.executable, "-m", "tests.sim", "--jobs", "1", "--step", str(jobs)]
    parts = [
        subprocess.Popen([*command, "--first", str(first + part), "--seeds", str(end - first - part)])
        for part in range(jobs)
    ]
    return sum(part.wait() != 0 for part in parts)


def main() -> int:
    """Run, and return the exit code: 0 if every seed holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if asked.seed is not None:
        return _replay(asked.seed)
    end = asked.first + asked.seeds
    if asked.jobs == 1:
        return int(_run(range(asked.first, end, asked.step)) > 0)
    began = time.monotonic()
    failed = _share(asked.first, end, asked.jobs)
    print(f"{asked.seeds} seeds {'do not all hold' if failed else 'hold'}, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
