"""The table of docs/models.md that says what llama.cpp agrees to: `python -m tests.llamacpp.page write|check`.

`write` takes the figures from the last report of `make test-external ONLY=llamacpp`. It has every shape, or every shape of some
families: rows of the others stay as they are, if they are of the same version of llama.cpp. `check` fails where the table lacks a
family, or names one that there is not, or tells other limits than tests/llamacpp/rows.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.peers import llamacpp
from executors.llm.model.families import FAMILIES, families_of
from executors.llm.model.family import Family
from tests.executors.llm.models import MODEL_CLASSES, SHAPES
from tests.llamacpp.rows import row
from tools.generated_page import with_parts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/models.md"
REPORT = ROOT / ".reports/junit-llamacpp.xml"


@dataclass(frozen=True)
class Reached:
    """What a shape reached: `arch`, the architecture of its file; the largest difference of a logprob in files of `float32` and
    `float16`; `share`, the positions of the latter within 2e-2."""

    arch: str
    float32: float
    float16: float
    share: float


def family_of(name: str) -> Family:
    """Return the family of a shape. Raises ValueError if there is none, or more than one."""
    kind, fields = SHAPES[name]
    nested = fields.get("text_config", {}).get("model_type")
    found = [
        family
        for family in families_of(MODEL_CLASSES.get(kind, f"{kind}ForCausalLM"))
        if nested is None or nested in family.only.get("model_type", (nested,))
    ]
    (one,) = found
    return one


def reached(report: Path) -> dict[str, Reached]:
    """What the shapes of a report reached, by name. Raises OSError without a report."""
    found = {}
    for entry in ElementTree.parse(report).iter("property"):
        if entry.get("name") == "llamacpp":
            name, arch, exact, rounded, share = (entry.get("value") or "").split()
            found[name] = Reached(arch, float(exact), float(rounded), float(share))
    return found


def standing(page: str) -> dict[str, str]:
    """Return the rows of the table of a page by their families; {} if it is of another version of llama.cpp."""
    inside = page.partition("<!-- llamacpp:begin -->")[2].partition("<!-- llamacpp:end -->")[0]
    if f"({llamacpp.VERSION})" not in inside:
        return {}
    return {line.split("|")[1].strip(): line for line in inside.splitlines() if line.startswith("| ")}


def limits(names: Sequence[str]) -> str:
    """Return what llama.cpp does not compute of a family's shapes."""
    return "; ".join(dict.fromkeys(text for name in names for text in row(name).limits()))


def table(figures: Mapping[str, Reached], rows: Mapping[str, str]) -> str:
    """Return the table in markdown, a row for each family: that of `rows` where `figures` have none of its shapes. Raises
    ValueError for a family of which they lack some, or which has no row either."""
    lines = [
        f"| family | llama.cpp agrees ({llamacpp.VERSION}) | shapes | float32 | float16 | of positions within 2e-2 | "
        "limits of llama.cpp |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        names = [name for name in SHAPES if family_of(name) is family]
        wanted = [name for name in names if not row(name).unknown]
        known = [figures[name] for name in wanted if name in figures]
        if not wanted:
            lines.append(f"| {family.name} | unknown to it | 0 |  |  |  | {limits(names)} |")
            continue
        if not known and family.name in rows:
            lines.append(rows[family.name])
            continue
        if missing := [name for name in wanted if name not in figures]:
            raise ValueError(f"the report lacks {', '.join(missing)}: make test-external ONLY=llamacpp")
        archs = ", ".join(f"`{arch}`" for arch in dict.fromkeys(one.arch for one in known))
        exact, rounded = max(one.float32 for one in known), max(one.float16 for one in known)
        share = int(100 * min(one.share for one in known))
        lines.append(
            f"| {family.name} | yes, {archs} | {len(known)} | {exact:.0e} | {rounded:.0e} | {share}% | {limits(names)} |"
        )
    return "\n".join(lines)


def problems(page: str) -> list[str]:
    """Return what is wrong with the table of a page, a line each."""
    inside = page.partition("<!-- llamacpp:begin -->")[2].partition("<!-- llamacpp:end -->")[0]
    shown = {
        words[0]: words[-1] for line in inside.splitlines() if len(words := [one.strip() for one in line.split("|")[1:-1]]) == 7
    }  # fmt: skip
    found = []
    for family in FAMILIES:
        expected = limits([name for name in SHAPES if family_of(name) is family])
        if shown.get(family.name) != expected:
            found.append(
                f"{family.name}: make test-external ONLY=llamacpp, then python -m tests.llamacpp.page write"
            )
    found += [
        f"{name}: is no family" for name in list(shown)[2:] if name not in {one.name for one in FAMILIES}
    ]
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code is 1 for a stale table, 2 for other words."""
    if list(argv) not in (["write"], ["check"]):
        print("usage: python -m tests.llamacpp.page write|check", file=sys.stderr)
        return 2
    page = PAGE.read_text("utf-8")
    if list(argv) == ["write"]:
        PAGE.write_text(with_parts(page, {"llamacpp": table(reached(REPORT), standing(page))}), "utf-8")
        return 0
    found = problems(page)
    print("\n".join(found) or "llama.cpp: the table is complete")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
