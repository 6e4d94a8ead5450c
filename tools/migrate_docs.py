"""The tables of docs/migrate.md: of flags from `server/settings/foreign_flags.py`, of endpoints from
`server/http/foreign_paths.py`. `python -m tools.migrate_docs write|check`
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from server.http.foreign_paths import FOREIGN
from server.openapi.operations import OPERATIONS
from server.settings.foreign_flags import ALWAYS_ON, HABIT, LLAMA_CPP, NOT_YET, SGLANG, VLLM
from tools.generated_page import run, with_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "migrate.md"


def main(argv: Sequence[str]) -> int:
    """Write the tables into the page, or say that they are stale (exit code 1)."""
    return run("migrate_docs", argv, PAGE, with_tables)


def tables() -> dict[str, str]:
    """Each generated part of the page, by the name in its markers."""
    return {
        "vllm": replaced_by(VLLM),
        "sglang": replaced_by(SGLANG),
        "llama.cpp": replaced_by(LLAMA_CPP),
        "others": replaced_by(HABIT),
        "always-on": table("| flag | the server's answer |", ALWAYS_ON.items()),
        "not-yet": listed(NOT_YET),
        "endpoints": endpoints(),
    }


def with_tables(page: str) -> str:
    """The page with every generated part rewritten. Raises ValueError if the markers of a part are missing."""
    return with_parts(page, tables())


def replaced_by(flags: Mapping[str, str]) -> str:
    """A table of flags and their replacements; spellings with the same replacement share a row."""
    groups: dict[str, list[str]] = {}
    for flag, instead in flags.items():
        groups.setdefault(instead, []).append(flag)
    rows = (("`, `".join(spellings), instead) for instead, spellings in groups.items())
    return table("| flag | use |", rows)


def endpoints() -> str:
    """A table of paths of other servers and what serves the purpose here. Left out: a path that lacks only our /v1."""
    ours = {operation.path.removeprefix("/v1") for operation in OPERATIONS}
    rows = (
        f"| {', '.join(f'`{path}`' for path in paths)} | {whose} | {_calls(instead)} |"
        for paths, whose, instead in FOREIGN
        if not ours & set(paths)
    )
    return "\n".join(["| path | belongs to | here |", "|---|---|---|", *rows])


def _calls(instead: str | None) -> str:
    """What to use, with calls as code."""
    return "-" if instead is None else re.sub(r"(?:GET|POST) /[\w./]+|'\w+'", r"`\g<0>`", instead)


def table(head: str, rows: Iterable[tuple[str, str]]) -> str:
    """A Markdown table of two columns; the first holds flags."""
    lines = (f"| `{flag}` | {marked(words)} |" for flag, words in rows)
    return "\n".join([head, "|---|---|", *lines])


def listed(flags: Iterable[str]) -> str:
    """A paragraph of flags in alphabetical order."""
    names = sorted(flags, key=lambda flag: (flag.lstrip("-"), flag))
    return textwrap.fill(
        ", ".join(f"`{name}`" for name in names), width=120, break_on_hyphens=False, break_long_words=False
    )


def marked(words: str) -> str:
    """A flag with its value as code, and a sentence that begins otherwise as it stands."""
    return f"`{words}`" if words.startswith("--") and "," not in words else words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
