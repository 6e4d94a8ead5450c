"""docs/security.md: every rule has a test that exists and runs, and only what is not built has none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import skips

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/security.md"
ABSENT = "no test: feature absent"
RULES = 22
"""Those that were there when the page was written. A rule is not dropped."""


def rows(text: str) -> list[list[str]]:
    """The cells of the table: threat, rule, tests."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def faults(text: str, root: Path = ROOT) -> Iterator[str]:
    for row in rows(text):
        if len(row) != 3 or not all(row):
            yield f"not three cells: {row}"
            continue
        threat, rule, shown = row
        nodes = re.findall(r"`(tests/[^`]+)`", shown)
        if shown == ABSENT:
            if not rule.startswith("Not built"):
                yield f"{threat}: built, and without a test"
        elif not nodes:
            yield f"{threat}: no test"
        for node in nodes:
            yield from (f"{threat}: {node} {reason}" for reason in problems(root, node))


def problems(root: Path, node: str) -> list[str]:
    path, *names = node.split("::")
    if not (root / path).is_file():
        return ["is in no file"]
    module = ast.parse((root / path).read_text("utf-8"))
    defined = {one.name for one in module.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    if names and names[0] not in defined:
        return ["does not exist"]
    if not any(name.startswith("test_") for name in defined):
        return ["has no tests"]
    return skips.from_source(root, node)


def test_every_rule_has_its_test() -> None:
    text = PAGE.read_text("utf-8")
    assert list(faults(text)) == []
    assert len(rows(text)) >= RULES


HEAD = "| a | b | c |\n|---|---|---|\n"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| x | y | |", "not three cells"),
        ("| x | y | soon |", "no test"),
        ("| x | y | no test: feature absent |", "built, and without a test"),
        ("| x | y | `tests/house/test_gone.py::test_it` |", "is in no file"),
        ("| x | y | `tests/house/test_security_page.py::test_gone` |", "does not exist"),
        ("| x | y | `tests/house/__init__.py` |", "is in no file"),
    ],
)
def test_a_row_that_shows_nothing_is_found(row: str, complaint: str) -> None:
    [fault] = faults(HEAD + row)
    assert complaint in fault


def test_a_row_as_it_should_be() -> None:
    good = "| x | y | `tests/house/test_security_page.py::test_a_row_as_it_should_be` |"
    absent = "| x | Not built. | no test: feature absent |"
    assert list(faults(f"{HEAD}{good}\n{absent}")) == []
