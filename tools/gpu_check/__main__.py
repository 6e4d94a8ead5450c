"""Checks everything that has to be seen on a real GPU; call it again to go on where it stopped.

    python -m tools.gpu_check [--fresh] [--first | --only NAME ...] [--device-kind KIND] [--out FOLDER]

What is settled is kept in .reports/gpu-check/record.json, and in --out after each part: a machine that begins bare needs that
file in .reports/gpu-check to go on. From a bare start, with the kernels to compile, it is reckoned to take three calls. Where
there is time for one, --first takes what matters most. Of parts that did not pass, logs are in a file beside the result.

Exit code 0: all parts passed, or need what is not installed (targets that were missed are named); 1: one failed; 2: there was no
time, or no device, for some.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from benchmarks.gpu.part_process import add_options, options_of
from tools.gpu_check import evidence, report, wheels
from tools.gpu_check.conduct import Conductor
from tools.gpu_check.launch import Launcher, environment
from tools.gpu_check.plan import BUDGET, DEVICE, FIRST, PARTS, ROOT, Options, Part
from tools.gpu_check.record import PART_SOURCES, Record, sources_digest

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
WORK = ROOT / ".reports" / "gpu-check"
OUT_VARIABLE = "GPU_CHECK_OUT"
RECORD = "record.json"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    names = [part.name for part in PARTS if part is not DEVICE]
    parser.add_argument(
        "--fresh", action="store_true", help="begin anew, whatever an earlier call has settled"
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--first", action="store_true", help=f"within one call, unless they are settled: {', '.join(FIRST)}"
    )
    chosen.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"these parts, again: {', '.join(names)}"
    )
    parser.add_argument(
        "--device-kind",
        default="",
        metavar="KIND",
        help="as which the machine was asked for: kept in the record",
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="seconds for this call (default: %(default).0f)"
    )
    parser.add_argument(
        "--out", type=Path, help=f"folder of the result (default: ${OUT_VARIABLE}, or benchmarks/results/gpu)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=WORK,
        help="folder of the record and the logs (default: .reports/gpu-check)",
    )
    parser.add_argument(
        "--wheels", type=Path, default=wheels.FOLDER, help="folder that `make gpu-wheels` filled"
    )
    add_options(parser)
    return parser.parse_args(argv)


def out_folder(given: argparse.Namespace) -> Path:
    """Where the result goes. What a CPU gives is no result: it stays with the logs unless a folder was named."""
    if given.out is not None:
        return Path(given.out)
    named = os.environ.get(OUT_VARIABLE)
    return Path(named) if named else RESULTS if given.device != "cpu" else Path(given.work)


def keep(record: Record, given: argparse.Namespace) -> Path:
    """Write the result and return its path, and the record beside it where a folder was named: a machine may end with the
    call, or before it. Without a device there is no result to be kept beside others: it stays with the logs."""
    known = "device" in record.identity
    path = report.write(record, PARTS, out_folder(given) if known else given.work)
    if known and (given.out is not None or os.environ.get(OUT_VARIABLE)):
        record.save(out_folder(given) / RECORD)
    evidence.write(record, PARTS, given.work, path.with_suffix(".evidence.txt"))
    return path


def chosen_parts(given: argparse.Namespace) -> tuple[Part, ...]:
    """What a call is about, in the order in which it is run."""
    named = {part.name: part for part in PARTS}
    if given.first:
        return (DEVICE, *(named[name] for name in FIRST))
    return PARTS if not given.only else (DEVICE, *(part for part in PARTS if part.name in given.only))


def check(given: argparse.Namespace, options: Options, parts: tuple[Part, ...]) -> int:
    """Run the parts; the exit code."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        unpacked = wheels.unpack_missing(given.wheels, Path(folder)) if given.wheels.is_dir() else []
        if unpacked:
            print(f"taken from {given.wheels}: {', '.join(unpacked)}")
        env = environment(options, Path(folder) if unpacked else None)
        launcher = Launcher(options, given.work, env)
        identity = {"sources": sources_digest(), "options": asdict(options)}
        conductor = Conductor(
            parts, launcher, given.work / RECORD, identity,
            budget=given.budget, clock=time.monotonic, kept=lambda record: keep(record, given),
            sources={part: sources_digest(names=names) for part, names in PART_SOURCES.items()},
            device_kind=given.device_kind, shared=given.first,
        )  # fmt: skip
        record = conductor.run(given.fresh, given.only or ())
    path = keep(record, given)
    print(f"\n{report.table(record, PARTS)}\n")
    if kind := report.device_kind(record):
        print(kind)
    if missed := report.missed(record):
        print(f"targets missed: {', '.join(missed)}")
    print(f"written to {path}")
    return report.exit_code(record, parts)


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    given = parse(argv)
    # Whoever ends this ends the part that runs, too, which else would hold the device for as long as it may take.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    try:
        return check(given, options_of(given), chosen_parts(given))
    except KeyboardInterrupt:
        print(f"\ncut off; what was settled is in {given.work / RECORD}: call again to go on")
        return 2


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
