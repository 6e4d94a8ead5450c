"""Targets, suites and options that docs and programs name are there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests import external

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
TESTS = {"test", "test-fast", "test-all", "test-external", "test-gpu"}
HISTORY = {"docs/decisions.md", "docs/roadmap.md", "CHANGELOG.md"}
"""Pages that also tell of targets that were."""
NAMED = re.compile(r"""(?:`|"|\$ |^(?=make \S+ +#))make ([a-z][a-z-]*)(?: ONLY="?([a-z ]+))?""", re.MULTILINE)


def named() -> list[tuple[str, str, str]]:
    """Pages with the targets and suites that they name."""
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("tests/**/*.md"),
        ROOT / "docs/promises.yaml",
    ]
    return [
        (page.relative_to(ROOT).as_posix(), target, suites)
        for page in pages
        if page.relative_to(ROOT).as_posix() not in HISTORY and "decisions" not in page.parts
        for target, suites in NAMED.findall(page.read_text("utf-8"))
    ]


def test_named_targets_are_there() -> None:
    found = named()
    assert len(found) > 60
    by_suite = {f"test-{name}" for name in external.SUITES}
    assert [(page, target) for page, target, _ in found if target not in TARGETS | by_suite] == []
    assert [(page, suites) for page, _, suites in found if set(suites.split()) - external.SUITES.keys()] == []


def test_test_targets_are_five() -> None:
    assert {name for name in TARGETS if name.startswith("test")} == TESTS


def test_suites_name_files_that_are_there() -> None:
    for suite in external.SUITES.values():
        words = [
            word
            for command in (suite.command, suite.short or ())
            for word in command
            if word.startswith("tests/")
        ]
        assert all((ROOT / word).exists() for word in words), suite.name


def test_short_takes_what_ci_has_time_for() -> None:
    _, suites, words = external.parse(["--short"])
    assert [one.name for one in suites] == ["clients", "console", "ops", "ray", "real"] and words == []
    given, suites, _ = external.parse(["--only", "llamacpp", "--short"])
    assert given.short and [one.name for one in suites] == ["llamacpp"]
    _, suites, words = external.parse(["--only", "agents", "-k", "codex"])
    assert [one.name for one in suites] == ["agents"] and words == ["-k", "codex"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--only", "browser"], "there is no suite 'browser'"),
        (["--only", "agents", "--short"], "agents has no short form"),
        (["--only", "ray real", "-k", "x"], "ONLY with one suite"),
    ],
)
def test_what_cannot_be_run_is_told(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        external.parse(argv)
    assert complaint in capsys.readouterr().err


def test_what_is_fetched_ahead_is_what_is_needed_and_nothing_runs(tmp_path: Path) -> None:
    told, made = tmp_path / "told", tmp_path / "made"
    one = suite("a", f'echo "$@" >> {told}', (made, ("touch", str(made))))
    assert external.fetch(one, True) == 0 and made.exists() and not told.exists()
    one = replace(one, fetches=("--install",))
    assert external.fetch(one, True) == 0 and told.read_text() == "--install\n"
    assert external.run(one, ("word",), True, None) == 0 and told.read_text() == "--install\nword\n"
    assert external.fetch(suite("a", "exit 5", (None, ("sh", "-c", "exit 3"))), True) == 3
    assert external.fetch(replace(suite("a", "exit 5"), fetches=("x",)), True) == 5
    given, suites, _ = external.parse(["--short", "--fetch"])
    assert given.fetch and [one.name for one in suites if one.fetches] == ["clients"]


def suite(name: str, script: str, *prepare: tuple[Path | None, external.Command]) -> external.Suite:
    return external.Suite(
        name, name, ("sh", "-c", script, "sh"), ("sh", "-c", f"echo short; {script}", "sh"), prepare=prepare
    )


def test_suites_beside_each_other_print_whole_logs_and_name_failures(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    # Each waits for the other: they do run at the same time, and their lines would be mixed.
    meet = 'mkfifo {0} 2>/dev/null; echo {1} one; echo x > {0} & read y < {0}; echo {1} two "$@"; exit {2}'
    folder = Path(external.tempfile.mkdtemp())
    suites = [suite(name, meet.format(folder / "pipe", name, code)) for name, code in (("a", 0), ("b", 3))]
    failed = external.run_beside(suites, ["word"], True, 2)
    assert failed == ["b"]
    shown = capfdbinary.readouterr().out.decode()
    assert "short\na one\na two word\n" in shown and "short\nb one\nb two word\n" in shown
    assert re.search(r"==== b: \d+ s, exit code 3\nshort", shown)


def test_preparation_is_skipped_where_its_file_is_and_its_failure_is_the_suites(tmp_path: Path) -> None:
    made = tmp_path / "made"
    one = suite("a", f"test -f {made}", (made, ("touch", str(made))), (made, ("touch", f"{made}-2")))
    assert external.run(one, (), False, None) == 0 and (tmp_path / "made-2").exists()
    (tmp_path / "made-2").unlink()
    assert external.run(one, (), False, None) == 0 and not (tmp_path / "made-2").exists()
    assert external.run(suite("b", "true", (None, ("false",))), (), False, None) == 1
