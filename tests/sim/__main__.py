"""`python -m tests.sim SEED` replays one seed, `python -m tests.sim --seeds 10000` runs many on all cores."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback

from tests.sim.scenario import draw, simulate


def _try(seed: int) -> tuple[int, str]:
    logging.disable(logging.CRITICAL)
    try:
        simulate(seed)
    except BaseException as error:
        return seed, f"{type(error).__name__}: {error}"
    return seed, ""


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


def main() -> int:
    """Run, and return the exit code: 0 if every seed holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    if asked.seed is not None:
        return _replay(asked.seed)
    began, failed = time.monotonic(), 0
    # A fresh interpreter a process: a fork would copy a half-used one.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for seed, error in pool.imap_unordered(_try, range(asked.first, asked.first + asked.seeds), 50):
            if error:
                failed += 1
                print(f"seed {seed}: {error}   (replay: python -m tests.sim {seed})", flush=True)
    print(f"{asked.seeds - failed} of {asked.seeds} seeds hold, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
