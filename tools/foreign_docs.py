"""docs/foreign-flags.md: flags that change nothing or have no counterpart, and variables, from `server/settings/foreign/`.

`python -m tools.foreign_docs write|check`. Flags of vLLM and llama.cpp that have a counterpart stand in docs/migrate.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from server.settings.foreign import llama_cpp, others, vllm
from server.settings.foreign.rows import Row
from server.settings.foreign.variables import LLAMA_CPP, TGI, VLLM, Advice, advice_of_flags
from tools.generated_page import run
from tools.migrate_docs import table, used, variables

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "foreign-flags.md"

INTRODUCTION = """# Flags and variables of other servers

```console
$ cohort serve --swap-space 4 --uds cohort.sock --cpu-offload-gb 4
cohort: error: 2 unknown flags: --uds (not supported yet); --cpu-offload-gb (not supported; weights and keys and values stay on \
the device; see --quantization and --kv-cache-dtype)
```

Flags of vLLM and llama.cpp with a counterpart here are in [Migrate](migrate.md). A flag that changes nothing is left out with a
warning in the log, and so is one that asks for what the server does anyway: `--task generate`, `--cpu-offload-gb 0`,
`--no-enable-sleep-mode`. Every other flag ends the start with exit code 2; one line names all of them. The tables list the
flags of vLLM 0.33 and of llama.cpp's server, and some older ones. This page is made by `make api-docs` from the tables that
give these answers.
""".replace(" \\\n", " ")


def main(argv: Sequence[str]) -> int:
    """Write the page, or say that it is stale (exit code 1)."""
    return run("foreign_docs", argv, PAGE, lambda old: page())


def page() -> str:
    """docs/foreign-flags.md."""
    ignored, refused = "why it changes nothing", "why not, and what to do"
    parts = [
        INTRODUCTION.rstrip(),
        "## vLLM", grouped(ignored, vllm.IGNORED), grouped(refused, vllm.REFUSED),
        "## llama.cpp", grouped(ignored, llama_cpp.IGNORED), grouped(refused, llama_cpp.REFUSED),
        "## SGLang and others", used(others.SGLANG), "Text Generation Inference, and common spellings:",
        used(others.HABIT), grouped(ignored, others.IGNORED), grouped(refused, others.REFUSED),
        "## Environment variables",
        "Each that is set is a warning in the log, with its value in place. [Migrate](migrate.md#environment-variables) has API "
        "keys, and [those of Ollama](migrate.md#ollama). Other variables with the prefixes `VLLM_`, `SGLANG_`, `LLAMA_ARG_` and "
        "`OLLAMA_` have no effect, and the warning says so.",
        variables(VLLM),
        variables({**_of_settings(advice_of_flags()), **LLAMA_CPP}),
        "Variables of Text Generation Inference have no prefix: they count as its own where `MODEL_ID` is set.",
        variables(TGI),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def grouped(head: str, rows: Iterable[Row]) -> str:
    """A table of flags by the reason why they change nothing or are refused."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.answer, []).extend(row.names)
    return table(f"| flag | {head} |", groups)


def _of_settings(advice: Mapping[str, Advice]) -> dict[str, Advice]:
    """Those variables for which there is something to use."""
    return {name: words for name, words in advice.items() if not str(words).startswith("leave it out")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
