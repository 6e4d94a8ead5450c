"""What is left out of a short run of the tests is not what matters: each room is in the fast one, each promise in CI's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tools import promises

ROOT = Path(__file__).resolve().parents[2]
FAST = (ROOT / "tests/fast.txt").read_text("utf-8").splitlines()
LONG = re.compile(r"^pytestmark = .*pytest\.mark\.long", re.MULTILINE)
AREAS = ("tests/client_commands", "tests/server", "tests/engine", "tests/executors/contract")


def extended_as_a_whole(path: Path) -> set[str]:
    """Functions of a test file that no short run has a case of."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "pytest.mark.extended" in map(ast.unparse, node.decorator_list)
    }


def test_the_fast_tests_are_from_every_room() -> None:
    assert sorted(set(FAST)) == FAST
    found = {path for area in AREAS for path in (ROOT / area).rglob("test_*.py")}
    files = {path.relative_to(ROOT) for path in found if not LONG.search(path.read_text("utf-8"))}
    listed = {Path(name) for name in FAST}
    assert not listed - files
    assert {path.parent for path in files} == {path.parent for path in listed}


def test_ci_leaves_out_no_test_that_a_promise_names() -> None:
    named = [one for row in promises.load(ROOT / "docs/promises.yaml") for one in row.node_ids if "::" in one]
    assert len(named) > 50
    left_out = [
        one
        for one in named
        if one.rpartition("::")[2].partition("[")[0] in extended_as_a_whole(ROOT / one.partition("::")[0])
    ]
    assert not left_out
