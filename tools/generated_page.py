"""What the tools share that write a page of docs/, or parts of one, from the code: `write` and `check`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def run(
    tool: str, argv: Sequence[str], page: Path, made: Callable[[str], str], cure: str = "make api-docs"
) -> int:
    """Run the command `python -m tools.TOOL write|check`; a tool in another place gives its whole name, with dots. `made` returns
    the page's new text from its old one, "" if there is none. `cure` is the command that a stale page is mended with. Returns
    the exit code: 1 if `check` finds the page stale, 2 for other words."""
    if list(argv) not in (["write"], ["check"]):
        module = tool if "." in tool else f"tools.{tool}"
        print(f"usage: python -m {module} write|check", file=sys.stderr)
        return 2
    old = page.read_text("utf-8") if page.exists() else ""
    new = made(old)
    if list(argv) == ["write"]:
        page.write_text(new, "utf-8")
    elif old != new:
        place = f"{page.parent.name}/{page.name}" if page.parent.name == "docs" else page.name
        print(f"{place} is stale: run `{cure}`", file=sys.stderr)
        return 1
    return 0


def with_parts(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` replaced, for each name. Raises
    ValueError if the markers of a part are missing."""
    for name, text in parts.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
        head, found_begin, rest = page.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"no markers {begin.strip()} and {end.strip()}")
        page = f"{head}{begin}{text}\n{end}{tail}"
    return page
