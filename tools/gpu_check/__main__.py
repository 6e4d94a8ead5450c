"""Checks and measures what has to be seen on a real GPU; call it again to go on where it stopped.

    python -m tools.gpu_check [--fresh] [--first | --only NAME ...] [--device-kind KIND] [--out FOLDER]

Each part that ends appends a line to log.jsonl in --out. A later call passes over parts that the log has as passed, with the same
code, card and options: a machine that begins bare needs that file there to go on. Of parts that did not pass, the log's two
ends are kept beside it.

Exit code 0: all parts passed, or need what is not installed (targets that were missed are named); 1: one failed; 2: there was no
time, or no device, for some.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from benchmarks.gpu.part import ABSENT, FIGURES, LIMIT, Figures, Options, add_options, options_of
from tools.gpu_check import log, wheels
from tools.gpu_check.log import ROOT, Row
from tools.gpu_check.parts import DEVICE, FIRST, PARTS, GpuPart
from tools.neutral_paths import neutral

BUDGET = 540.0
"""Seconds of one call: a command on a lent machine may take ten minutes, and its transfers are counted."""
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
WORK = ROOT / ".reports" / "gpu-check"
OUT_VARIABLE = "GPU_CHECK_OUT"
EACH_END = 100_000
"""Bytes of a log that are kept of its beginning, and as many of its end."""
_MARGIN = 5.0
"""Seconds kept for ending what is over its time."""
_STUCK = 5.0


def run(part: GpuPart, options: Options, work: Path, env: Mapping[str, str], allowed: float) -> Row:
    """Run a part for at most `allowed` seconds, as a process whose crash or hang ends it alone. What it prints goes to
    NAME.log in `work`. Returns `state`, `seconds`, `detail` and `figures`, of a part that was cut off, too."""
    work.mkdir(parents=True, exist_ok=True)
    figures, output = work / f"{part.name}.figures.jsonl", work / f"{part.name}.log"
    figures.unlink(missing_ok=True)
    command = [sys.executable, *part.command, *options.arguments()]
    env = {**env, FIGURES: str(figures), LIMIT: str(allowed)}
    began = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )  # fmt: skip
        code = _wait(process, allowed)
    seconds = time.monotonic() - began
    lines = output.read_bytes().decode("utf-8", "replace").strip().splitlines()
    why = lines[-1] if lines else ""
    if code is None:
        why = f"killed after {seconds:.0f} s, its limit; {why}"
    elif code not in (0, 1, ABSENT):
        why = (f"killed by signal {-code}" if code < 0 else f"exit code {code}") + f"; {why}"
    state = {0: "pass", ABSENT: "not run"}.get(-1 if code is None else code, "fail")
    return {
        "state": state,
        "seconds": seconds,
        "detail": why if state != "pass" else "",
        "figures": _read(figures),
    }


def _wait(process: subprocess.Popen[bytes], allowed: float) -> int | None:
    """The exit code, None for a process that was killed because its time was over."""
    try:
        return process.wait(allowed)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also after a good end: nothing that it started may hold the device. Executors die with the socket of their parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Stuck in a driver, it ends when the driver lets it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STUCK)


def _read(path: Path) -> Figures:
    found: Figures = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.update(json.loads(line))
    return found


def environment(options: Options, packages: Path | None) -> dict[str, str]:
    """Of a part and of what it starts. `packages`: a folder of what this Python lacks."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    paths = [str(ROOT), *([str(packages)] if packages else []), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env.update(PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    env.pop("TRITON_INTERPRET", None)
    if options.device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    return env


