"""docs/settings.md from the settings table: `python -m tools.settings_docs write|check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from server.settings.kinds import Setting
from server.settings.table import CONFIG, TABLE
from tools.generated_page import run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
HEAD = "| Flag, variable | Type | Default | Meaning |\n|---|---|---|---|"

INTRODUCTION = f"""# Settings

```console
$ cohort serve --max-num-seqs 128
$ COHORT_MAX_NUM_SEQS=128 cohort serve
$ echo 'max_num_seqs: 128' > my.yaml && cohort serve --config my.yaml
```

The three commands do the same. Every setting has one name in three spellings: a flag, an environment variable with the prefix
`COHORT_`, and a key of a YAML file, which is the long flag with underscores. Flags take precedence over the environment, and
the environment over the file. After an unknown name or an invalid value, the server prints one line and ends with exit code 2.

- The file is named by `{CONFIG.flag}` or `{CONFIG.variable}`: a path, or one of the presets `default`, `cpu` and `gpu`. Without a
  file and without a model, the server reads the preset `default`.
- The file is read by the core schema of YAML 1.2: `010` is ten, `12:30` and `on` are strings, and a key that stands twice is an
  error. A key without a value counts as one that is not there. Names may have dashes, as in files of vLLM; flags of other servers
  that change nothing are left out with a warning.
- An empty variable counts as one that is not set, as `COHORT_PORT=${{PORT:-}}` in a compose file means it. The exceptions are the
  variables of `--api-key`, `--api-key-file` and `--metrics-key`: an empty one ends the start, for the server would stand open.
- Variables of other servers are warnings with the setting to use; their API keys
  [are in force](migrate.md#environment-variables).
- A switch is `--name` or `--no-name` as a flag, and `true` or `false` elsewhere.
- A flag for several strings is given several times. A variable has commas between the strings, a file a list.
- A whole number may have a unit, as in vLLM: `32k` is 32 000, `32K` is 32 768, `2.5k` is 2500.
- A size in bytes may have a unit: `4GiB` is 2^32 bytes, `4GB` or `4G` is 4 000 000 000.
- Variables that Kubernetes sets for a Service named `cohort`, such as `COHORT_PORT=tcp://10.0.0.1:8000`, are ignored, with a line
  in the log.

`cohort info`, `cohort verify`, `cohort chat` and `cohort list` take some of these flags, with the same meaning.

This page is made from `server/settings/table.py` by `make api-docs`. [Operate](operate.md) explains what the settings
do to a running server.
"""


def main(argv: Sequence[str]) -> int:
    """Write the page, or say that it is stale (exit code 1)."""
    return run("settings_docs", argv, PAGE, lambda old: page())


def page() -> str:
    """docs/settings.md."""
    lines = [INTRODUCTION.rstrip()]
    for row in TABLE.values():
        if row.opens:
            lines += ["", f"## {row.opens}", "", HEAD]
        lines.append(table_line(row))
    return "\n".join(lines) + "\n"


def table_line(row: Setting) -> str:
    """The line of one setting."""
    flags = f"`{row.flag}`" + (f", `--no-{row.flag.removeprefix('--')}`" if row.is_switch else "")
    cells = (f"{flags}<br>`{row.variable}`", row.kind, escaped(row.default_text) or "none", escaped(row.help))
    return f"| {' | '.join(cells)} |"


def escaped(words: str) -> str:
    """Prose of `--help` as Markdown: a `*` or `_` is no emphasis, and a `<` no tag."""
    return "".join(f"\\{one}" if one in "*_<|" else one for one in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
