"""Tables whose first column can be copied: a name or path is never cut or folded, however narrow the terminal is.

MODEL                      FORMAT                  SIZE  CONTEXT  FROM
SmolLM2-135M-Instruct *    GGUF Q4_1           93.8 MiB    8,192  Cohort
/a/path/that/is/longer/than/the/column/of/names/has/a/line/of/its/own.gguf
                           GGUF Q4_K_M         2.33 GiB   40,960  llama.cpp
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

from server.commands.common import size

_GAP = "  "
_LEAST_NAME = 24
"""Characters of the first column at least."""
MARK = " *"


def show_models(rows: Sequence[dict[str, Any]], why: str) -> None:
    """Print rows of `cohort list`. `why`: the reason for the marked one, empty where there was nothing to choose from."""
    lines = [
        (
            shell_word(row["short"]) + (MARK if row["chosen"] else ""),
            row["format"],
            size(row["size"]),
            f"{row['context']:,}" if row["context"] else "-",
            row["source"],
        )
        for row in rows
    ]
    for line in table(("MODEL", "FORMAT", "SIZE", "CONTEXT", "FROM"), lines, right=(2, 3)):
        print(line)
    print()
    for row in rows:
        if row["problem"]:
            print(f"{shell_word(row['short'])}: {row['problem']}".encode(errors="replace").decode())
    because = f": {why}" if why else ""
    print(f"* what `cohort serve` serves without a name{because}")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = (), least: int = _LEAST_NAME
) -> list[str]:
    """Return lines that are no wider than the terminal unless one cell of the first column is. `right`: columns that end at the
    same place; `least`: characters of the first column at least."""
    cells = [heads, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    rest = sum(widths[1:]) + len(_GAP) * (len(heads) - 1)
    widths[0] = max(least, min(widths[0], shutil.get_terminal_size().columns - rest))
    lines = []
    for row in cells:
        name = row[0]
        if len(name) > widths[0]:
            lines.append(name)
            name = ""
        padded = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip((name, *row[1:]), widths, strict=True))
        ]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def shell_word(name: str) -> str:
    """Return a name as a shell takes it: quoted where it must be, in Bash's $'...' where it could not be typed."""
    if name.isprintable():
        return shlex.quote(name)
    return f"$'{''.join(map(_escaped, name))}'"


def _escaped(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
