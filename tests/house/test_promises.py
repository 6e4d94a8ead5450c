"""Each way in which a promise can be empty is found."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tools import promises

TESTS = """
import pytest

needs_luck = pytest.mark.skipif(True, reason="no luck")

def test_plain(): ...

@pytest.mark.parametrize("n", [1, 2])
def test_cases(n): ...

@pytest.mark.skip(reason="later")
def test_marked_skip(): ...

@needs_luck
def test_named_mark(): ...

@pytest.mark.xfail
def test_marked_xfail(): assert False

@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.skip)])
def test_case_skipped(n): ...

def test_skips_itself(): pytest.skip("not today")

@pytest.fixture
def weather(): pytest.skip("it rains")

def test_skipped_by_fixture(weather): ...

class TestGroup:
    def test_in_class(self): ...

@pytest.mark.skip
class TestSkippedGroup:
    def test_in_class(self): ...
"""


@pytest.fixture(autouse=True, scope="module")
def _no_plugins() -> Iterator[None]:
    """Pytest is started often, and alone is quicker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return written(tmp_path)


def written(tmp_path: Path) -> Path:
    """A checkout with tests, a target and a page."""
    for folder in ("docs", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "Makefile").write_text("demo:  ## show it\n\ttrue\n")
    (tmp_path / "tests/test_it.py").write_text(TESTS)
    (tmp_path / "tests/test_whole.py").write_text(
        "import pytest\npytest.importorskip('os')\ndef test_a(): ...\n"
    )
    (tmp_path / "tests/test_marked.py").write_text(
        "import pytest\npytestmark = [pytest.mark.skip]\ndef test_a(): ...\n"
    )
    (tmp_path / promises.PAGE).write_text(f"# It\n\n{promises.BEGIN}\n{promises.END}\n")
    return tmp_path


def row(*shown_by: str, **more: object) -> dict[str, object]:
    """A promise."""
    usual = {"id": "it", "area": "all", "wording": "It works.", "state": "done"}
    return {**usual, "shown_by": list(shown_by), **more}


def problems(checkout: Path, *rows: dict[str, object]) -> list[str]:
    (checkout / "docs/promises.yaml").write_text(yaml.safe_dump(list(rows)))
    promises.main(["write"], checkout)
    return list(promises.problems(checkout))


def found(checkout: Path, *shown_by: str, **more: object) -> list[str]:
    return problems(checkout, row(*shown_by, **more))


ACCEPTED = [
    "tests/test_it.py::test_plain",
    "tests/test_it.py::test_cases",
    "tests/test_it.py::test_cases[2]",
    "tests/test_it.py::TestGroup",
    "tests/test_it.py::TestGroup::test_in_class",
    "make demo",
    "python -m tests.test_it",
]
COMPLAINTS = {
    "tests/test_it.py::test_gone": "there is no test",
    "tests/test_it.py::test_cases[3]": "there is no test",
    "tests/test_gone.py::test_plain": "there is no test",
    "tests/test_it.py::test_marked_skip": "is skipped",
    "tests/test_it.py::test_named_mark": "may be skipped",
    "tests/test_it.py::test_marked_xfail": "is expected to fail",
    "tests/test_it.py::test_case_skipped": "is skipped",
    "tests/test_it.py::test_skips_itself": "may skip itself",
    "tests/test_it.py::TestSkippedGroup::test_in_class": "is skipped",
    "tests/test_whole.py::test_a": "may skip itself",
    "tests/test_marked.py": "is skipped",
    "make nothing": "make target nothing",
    "python -m tests.gone": "module tests.gone",
    "python benchmarks/gone.py": "benchmarks/gone.py",
    "./gone --fast": "./gone",
}


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The problems of each entry, found together: each is a promise of its own."""
    entries = [*ACCEPTED, *COMPLAINTS]
    rows = [row(entry, id=f"promise-{number}") for number, entry in enumerate(entries)]
    told = problems(written(tmp_path_factory.mktemp("checkout")), *rows)
    by_id = {str(one["id"]): [line for line in told if line.startswith(f"{one['id']}: ")] for one in rows}
    assert sum(map(len, by_id.values())) == len(told), "each belongs to a promise"
    return dict(zip(entries, by_id.values(), strict=True))


@pytest.mark.parametrize("entry", ACCEPTED)
def test_what_exists_and_runs_is_accepted(each: dict[str, list[str]], entry: str) -> None:
    assert each[entry] == []


@pytest.mark.parametrize("entry", COMPLAINTS)
def test_what_does_not_run_is_found(each: dict[str, list[str]], entry: str) -> None:
    [problem] = each[entry]
    assert COMPLAINTS[entry] in problem


@pytest.mark.parametrize("report", promises.REPORTS)
def test_a_skip_inside_a_fixture_is_found_in_the_report_of_the_last_run(checkout: Path, report: str) -> None:
    entry = "tests/test_it.py::test_skipped_by_fixture"
    assert found(checkout, entry) == []
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml=.reports/{report}", "tests/test_it.py"]
    subprocess.run(command, cwd=checkout, capture_output=True)
    [problem] = found(checkout, entry)
    assert "was skipped in the last run: it rains" in problem
    assert found(checkout, "tests/test_it.py::test_plain") == []


def test_a_report_older_than_the_test_says_nothing(checkout: Path) -> None:
    test_a_skip_inside_a_fixture_is_found_in_the_report_of_the_last_run(checkout, promises.REPORTS[0])
    (checkout / "tests/test_it.py").write_text(TESTS.replace('pytest.skip("it rains")', "..."))
    assert found(checkout, "tests/test_it.py::test_skipped_by_fixture") == []


def test_a_test_file_that_cannot_be_imported_is_found(checkout: Path) -> None:
    (checkout / "tests/test_it.py").write_text("import nothing_of_that_name\n")
    assert any("pytest cannot collect" in p for p in found(checkout, "tests/test_it.py::test_plain"))


def test_done_needs_something_that_shows_it(checkout: Path) -> None:
    assert found(checkout) == ["it: done, but no test or command shows it"]
    assert found(checkout, state="absent", planned=["tests/test_it.py::test_gone"]) == []


@pytest.mark.parametrize("more", [{"state": "almost"}, {"colour": "red"}])
def test_a_malformed_row_is_named(checkout: Path, more: dict[str, str]) -> None:
    [problem] = found(checkout, **{"state": "done", **more})
    assert problem.startswith("it: ")


def test_an_id_used_twice_is_found(checkout: Path) -> None:
    found(checkout, "make demo")
    file = checkout / "docs/promises.yaml"
    file.write_text(file.read_text() * 2)
    promises.main(["write"], checkout)
    assert list(promises.problems(checkout)) == ["it: the id is used twice"]


def test_a_page_table_out_of_date_is_found_and_rewritten(checkout: Path) -> None:
    assert found(checkout, "make demo", figure="3 s") == []
    page = checkout / promises.PAGE
    assert "| all | It works. | done | 3 s |" in page.read_text()
    page.write_text(page.read_text().replace("3 s", "2 s"))
    [problem] = promises.problems(checkout)
    assert "out of date" in problem
    assert promises.main(["check"], checkout) == 1
    assert promises.main(["write"], checkout) == 0
    assert promises.main(["check"], checkout) == 0


def test_a_page_without_markers_is_told_so(checkout: Path) -> None:
    found(checkout, "make demo")
    (checkout / promises.PAGE).write_text("# It\n")
    [problem] = promises.problems(checkout)
    assert "no place for the table" in problem
    assert promises.main(["write"], checkout) == 1
