"""One part as a process of its own: what it does, a crash or a hang, ends it alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.gpu_check.plan import ROOT, Options, Part
from tools.gpu_check.record import Outcome, State

_TAIL = 2000
"""Characters of a failed part's log that are kept with its outcome."""
_STUCK = 5.0


def environment(options: Options, packages: Path | None) -> dict[str, str]:
    """Of a part and of what it starts: `packages` is a folder of what this Python lacks."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    paths = [str(ROOT), *([str(packages)] if packages else []), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env.update(PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    env.pop("TRITON_INTERPRET", None)
    if options.device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    return env


class Launcher:
    """A `Launch`. What a part prints goes to NAME.log in `folder`, what it found to NAME.json there."""

    def __init__(self, options: Options, folder: Path, env: Mapping[str, str]) -> None:
        self._options, self._folder, self._env = options, folder, env

    def __call__(self, part: Part, allowed: float) -> Outcome:
        """See `Launch`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found, log = (self._folder / f"{part.name}.{ending}" for ending in ("json", "log"))
        found.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "benchmarks.gpu.part_process", part.target, "--found", str(found),
            "--limit", str(allowed), *self._options.arguments(),
        ]  # fmt: skip
        began = time.monotonic()
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, cwd=ROOT, env=dict(self._env), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
            code = _wait(process, allowed)
        seconds = time.monotonic() - began
        return outcome_of(code, _read(found), seconds, _tail(log))


def _wait(process: subprocess.Popen[bytes], allowed: float) -> int | None:
    """The exit code, None for a process that was killed because its time was over."""
    try:
        return process.wait(allowed)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also after a good end: nothing that it started may hold the device. Executors die with the socket of their parent.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # stuck in a driver: it ends when the driver lets it
            process.wait(_STUCK)


def outcome_of(code: int | None, found: dict[str, Any], seconds: float, tail: str) -> Outcome:
    """What a process left behind, as an outcome. What it says of itself counts only if it ended by itself."""
    figures = found.get("figures", {})
    if code is None:
        return Outcome(State.FAIL, seconds, f"killed after {seconds:.0f} s, its limit\n{tail}", figures)
    if code == 0 and found.get("state") == "pass":
        return Outcome(State.PASS, seconds, found.get("detail", ""), figures)
    if code == 0 and found.get("state") == "not run":
        return Outcome(State.NOT_RUN, seconds, found.get("detail", ""), figures)
    why = found.get("detail") or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
    return Outcome(State.FAIL, seconds, f"{why}\n{tail}", figures)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tail(log: Path) -> str:
    return log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip()
