"""Checks and measures what has to be seen on a real GPU, in two calls; call one again to go on where it stopped.

    python -m tools.gpu_check [--call 1|2] [--plan] [--only NAME ...] [--fresh] [--device-kind KIND] [--out FOLDER]

Each part that ends appends a line to log.jsonl in --out. A later call passes over parts that the log has as passed, with the same
card and options, and of whose files none has changed: a machine that begins bare needs that log there to go on. Of parts that
did not pass, the two ends of their output are kept beside it.

Exit code 0: all parts passed, or need what is not installed (targets that were missed are named); 1: one failed; 2: there was no
time, or no device, for some.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.gpu.part import add_options, options_of
from tools.gpu_check import log, process, wheels
from tools.gpu_check.call import NO_TIME, Call
from tools.gpu_check.log import ROOT
from tools.gpu_check.parts import AGAIN, BUDGETS, CALLS, PARTS, GpuPart, plan

WORK = ROOT / ".reports" / "gpu-check"
OUT_VARIABLE = "GPU_CHECK_OUT"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    names = [part.name for part in PARTS if part.name != AGAIN]
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--call", type=int, choices=sorted(CALLS), default=1, help="which of the two (default: 1)"
    )
    chosen.add_argument(
        "--only", nargs="+", choices=names, default=[], metavar="NAME", help=f"these parts, again: {', '.join(names)}"
    )  # fmt: skip
    parser.add_argument(
        "--plan", action="store_true", help="print what the calls are expected to take; run nothing"
    )
    parser.add_argument("--fresh", action="store_true", help="run also what the log has as passed")
    parser.add_argument(
        "--device-kind", default="", metavar="KIND", help="as which the machine was asked for"
    )
    parser.add_argument(
        "--budget", type=float, help=f"seconds (default: {BUDGETS[1]:.0f}; call 2: {BUDGETS[2]:.0f})"
    )
    parser.add_argument(
        "--out", type=Path, help=f"folder of the log (default: ${OUT_VARIABLE}, or benchmarks/results/gpu)"
    )
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder of outputs (default: .reports/gpu-check)"
    )
    parser.add_argument(
        "--wheels", type=Path, default=wheels.FOLDER, help="folder that `make gpu-wheels` filled"
    )
    add_options(parser)
    return parser.parse_args(argv)


def out_folder(given: argparse.Namespace) -> Path:
    """Where the log goes. What a CPU gives is no result: it stays with the outputs unless a folder was named."""
    named = given.out or os.environ.get(OUT_VARIABLE)
    return Path(named) if named else log.PATH.parent if given.device != "cpu" else Path(given.work)


def chosen_parts(given: argparse.Namespace) -> tuple[GpuPart, ...]:
    """What a call is about, in the order in which it is run."""
    return tuple(part for part in PARTS if part.name in given.only) if given.only else CALLS[given.call]


def check(given: argparse.Namespace) -> int:
    """Run the parts; the exit code."""
    options, out = options_of(given), out_folder(given)
    budget = given.budget or BUDGETS[1 if given.only else given.call]
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        unpacked = wheels.unpack_missing(given.wheels, Path(folder)) if given.wheels.is_dir() else []
        if unpacked:
            print(f"taken from {given.wheels}: {', '.join(unpacked)}")
        env = process.environment(options, Path(folder) if unpacked else None)
        call = Call(out, given.work, options, env, budget, given.device_kind, given.fresh)
        if call.device() != "pass":
            return 2
        states = call.parts(chosen_parts(given), anew=bool(given.only))
    print(f"appended to {out / 'log.jsonl'}")
    return 1 if "fail" in states else 2 if NO_TIME in states else 0


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    given = parse(argv)
    if given.plan:
        print("\n\n".join(plan(number) for number in CALLS))
        return 0
    # Whoever ends this ends the part that runs, too, which else would hold the device for as long as it may take.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    try:
        return check(given)
    except KeyboardInterrupt:
        log.salvage(out_folder(given))
        print(f"\ncut off; what ended is in {out_folder(given) / 'log.jsonl'}: call again to go on")
        return 2


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
