"""What is left out of a short run of the tests is not what matters: each room is in the fast one, each promise in CI's."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from tests import tiers
from tools import promises

ROOT = Path(__file__).resolve().parents[2]
FAST = (ROOT / "tests/fast.txt").read_text("utf-8").splitlines()
LONG = re.compile(r"^pytestmark = .*pytest\.mark\.long", re.MULTILINE)
AREAS = ("tests/client_commands", "tests/server", "tests/engine", "tests/executors/contract")


LEFT_OUT = re.compile(r"pytest\.mark\.long\((?:extended|full)=True\)")


@functools.cache
def left_out_as_a_whole(path: Path) -> set[str]:
    """Functions of a test file that no short run has a case of."""
    module = ast.parse(path.read_text("utf-8"))
    marks = [
        ast.unparse(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and is_pytestmark(node)
    ]
    whole = any(map(LEFT_OUT.search, marks))
    return {
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (whole or any(LEFT_OUT.fullmatch(ast.unparse(one)) for one in node.decorator_list))
    }


def is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


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
        if one.rpartition("::")[2].partition("[")[0] in left_out_as_a_whole(ROOT / one.partition("::")[0])
    ]
    assert not left_out


# -- what the options take -----------------------------------------------------------------------------------------------


def case(name: str, *marks: dict[str, Any], every: int | None = None) -> Any:
    """A test as pytest collects it, with markers `long` of these arguments."""

    def function() -> None: ...

    if every is not None:
        function = tiers.sweep(every)(function)
    found = [SimpleNamespace(kwargs=one) for one in marks]
    return SimpleNamespace(nodeid=f"t.py::{name}", function=function, iter_markers=lambda name: iter(found))


CASES = [
    case("test_unit"),
    case("test_long", {}),
    *(case(f"test_swept[{n}]", every=3) for n in range(7)),
    *(case(f"test_variants[{n}]", {"every": 2}, {}) for n in range(5)),
    # The closest marker has no number, its module's has.
    *(case(f"test_inner[{n}]", {}, {"every": 4}) for n in range(5)),
    *(case(f"test_both[{n}]", {"every": 2}, every=2) for n in range(8)),
    case("test_extended", {"extended": True}),
    case("test_full", {"full": True}),
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "unit long swept[0,3,6] variants[0,1,2,3,4] inner[0,1,2,3,4] both[0,2,4,6] extended"),
        ({"short": True}, "unit long swept[0,3,6] variants[0,2,4] inner[0,4] both[0,4]"),
        ({"full": True}, "unit long swept[0,3,6] variants[0,1,2,3,4] inner[0,1,2,3,4] both[0,2,4,6] extended full"),
        ({"few": True}, "unit long swept[0] variants[0,1,2,3,4] inner[0,1,2,3,4] both[0,7] extended"),
        ({"sweeps": True}, "swept[0,1,2,3,4,5,6] both[0,1,2,3,4,5,6,7]"),
    ],
)  # fmt: skip
def test_options_take_cases(options: dict[str, bool], expected: str) -> None:
    kept = tiers.chosen(CASES, **{"sweeps": False, "short": False, "full": False} | options)
    cases: dict[str, list[str]] = {}
    for one in kept:
        name, _, number = one.nodeid.removeprefix("t.py::test_").partition("[")
        cases.setdefault(name, []).append(number.rstrip("]"))
    assert expected == " ".join(
        name + (f"[{','.join(numbers)}]" if numbers[0] else "") for name, numbers in cases.items()
    )


DRAWN = tiers.examples(1000)
"""When this file was imported."""


def test_few_means_fewer_examples_of_each_test(pytestconfig: pytest.Config) -> None:
    few = pytestconfig.getoption("few")
    assert settings.default is not None
    assert (DRAWN, settings.default.max_examples) == ((250, 25) if few else (1000, 100))
    assert settings.default.derandomize and settings.default.deadline is None
    try:
        for taken, expected in ((True, [250, 15, 1]), (False, [1000, 60, 1])):
            tiers.load_profile(taken)
            assert [tiers.examples(number) for number in (1000, 60, 1)] == expected
    finally:
        tiers.load_profile(few)


def test_make_test_alone_takes_few() -> None:
    commands = re.findall(r"^\t\$\(PYTEST\).*", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert [("--few" in one, LEFT_OUT_OF_TEST in one) for one in commands] == [
        (True, True),
        (False, True),
        (False, False),
    ]


LEFT_OUT_OF_TEST = "not long and not external and not gpu"


@pytest.mark.parametrize(
    ("source", "expression", "expected"),
    [
        ("pytestmark = pytest.mark.long", LEFT_OUT_OF_TEST, True),
        ("pytestmark = pytest.mark.long", "not external and not gpu", False),
        ("pytestmark = pytest.mark.long(extended=True)", LEFT_OUT_OF_TEST, True),
        ("pytestmark = [\n    pytest.mark.timeout(9),\n    pytest.mark.external,\n]", LEFT_OUT_OF_TEST, True),
        ("pytestmark = pytest.mark.timeout(9)\nCASES = [pytest.mark.long]", LEFT_OUT_OF_TEST, False),
        ("@pytest.mark.long\ndef test_one(): ...", LEFT_OUT_OF_TEST, False),
        ("class TestOne:\n    pytestmark = pytest.mark.long", LEFT_OUT_OF_TEST, False),
        ("pytestmark = pytest.mark.long", "", False),
        ("pytestmark = pytest.mark.long", "long and not gpu", False),
        ("pytestmark = pytest.mark.long", "not long or external", False),
        ("pytestmark = pytest.mark.long", "long or not gpu and not long", False),
        ("pytestmark = pytest.mark.long", "not (long and gpu)", False),
    ],
)
def test_files_without_a_test_of_a_run(source: str, expression: str, expected: bool) -> None:
    assert tiers.has_no_test(f"import pytest\n\n{source}\n", expression) is expected


def test_files_that_are_not_imported_are_marked_as_a_whole() -> None:
    """Python reads the mark that the source of each such file shows: the value of `pytestmark`, the only one there."""
    left_out = 0
    for path in (ROOT / "tests").rglob("test_*.py"):
        source = path.read_text("utf-8")
        if not tiers.has_no_test(source, LEFT_OUT_OF_TEST):
            continue
        left_out += 1
        [marks] = [
            node.value
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign) and is_pytestmark(node)
        ]
        found = marks.elts if isinstance(marks, ast.List) else [marks]
        names = [ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in found]
        assert {"pytest.mark.long", "pytest.mark.external", "pytest.mark.gpu"} & {*names}, path
    assert left_out > 100


@pytest.mark.parametrize(("short", "expected"), [(True, [0, 3, 6]), (False, list(range(8)))])
def test_a_short_run_takes_a_part_of_what_one_test_goes_through(short: bool, expected: list[int]) -> None:
    config: Any = SimpleNamespace(getoption={"short": short}.__getitem__)
    assert tiers.part_of(config, range(8), 3) == expected


def test_markers_are_three() -> None:
    """Beside these, pytest's own and its plugins'."""
    own = {"long", "external", "gpu"}
    plugins = {
        "parametrize",
        "skip",
        "skipif",
        "xfail",
        "timeout",
        "usefixtures",
        "filterwarnings",
        "asyncio",
        "interpreted",
    }
    used = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        if path.name not in ("test_promises.py", "test_tiers.py")
        for name in re.findall(r"pytest\.mark\.(\w+)", path.read_text("utf-8"))
    }
    assert used <= own | plugins
