"""`make gpu-history`: the course of each figure over the log, part by part.

    python -m tools.gpu_check.history [--part NAME ...] [--all] [--log FILE]

Of each line: when, on which card and commit, how it ended, targets that were missed, and whether the files that it ran are those
of this tree; then a row for each figure, with a column for each line. Figures of mappings are left out without --all.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import Options
from tools.gpu_check import log, sources
from tools.gpu_check.log import Row
from tools.gpu_check.parts import AGAIN, DEVICE, PARTS

NOW, SINCE, UNKNOWN = "as it is now", "changed since", "not known"
OWN = "its own"
_NAMED = 3
"""Files that are named of those that changed."""
_WIDE, _COLUMNS = 44, 8
"""Characters of a figure's name, and lines whose figures stand side by side: the newest ones."""


def shown(value: float) -> str:
    """A number as a page or a table says it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def code(row: Row, root: Path = sources.ROOT) -> tuple[str, list[str]]:
    """Whether the files that a line's part ran are those of this tree: `NOW`, `SINCE`, or `UNKNOWN` where the line names none;
    and those that are not."""
    if not row["sources"]:
        return UNKNOWN, []
    changed = sources.changed(row["sources"], root)
    return (SINCE, changed) if changed else (NOW, [])


def numbers(figures: Mapping[str, Any], deep: bool = True, path: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by name, those of mappings in them with dots."""
    for name, value in figures.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{name}", value
        elif deep and isinstance(value, Mapping):
            yield from numbers(value, deep, f"{path}{name}.")


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Targets that were not reached, each with what was found; of a part that names none, that it missed its own."""
    targets = figures.get("targets") or {}
    named = [
        f"{of}: {shown(one['found'])} of {shown(one['target'])}"
        for of, one in targets.items()
        if not one.get("reached")
    ]
    return named or ([OWN] if figures.get("reached") is False else [])


def unusual(row: Row) -> list[str]:
    """Options of a line that are not those of a call on a GPU: its figures are not what the part's name says."""
    usual, options = asdict(Options()), row.get("options") or {}
    return [f"{name} {value}" for name, value in options.items() if value != usual.get(name)]


def title(number: int, row: Row, root: Path) -> Iterator[str]:
    """The lines that say what a line of the log is."""
    seconds = "" if row.get("seconds") is None else f", {row['seconds']:.1f} s"
    about = (
        row.get("written") or "undated",
        row.get("card") or "unknown card",
        row.get("commit") or "unknown commit",
    )
    yield f"  ({number}) {'  '.join(map(str, about))}  {row['state']}{seconds}"
    if row.get("detail"):
        yield f"      {row['detail']}"
    if other := unusual(row):
        yield f"      as asked: {', '.join(other)}"
    state, files = code(row, root)
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    yield f"      code: {state}" + (f": {', '.join(files[:_NAMED])}{more}" if files else "")
    for target in missed(row["figures"]):
        yield f"      target missed: {target}"
    if row["figures"].get("fell_back"):
        yield f"      the slow way: {row['figures']['fell_back']}"


def block(part: str, what: str, rows: Sequence[Row], deep: bool, root: Path = sources.ROOT) -> str:
    """All that the log has of a part."""
    lines = [f"{part}: {what}"]
    for number, row in enumerate(rows, 1):
        lines += title(number, row, root)
    first = max(0, len(rows) - _COLUMNS)
    columns = [dict(numbers(row["figures"], deep)) for row in rows[first:]]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if names:
        lines.append(
            " " * (_WIDE + 2) + "".join(f"{f'({number})':>12}" for number in range(first + 1, len(rows) + 1))
        )
    for name in names:
        cells = (shown(column[name]) if name in column else "-" for column in columns)
        lines.append(f"  {name:{_WIDE}}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def report(path: Path, chosen: Sequence[str] = (), deep: bool = False, root: Path = sources.ROOT) -> str:
    """The whole text for a log, in the order of the parts; behind it what was never run, and lines that cannot be read."""
    rows = [*log.read(path), *log.left_over(path.parent)]
    known = {part.name: part.what for part in (DEVICE, *PARTS) if part.name != AGAIN}
    names = list(dict.fromkeys([*known, *(row["part"] for row in rows)]))
    blocks = []
    for name in names:
        own = [row for row in rows if row["part"] == name]
        if own and name in (chosen or names):
            blocks.append(block(name, known.get(name, "no part of this tree"), own, deep, root))
    ran = {row["part"] for row in rows}
    ended = {row["part"] for row in rows if row["state"] in ("pass", "fail")}
    ends = (
        [f"never run: {', '.join(never)}"] if (never := [name for name in known if name not in ran]) else []
    )
    if broken := [name for name in known if name in ran - ended]:
        ends.append(f"never run to the end: {', '.join(broken)}")
    if wrong := log.unreadable(path):
        ends.append(f"lines that cannot be read: {', '.join(map(str, wrong))} of {path.name}")
    return "\n\n".join((*blocks, *(["\n".join(ends)] if ends else [])))


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--part", nargs="+", default=[], metavar="NAME", help="these parts alone")
    parser.add_argument("--all", action="store_true", help="also figures of mappings, as of each kernel")
    parser.add_argument(
        "--log", type=Path, default=log.PATH, help="default: benchmarks/results/gpu/log.jsonl"
    )
    given = parser.parse_args(argv)
    print(report(given.log, given.part, given.all))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, and nothing is wrong
    sys.exit(main())
