"""`python -m tools.first_minutes`: run README's first screen, record it, and judge it.

    --here          in this checkout, without the clone; otherwise with a fresh clone of --source in an empty folder
    --within 90     seconds from the first command to the first answer
    --silence 2     seconds without a sign of life
    --cast, --report   files to write

Exit code 1 where a command fails, an answer is of another kind than README's, a silence is longer or the first answer is later.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.first_minutes import report, screen
from tools.first_minutes.session import judge, play

ROOT = Path(__file__).resolve().parents[2]
_ADDRESS = "https://.../cohort"
"""The project's address in README; git is told where it lies."""
_PORT = 8000
_SHOWN = 40
"""Lines of each command's output in a log."""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--source", type=Path, default=ROOT)
    parser.add_argument("--within", type=float, default=90.0)
    parser.add_argument("--silence", type=float, default=2.0)
    parser.add_argument("--cast", type=Path)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if _in_use(_PORT):
        sys.exit(f"Something listens on port {_PORT}, which README's commands use: end it first.")
    commands = screen.commands(screen.first_screen((ROOT / "README.md").read_text("utf-8")))
    if options.here:
        commands = [command for command in commands if not command.text.startswith("git clone ")]
    commit = _commit(options.source)
    mirror = sys.stdout if sys.stdout.isatty() else None
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as empty:
        session = play(commands, ROOT if options.here else Path(empty), _environment(options.source), mirror)
    faults = judge(session, options.silence, options.within)
    limits = {"first_answer": options.within, "silence": options.silence}
    result = report.summary(session, faults, limits, commit)
    if options.cast:
        report.write_cast(session, options.cast)
    if options.report:
        options.report.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if mirror is None:
        for done in session.done:
            print(f"$ {done.command.text}", *done.output.splitlines()[-_SHOWN:], sep="\n")
    for done in session.done:
        text = done.command.text.splitlines()[0]
        print(f"{done.seconds:6.1f} s, silent for at most {done.longest_silence:.1f} s   {text[:80]}")
    print(f"First answer after {result['first_answer_s']} s: {session.answer}")
    print(*(f"FAULT: {fault}" for fault in faults), sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


def _environment(source: Path) -> dict[str, str]:
    """This process's, without what is Python's own business here, and with git's knowledge of the address."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    git = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{source.resolve().as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": _ADDRESS,
    }
    return {**inherited, **git, "TERM": "xterm-256color"}


def _commit(source: Path) -> str:
    command = ["git", "-C", str(source), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
