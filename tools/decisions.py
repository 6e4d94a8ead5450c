"""Write docs/decisions/README.md, the index of the decisions by room and by status, and check each decision's head.

`python -m tools.decisions write|check`. A decision is docs/decisions/NNNN-title.md; its head is

    # NUMBER. TITLE

    Room: `FOLDER` · Status: STATUS

A status is "accepted", "amended by NUMBERS", "superseded by NUMBERS" or "code removed by NUMBERS"."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.generated_page import run

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
_HEAD = re.compile(r"# (\d+)\. (.+)\n\nRoom: `([^`]+)` · Status: (.+)\n\n")
_STATUS = re.compile(r"accepted|(?:amended|superseded|code removed) by \d+(?:(?:, | and | to )\d+)*")

_ABOVE = """# Decisions

Each says in about ten lines what was chosen, why, and what was measured. `python -m tools.decisions write` makes this index.
A decision is not rewritten when another takes its place: its status names the other.
"""


@dataclass(frozen=True)
class Decision:
    """A decision's head. `file` is its name inside docs/decisions/."""

    number: int
    title: str
    room: str
    status: str
    file: str

    @property
    def in_force(self) -> bool:
        return self.status == "accepted" or self.status.startswith("amended")


def read(path: Path) -> Decision:
    """Return the head of a decision. Raises ValueError where it is not as this module describes it."""
    head = _HEAD.match(path.read_text("utf-8"))
    if head is None:
        raise ValueError(
            f"{path.name}: the head is not '# NUMBER. TITLE', an empty line, 'Room: ... · Status: ...'"
        )
    number, title, room, status = int(head[1]), *head.groups()[1:]
    if not path.name.startswith(f"{number:04}-"):
        raise ValueError(f"{path.name}: the file is not named by its number, {number:04}")
    if not (ROOT / room).is_dir():
        raise ValueError(f"{path.name}: there is no room {room}")
    if not _STATUS.fullmatch(status):
        raise ValueError(f"{path.name}: no such status: {status}")
    return Decision(number, title, room, status, path.name)


def decisions(folder: Path = FOLDER) -> list[Decision]:
    """Return all decisions by number. Raises ValueError for a bad head, a number used twice, and a status that names none."""
    every = [read(path) for path in sorted(folder.glob("[0-9]*.md"))]
    numbers = {each.number for each in every}
    if len(numbers) != len(every):
        raise ValueError("two decisions have one number")
    for each in every:
        for other in map(int, re.findall(r"\d+", each.status)):
            if other not in numbers:
                raise ValueError(f"{each.file}: the status names decision {other}, which does not exist")
    return every


def _row(each: Decision) -> str:
    note = "" if each.status == "accepted" else f" ({each.status})"
    return f"- {each.number}. [{each.title}]({each.file}){note}"


def index(every: Iterable[Decision]) -> str:
    """Return the page: decisions in force by room, then the others."""
    rooms: dict[str, list[str]] = defaultdict(list)
    others = []
    for each in every:
        if each.in_force:
            rooms[each.room].append(_row(each))
        else:
            others.append(_row(each))
    parts = [_ABOVE]
    parts += [f"## {room}\n\n" + "\n".join(rows) + "\n" for room, rows in sorted(rooms.items())]
    parts.append("## No longer in force\n\n" + "\n".join(others) + "\n")
    return "\n".join(parts)


def main(argv: Sequence[str]) -> int:
    try:
        page = index(decisions())
    except ValueError as e:
        print(f"docs/decisions: {e}", file=sys.stderr)
        return 1
    return run("decisions", argv, INDEX, lambda _: page, cure="python -m tools.decisions write")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
