"""A part as a process of its own, whose crash or hang ends it alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu.part import ABSENT, FIGURES, LIMIT, Options
from tools.gpu_check import log, sources
from tools.gpu_check.log import ROOT, Row
from tools.gpu_check.parts import GpuPart
from tools.neutral_paths import neutral

EACH_END = 100_000
"""Bytes of an output that are kept of its beginning, and as many of its end."""
_STUCK = 5.0
_SECTION = re.compile(r"^======== (\S+) ========\n", re.MULTILINE)


def run(
    part: GpuPart, options: Options, work: Path, env: Mapping[str, str], allowed: float, figures: Path
) -> Row:
    """Run a part for at most `allowed` seconds. What it prints goes to NAME.log in `work`, its figures are appended to the file
    `figures` (see `log.begin`). Returns `state`, `seconds`, `detail`, `figures` and `sources`, of a part that was killed, too."""
    work.mkdir(parents=True, exist_ok=True)
    modules, output = work / f"{part.name}.modules", work / f"{part.name}.log"
    modules.unlink(missing_ok=True)
    command = [sys.executable, *part.command, *options.arguments()]
    env = {**env, FIGURES: str(figures), LIMIT: str(allowed), sources.VARIABLE: str(modules)}
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
        "figures": log.figures_of(figures),
        "sources": sources.of_modules(modules, part.beside),
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


def environment(options: Options, packages: Path | None) -> dict[str, str]:
    """Of a part and of what it starts. `packages`: a folder of what this Python lacks."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    first = [str(sources.RECORDER), str(ROOT), *([str(packages)] if packages else [])]
    paths = [*first, env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env.update(PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    env.pop("TRITON_INTERPRET", None)
    if options.device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    return env


def ends_of(output: Path) -> str:
    """The beginning and the end of a part's output, for a machine that is gone when it is wanted."""
    data = output.read_bytes()
    left_out = len(data) - 2 * EACH_END
    if left_out > 0:
        data = data[:EACH_END] + f"\n.... {left_out:,} bytes are left out ....\n".encode() + data[-EACH_END:]
    return str(neutral(data.decode("utf-8", "replace")))


def keep_evidence(path: Path, part: str, said: str) -> None:
    """Write what a part said, below a line with its name, in place of what the file has of it; "": only take that away. A file
    that has nothing of any part is removed."""
    text = path.read_text("utf-8") if path.exists() else ""
    _, *cut = _SECTION.split(text)
    sections = dict(zip(cut[::2], cut[1::2], strict=True))
    sections.pop(part, None)
    if said:
        sections[part] = said if said.endswith("\n") else f"{said}\n"
    if not sections:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"======== {name} ========\n{one}" for name, one in sections.items()), "utf-8")
