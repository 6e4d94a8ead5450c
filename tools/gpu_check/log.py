"""The log of what ran on GPUs: a line of JSON for each part that ended, so that runs of different days and commits add up."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.gpu_check import sources
from tools.neutral_paths import neutral

ROOT = sources.ROOT
PATH = ROOT / "benchmarks" / "results" / "gpu" / "log.jsonl"
COMMIT_VARIABLE = "GPU_CHECK_COMMIT"
CUT_OFF = "cut off"
"""The state of a part that something else than its own limit ended: its figures are what it wrote until then."""
STATES = ("pass", "fail", "not run", CUT_OFF)
_BEGUN = ".begun.jsonl"
Row = dict[str, Any]
"""`written` (UTC), `commit`, `card`, `kind` (as which the machine was asked for), `torch`, `triton`, `part`, `options`, `state`
(see `STATES`), `seconds`, `detail`, `figures`, and `sources`: path -> digest of the files that the part ran (see `sources`; in
a line of the file by folder), None if that is not known."""


def commit() -> str | None:
    """As git describes it. Where there is no git or no history: as the environment says, which may know."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT_VARIABLE) or None
    return done.stdout.strip() or None


def append(path: Path, row: Row) -> None:
    """Add a line. It names no path of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = {"written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **neutral(row)}
    if stamped.get("sources") is not None:
        stamped["sources"] = sources.nested(row["sources"])
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the one before was cut off, which must not take this one along
                file.write(b"\n")
        file.write(json.dumps(stamped, default=str).encode() + b"\n")


def read(path: Path) -> list[Row]:
    """The lines there are; those that `unreadable` names are passed over."""
    return [row for row in map(_row, _lines(path)) if row is not None]


def merged(*paths: Path) -> list[Row]:
    """The lines of several logs by the time of writing, each once."""
    found = {path: read(path) for path in paths}
    rows: list[Row] = []
    for row in sorted(
        (row for rows in found.values() for row in rows), key=lambda row: str(row.get("written"))
    ):
        if row not in rows:
            rows.append(row)
    return rows


def unreadable(path: Path) -> list[int]:
    """Numbers, from 1, of lines that were cut off or are none of this log's."""
    return [number for number, line in enumerate(_lines(path), 1) if _row(line) is None]


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
        if not isinstance(row["part"], str) or row.get("state") not in STATES:
            return None
        row["figures"] = dict(row.get("figures") or {})
        folders = row.get("sources")
        row["sources"] = None if folders is None else sources.flat(folders)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return dict(row)


def passed(rows: Iterable[Row], about: Mapping[str, Any], root: Path = ROOT) -> Row | None:
    """The last line of a part that passed as it would run now: the same part, card, torch, triton and options, and none of the
    files that it ran has changed. None if there is none."""
    same = ("part", "card", "torch", "triton", "options")
    found = [
        row
        for row in rows
        if row["state"] == "pass"
        and all(row.get(one) == about[one] for one in same)
        and row["sources"]
        and not sources.changed(row["sources"], root)
    ]
    return found[-1] if found else None


def newest(rows: Iterable[Row], part: str, card: str | None = None) -> Row | None:
    """The last line of a part that passed, on a card of this name if one is given, whatever its sources are now."""
    found = [
        row
        for row in rows
        if (row["part"], row["state"]) == (part, "pass") and card in (None, row.get("card"))
    ]
    return found[-1] if found else None


# -- a part that runs --------------------------------------------------------------------------------------------------------


def begin(folder: Path, row: Row) -> Path:
    """The file beside the log to which a part that begins appends its figures; its first line is what is known of the part. It is
    removed when the part's own line is written: what is left is of a call that was killed (see `salvage`)."""
    path = folder / f"{row['part']}{_BEGUN}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, default=str) + "\n", "utf-8")
    return path


def figures_of(begun: Path) -> dict[str, Any]:
    """What a part wrote until now; a line that was cut off is passed over."""
    found: dict[str, Any] = {}
    for line in begun.read_text("utf-8", errors="replace").splitlines()[1:]:
        try:
            found.update(json.loads(line))
        except (ValueError, TypeError):
            continue
    return found


def ended(folder: Path, part: str) -> None:
    """The part has its line."""
    (folder / f"{part}{_BEGUN}").unlink(missing_ok=True)


def left_over(folder: Path) -> list[Row]:
    """A line, "cut off", for each part that a call began and that nothing ended, from the files that `begin` made."""
    rows = []
    for begun in sorted(folder.glob(f"*{_BEGUN}")):
        try:
            row = dict(json.loads(begun.read_text("utf-8", errors="replace").partition("\n")[0]))
        except (ValueError, TypeError):
            row = {}  # cut off itself
        row |= {"part": begun.name.removesuffix(_BEGUN), "state": CUT_OFF, "seconds": None, "sources": None}
        rows.append(row | {"detail": "the call ended before the part did", "figures": figures_of(begun)})
    return rows


def salvage(folder: Path) -> list[str]:
    """Append what is left over to the log of the folder; the parts' names."""
    rows = left_over(folder)
    for row in rows:
        append(folder / "log.jsonl", row)
        ended(folder, row["part"])
    return [row["part"] for row in rows]
