"""The table of model families in docs/models.md, made from what the parity tests measured.

`python -m tools.parity write` rewrites the table from the last report of `make test` (or of the tests named in
tests/executors/llm/model/test_parity.py alone). `python -m tools.parity check` fails when the table lacks a family that the
executor supports, or names one that it does not; with a report at hand, also when a way was not measured.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from executors.llm.model.families import FAMILIES

PAGE = "docs/models.md"
BEGIN, END = "<!-- parity:begin -->", "<!-- parity:end -->"
WAYS = ("whole", "chunked", "mixed", "greedy")
TRAINED = ("llama", "gemma3", "qwen3")
"""Families of which trained weights are compared with transformers, too: SmolLM2 and Gemma 3 270M by
`make test-external ONLY=real`, cohort-tiny by tests/server/commands/test_verify.py. No package index has trained weights of the
others."""
Measured = Mapping[str, Mapping[str, list[float]]]
"""Family -> way -> the largest difference of each shape."""


def measured(*reports: Path) -> Measured:
    """What the tests recorded; failed tests count with nothing."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in (one for report in reports for one in ElementTree.parse(report).iter("testcase")):
        if case.find("failure") is not None or case.find("error") is not None:
            continue
        for entry in case.iter("property"):
            if entry.get("name") == "parity":
                family, way, difference = (entry.get("value") or "").split()
                found[family][way].append(float(difference))
    return found


def table(results: Measured) -> str:
    """The table in markdown. Raises ValueError when a family was not measured in one of the ways."""
    missing = list(_missing(results))
    if missing:
        raise ValueError("; ".join(missing))
    lines = [
        "| family | architecture | shapes | whole | chunks of 1-7 | mixed batch of 16 | greedy, 64 tokens | "
        "trained weights compared |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        ways = results[family.name]
        differences = " | ".join(f"{max(ways[way]):.0e}" for way in WAYS[:3])
        architectures = ", ".join(f"`{name}`" for name in family.architectures)
        trained = "yes" if family.name in TRAINED else "no"
        lines.append(
            f"| {family.name} | {architectures} | {len(ways['whole'])} | {differences} | equal | {trained} |"
        )
    return "\n".join(lines)


def _missing(results: Measured, ways: Sequence[str] = WAYS) -> Iterator[str]:
    for family in FAMILIES:
        for way in ways:
            if not results.get(family.name, {}).get(way):
                yield f"{family.name}: not measured {way}"


def _split(page: str) -> tuple[str, str, str]:
    before, found, rest = page.partition(BEGIN)
    inside, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"docs/models.md has no {BEGIN} ... {END}")
    return before + BEGIN, inside, END + after


def problems(root: Path) -> Iterator[str]:
    """Everything wrong with the table of the checkout `root`, a line each."""
    _, inside, _ = _split((root / PAGE).read_text("utf-8"))
    shown = set(re.findall(r"^\| (\w+) \| `", inside, re.MULTILINE))
    known = {family.name for family in FAMILIES}
    yield from (f"{name}: in the parity table, but not supported" for name in sorted(shown - known))
    yield from (f"{name}: not in the parity table; make parity" for name in sorted(known - shown))
    report = root / ".reports/junit-all.xml"
    if report.exists() and (results := measured(report)):
        # A short run has greedy texts of some families only.
        yield from _missing(results, WAYS[:3])


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    root = Path(__file__).resolve().parent.parent
    if argv == ["check"]:
        found = list(problems(root))
        print("\n".join(found) or "parity: the table is complete")
        return 1 if found else 0
    if argv != ["write"]:
        print(__doc__)
        return 2
    page = root / PAGE
    before, _, after = _split(page.read_text("utf-8"))
    page.write_text(f"{before}\n{table(measured(root / '.reports/junit.xml'))}\n{after}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