class Call:
    """One call: its budget, its log and its machine. Writes the log."""

    def __init__(self, given: argparse.Namespace, options: Options, env: Mapping[str, str]) -> None:
        self._given, self._options, self._env = given, options, env
        self._began = time.monotonic()
        self.out = out_folder(given)
        self._path = self.out / "log.jsonl"
        self._known = [] if given.fresh else log.read(self._path)
        self._about: Row = {
            "commit": log.commit(),
            "kind": given.device_kind or None,
            "options": asdict(options),
        }

    def device(self) -> str:
        """The state of the part that says what machine this is."""
        row = self._run(DEVICE, DEVICE.limit)
        self._about |= {"card": None, "torch": None, "triton": None}
        identity = row["figures"].get("identity", {})
        self._about |= {
            "card": identity.get("device"),
            **{one: identity.get(one) for one in ("torch", "triton")},
        }
        if row["state"] == "pass":
            self._keep(DEVICE, row)
        return str(row["state"])

    def part(self, part: GpuPart, anew: bool) -> str:
        """Run a part unless the log has it; its state, or "no time"."""
        about = {**self._about, "part": part.name, "digest": log.digest(part.sources)}
        if not anew and (before := log.passed(self._known, about)):
            print(f"{part.name}: passed {before.get('written')}")
            return "pass"
        left = self._given.budget - (time.monotonic() - self._began) - _MARGIN
        if left < part.least:
            print(f"{part.name}: no time left in this call: call again to go on")
            return "no time"
        row = self._run(part, min(part.limit, left))
        if row["state"] == "fail" and left < part.limit and row["seconds"] >= left:
            # It was this call's time that ended, not the part's own: nothing is known against it.
            row |= {"state": "not run", "detail": "the call's time ended"}
            self._keep(part, row)
            return "no time"
        self._keep(part, row)
        return str(row["state"])

    def _run(self, part: GpuPart, allowed: float) -> Row:
        print(f"{part.name}: {part.what} ...")
        row = run(part, self._options, self._given.work, self._env, allowed)
        print(f"{part.name}: {row['state']}, {row['seconds']:.1f} s{headline(row)}")
        return row

    def _keep(self, part: GpuPart, row: Row) -> None:
        log.append(self._path, {**self._about, "part": part.name, "digest": log.digest(part.sources), **row})
        evidence = self.out / f"{part.name}.evidence.txt"
        evidence.unlink(missing_ok=True)
        if row["state"] != "pass":
            ends_kept(self._given.work / f"{part.name}.log", evidence)


def headline(row: Row) -> str:
    """What a line of output says of a part's figures: why it did not pass, plain numbers, and whether its target was met."""
    figures = row["figures"]
    plain = {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    words = [str(row["detail"])] if row["detail"] else []
    words += [f"{name} {value:,.5g}" for name, value in plain.items()]
    if "reached" in figures:
        words.append("target reached" if figures["reached"] else "TARGET MISSED")
    if figures.get("fell_back"):
        words.append(f"THE SLOW WAY: {figures['fell_back']}")
    if figures.get("not_run"):
        words.append(f"not run: {', '.join(figures['not_run'])}")
    return "".join(f"; {word}" for word in words)


def ends_kept(source: Path, target: Path) -> None:
    """The beginning and the end of a part's log, for a machine that is gone when it is wanted."""
    data = source.read_bytes()
    left_out = len(data) - 2 * EACH_END
    if left_out > 0:
        data = data[:EACH_END] + f"\n.... {left_out:,} bytes are left out ....\n".encode() + data[-EACH_END:]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(neutral(data.decode("utf-8", "replace")), "utf-8")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    names = [part.name for part in PARTS]
    parser.add_argument("--fresh", action="store_true", help="run also what the log has as passed")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--first", action="store_true", help=f"within one call: {', '.join(FIRST)}")
    chosen.add_argument(
        "--only", nargs="+", choices=names, default=[], metavar="NAME", help=f"these parts, again: {', '.join(names)}"
    )  # fmt: skip
    parser.add_argument(
        "--device-kind", default="", metavar="KIND", help="as which the machine was asked for"
    )
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds (default: %(default).0f)")
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
    return Path(named) if named else RESULTS if given.device != "cpu" else Path(given.work)


def chosen_parts(given: argparse.Namespace) -> list[GpuPart]:
    """What a call is about, in the order in which it is run."""
    if given.first:
        return [part for name in FIRST for part in PARTS if part.name == name]
    return [part for part in PARTS if not given.only or part.name in given.only]


def check(given: argparse.Namespace) -> int:
    """Run the parts; the exit code."""
    options = options_of(given)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        unpacked = wheels.unpack_missing(given.wheels, Path(folder)) if given.wheels.is_dir() else []
        if unpacked:
            print(f"taken from {given.wheels}: {', '.join(unpacked)}")
        call = Call(given, options, environment(options, Path(folder) if unpacked else None))
        if call.device() != "pass":
            return 2
        states = [call.part(part, anew=bool(given.only)) for part in chosen_parts(given)]
    print(f"appended to {call.out / 'log.jsonl'}")
    return 1 if "fail" in states else 2 if "no time" in states else 0


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    given = parse(argv)
    # Whoever ends this ends the part that runs, too, which else would hold the device for as long as it may take.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    try:
        return check(given)
    except KeyboardInterrupt:
        print(f"\ncut off; what ended is in {out_folder(given) / 'log.jsonl'}: call again to go on")
        return 2


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
