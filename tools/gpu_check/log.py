"""The log of what ran on GPUs: a line of JSON for each part that ended, so that runs of different days and commits add up."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.neutral_paths import neutral

ROOT = Path(__file__).resolve().parents[2]
COMMIT_VARIABLE = "GPU_CHECK_COMMIT"
Row = dict[str, Any]
"""`written` (UTC), `commit`, `card`, `kind` (as which the machine was asked for), `torch`, `triton`, `part`, `digest` of the
code that the part runs, `options`, `state` (pass, fail, not run), `seconds`, `detail`, `figures`."""
_CODE = frozenset((".py", ".cpp", ".h", ".cu"))


def digest(names: Sequence[str], root: Path = ROOT) -> str:
    """Of the code in files and folders, wherever it came from: a machine that computes may have no git."""
    found = hashlib.sha256()
    files = {file for name in names for file in (root / name, *(root / name).rglob("*"))}
    for file in sorted(file for file in files if file.suffix in _CODE and file.is_file()):
        data = file.read_bytes()
        found.update(f"{file.relative_to(root)}\0{len(data)}\0".encode() + data)
    return found.hexdigest()[:16]


def commit() -> str | None:
    """As git describes it. Where there is no git or no history: as the environment says, which may know."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT_VARIABLE)
    return done.stdout.strip() or None


def append(path: Path, row: Row) -> None:
    """Add a line. It names no path of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = {"written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **row}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(neutral(stamped), default=str) + "\n")


def read(path: Path) -> list[Row]:
    """The lines there are; one that was cut off, or is none of this log's, is passed over."""
    rows = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("part"), str):
            rows.append(row)
    return rows


def passed(rows: Iterable[Row], about: Mapping[str, Any]) -> Row | None:
    """The last line of a part that passed as it would run now: the same part, code, card, torch, triton and options. None if
    there is none."""
    same = ("part", "digest", "card", "torch", "triton", "options")
    found = [
        row for row in rows if row.get("state") == "pass" and all(row.get(one) == about[one] for one in same)
    ]
    return found[-1] if found else None
