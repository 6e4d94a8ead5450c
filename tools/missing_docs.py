"""The list of what is missing in docs/not-supported.md, from the rows below: `python -m tools.missing_docs write|check`.

Each row names a test that shows that the thing is refused or absent. A feature that arrives makes its test fail, and `check`
fails for a row whose test is gone, skipped or expected to fail: so no row outlives what it says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import skips
from tools.generated_page import run, with_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "not-supported.md"
_HERE = "tests/server/test_missing.py"


@dataclass(frozen=True, slots=True)
class Missing:
    """One row: what is missing, what there is in its place, and the node id of the test that shows its absence."""

    what: str
    instead: str
    shown_by: str


ROWS = (
    Missing(
        "Images, audio and video in requests",
        "`--unread-parts placeholder` puts a note in their place",
        f"{_HERE}::test_images_audio_and_video",
    ),
    Missing("Training", "serve the result, also as an [adapter](adapters.md)", f"{_HERE}::test_training"),
    Missing(
        "One model over several machines",
        "[replicas](scaling.md) on several machines",
        f"{_HERE}::test_one_model_over_machines",
    ),
    Missing(
        "Weights or KV in the CPU's memory beside a GPU",
        "`--quantization`, `--kv-cache-dtype`",
        f"{_HERE}::test_offload",
    ),
    Missing(
        "A settings change without a restart",
        "a [drain](operate.md) and a new start",
        f"{_HERE}::test_change_without_restart",
    ),
    Missing(
        "`--deterministic` on a GPU",
        "a [CPU](your-model.md#deterministic)",
        "tests/executors/llm/checkpoint/test_missing_on_gpus.py::test_deterministic",
    ),
)


def main(argv: Sequence[str]) -> int:
    """Write the list into the page, or say what is wrong with it (exit code 1)."""
    complaints = list(problems())
    for line in complaints:
        print(line, file=sys.stderr)
    return run("missing_docs", argv, PAGE, lambda old: with_parts(old, {"missing": table()})) or int(
        bool(complaints)
    )


def table() -> str:
    """The rows as a Markdown table."""
    lines = (f"| {row.what} | {row.instead} |" for row in ROWS)
    return "\n".join(["| missing | in its place |", "|---|---|", *lines])


def problems(root: Path = ROOT) -> Iterator[str]:
    """A line for each row whose test does not exist or may not run."""
    for row in ROWS:
        path, _, name = row.shown_by.partition("::")
        file = root / path
        if not file.is_file() or f"def {name}(" not in file.read_text("utf-8"):
            yield f"missing_docs: {row.what}: there is no test {row.shown_by}"
            continue
        yield from (
            f"missing_docs: {row.what}: {row.shown_by} {why}" for why in skips.from_source(root, row.shown_by)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
