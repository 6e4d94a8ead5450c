"""Times candidates for the kernels' table on the GPU at hand, and prints the rows that are faster.

    python -m tools.gpu_tune [--seconds 30] [--jobs 8] [--only decode_attention] [--out FILE] [--device cpu --tiny]

The rows belong into `_ARCHITECTURES` of executors/kernels/triton/tuning.py. Candidates are compiled before, in processes beside
each other, and time that runs out leaves the later ones untried. Nothing is changed: a row is taken by hand, with its figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.neutral_paths import neutral

if TYPE_CHECKING:
    from benchmarks.gpu.tuning import Trial

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / ".reports" / "gpu-tune.json"
COMPILING = 0.5
"""Share of the time for compilation."""


def row_text(key: Sequence[Any], choice: Any) -> str:
    """Return a line for the table."""
    kinds = {"half": "HALF", "e4m3": "E4M3", "int8": "INT8", "float32": "FLOAT32"}
    kernel, kind, shape = key
    numbers = ", ".join(
        f"{one.name}={getattr(choice, one.name)}" for one in fields(choice) if getattr(choice, one.name)
    )
    return f"({json.dumps(kernel)}, {kinds.get(kind, json.dumps(kind))}, {json.dumps(shape)}): Choice({numbers}),"


def tune(place: Any, only: str, until: float, clock: Callable[[list[Any]], float]) -> dict[str, Any]:
    """Return `rows` that are faster, with microseconds before and after, and numbers of candidates: `tried`, `wrong` with the
    reason, `untried` because the time was up."""
    from benchmarks.gpu.tuning import all_tuned, attempt, best, gain

    report: dict[str, Any] = {"rows": [], "tried": 0, "wrong": [], "untried": 0}
    for tuned in all_tuned(place):
        if only not in tuned.key[0]:
            continue
        works = tuned.works() if time.monotonic() < until else []
        trials: list[Trial] = []
        for choice in tuned.candidates:
            if time.monotonic() >= until:
                report["untried"] += len(tuned.candidates) - len(trials)
                break
            trials.append(attempt(choice, tuned, works, clock))
        if not trials:
            continue
        report["tried"] += len(trials)
        report["wrong"] += [
            {"key": list(tuned.key), "choice": asdict(one.choice), "why": one.fault}
            for one in trials
            if one.fault
        ]
        if trials[0].fault:
            continue
        chosen = best(trials)
        report["rows"].append(
            {
                "key": list(tuned.key),
                "choice": asdict(chosen.choice),
                "changed": chosen is not trials[0],
                "us": [1e6 * one for one in chosen.seconds],
                "us_before": [1e6 * one for one in trials[0].seconds],
                "gain": gain(chosen, trials[0]),
                "row": row_text(tuned.key, chosen.choice),
            }
        )
    return report


def compile_share(place: Any, only: str, number: int, jobs: int, until: float) -> None:
    """Run each `jobs`-th candidate once, from that `number` on: what it compiles stays in Triton's cache on disk."""
    from benchmarks.gpu.tuning import all_tuned, attempt

    index = 0
    for tuned in all_tuned(place):
        works = None
        for choice in tuned.candidates if only in tuned.key[0] else ():
            index += 1
            if index % jobs != number or time.monotonic() >= until:
                continue
            works = tuned.works() if works is None else works
            attempt(choice, tuned, works, lambda calls: 0.0)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="the smallest shapes: shows that the program works, no more"
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile (default: %(default)s)")
    parser.add_argument("--only", default="", help="kernels whose name has this in it")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    began = time.monotonic()
    if options.device == "cpu":
        from benchmarks.gpu import interpreted

        interpreted.prepare()
    import torch

    from benchmarks.gpu.tuning import Place
    from executors.kernels.triton.tuning import architecture

    device = torch.device(options.device)
    place = Place(device, torch.float32 if device.type == "cpu" else torch.bfloat16, options.tiny)
    with torch.inference_mode():
        if options.compile is not None:
            until = began + COMPILING * options.seconds
            compile_share(place, options.only, options.compile, options.jobs, until)
            return 0
        if device.type != "cpu":
            _compile_beside(options, argv)
        from benchmarks.gpu.timing import seconds_of

        report = tune(place, options.only, began + options.seconds, lambda calls: seconds_of(calls, device))
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    report = {"device": name, "architecture": architecture(), "tiny": options.tiny, **report}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(neutral(report), indent=1) + "\n", "utf-8")
    _show(report)
    return 0 if report["rows"] else 1


def _compile_beside(options: argparse.Namespace, argv: Sequence[str] | None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    limit = COMPILING * options.seconds + 5
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tools.gpu_tune", *arguments, "--compile", str(number)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        for number in range(options.jobs)
    ]
    until = time.monotonic() + limit
    for worker in workers:
        try:
            worker.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _show(report: dict[str, Any]) -> None:
    print(
        f"{report['device']}, architecture {report['architecture']}: {report['tried']} candidates tried, "
        f"{len(report['wrong'])} wrong or too large, {report['untried']} untried"
    )
    for one in report["rows"]:
        times = ", ".join(
            f"{before:.1f} -> {now:.1f}" for before, now in zip(one["us_before"], one["us"], strict=True)
        )
        kept = f"{one['gain']:.0%} less" if one["changed"] else "stays"
        print(f"    {one['row']}  # {times} us, {kept}")


if __name__ == "__main__":
    sys.exit(main())
