"""The tables of docs/migrate.md: of flags and variables from `server/settings/foreign/`, of endpoints from
`server/http/foreign_paths.py`. `python -m tools.migrate_docs write|check`. Other tables of flags: `tools/foreign_docs.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from server.apis.description import OPERATIONS
from server.http.foreign_paths import FOREIGN
from server.settings.foreign import llama_cpp, vllm
from server.settings.foreign.keys import API_KEYS
from server.settings.foreign.rows import Row, filled
from server.settings.foreign.variables import OLLAMA, Advice
from tools.generated_page import run, with_parts

_EXAMPLES = {
    "OLLAMA_HOST": "0.0.0.0:11434", "OLLAMA_KV_CACHE_TYPE": "q8_0", "VLLM_CPU_KVCACHE_SPACE": "40",
    "VLLM_LOGGING_LEVEL": "DEBUG",
}  # fmt: skip
"""Values with which variables are shown whose answer depends on them."""
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "migrate.md"


def main(argv: Sequence[str]) -> int:
    """Write the tables into the page, or say that they are stale (exit code 1)."""
    return run("migrate_docs", argv, PAGE, with_tables)


def tables() -> dict[str, str]:
    """Each generated part of the page, by the name in its markers."""
    return {
        "vllm": used(vllm.USED),
        "llama.cpp": used(llama_cpp.USED),
        "keys": ", ".join(f"`{name}`" for name in API_KEYS),
        "ollama-variables": variables(OLLAMA),
        "endpoints": endpoints(),
    }


def with_tables(page: str) -> str:
    """The page with every generated part rewritten. Raises ValueError if the markers of a part are missing."""
    return with_parts(page, tables())


def used(rows: Iterable[Row]) -> str:
    """A table of flags and their replacements; spellings with the same replacement share a row."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(filled(row.answer, None), []).extend(row.names)
    return table("| flag | use |", groups)


def variables(advice: Mapping[str, Advice]) -> str:
    """A table of variables of another server and what does the same here."""
    groups: dict[str, list[str]] = {}
    for name, words in advice.items():
        answer = filled(words, None) if isinstance(words, str) else words(_EXAMPLES.get(name, "1"))
        groups.setdefault(answer, []).append(f"{name}={_EXAMPLES[name]}" if name in _EXAMPLES else name)
    return table("| variable | use |", groups)


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


def table(head: str, groups: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table of two columns: spellings that share an answer, and the answer."""
    lines = (
        f"| {', '.join(f'`{name}`' for name in names)} | {marked(words)} |" for words, names in groups.items()
    )
    return "\n".join([head, "|---|---|", *lines])


def marked(words: str) -> str:
    """A flag with its value as code, and a sentence that begins otherwise as it stands."""
    is_flag = words.startswith("--") and not re.search(r",| or | and | with |; |: ", words.partition("'{")[0])
    return f"`{words}`" if is_flag or words.startswith("cohort ") else words.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
