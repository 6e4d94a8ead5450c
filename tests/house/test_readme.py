"""README's claims: rows of one line, each with what shows it, and commands that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from cohort_server.command_line import application
from tests.house.test_doc_links import LINK

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
WIDEST = 130
"""Characters of a row as it is read, that is without the addresses of its links."""
COMMAND = re.compile(r"`((?:make|cohort) [a-z][^`]*)`")


def section(page: str, title: str) -> list[str]:
    """The lines below a heading of the second level, up to the next."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()


def rows(page: str) -> list[tuple[str, str]]:
    """The claim and what shows it, of each row of the table "What works"."""
    table = [line for line in section(page, "What works") if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").rsplit("|", 1)) for line in table[2:]]  # type: ignore[misc]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


def verbs() -> set[str]:
    return set(typer.main.get_command(application()).commands)  # type: ignore[attr-defined]


def faults(page: str) -> Iterator[str]:
    """What is wrong with the rows of a page."""
    for claim, proof in rows(page):
        shown = LINK.sub(lambda link: link.group().split("]")[0][1:], f"| {claim} | {proof} |")
        if len(shown) > WIDEST:
            yield f"{claim}: {len(shown)} characters"
        if "✓" in claim:
            yield f"{claim}: several claims"
        if not LINK.search(proof) and not COMMAND.search(proof):
            yield f"{claim}: nothing shows it"
        for target in LINK.findall(proof):
            if not (ROOT / target.partition("#")[0]).is_file():
                yield f"{claim}: no file {target}"


def test_each_row_is_one_claim_with_what_shows_it() -> None:
    assert len(rows(README)) > 20 and list(faults(README)) == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| ✓ one ✓ two | [x](README.md) |", "several claims"),
        ("| one | it is so |", "nothing shows it"),
        ("| one | [test](tests/no_such.py) |", "no file"),
        (f"| {'a' * 130} | `make demo` |", "characters"),
    ],
)
def test_a_bad_row_is_found(row: str, fault: str) -> None:
    [found] = faults(f"\n## What works\n\n| | |\n|---|---|\n{row}\n\n## Next\n")
    assert fault in found


def test_a_figure_at_the_top_has_a_link() -> None:
    """A bullet may go on in further lines."""
    top = README.partition("\n## ")[0]
    bullets = re.findall(r"^- .*(?:\n  .*)*", top, re.M)
    assert bullets
    assert [one for one in bullets if re.search(r"\d", one) and not LINK.search(one)] == []


def test_commands_that_readme_names_exist() -> None:
    """In prose and tables, and after `$` in its listings."""
    prose = COMMAND.findall(README)
    typed = re.findall(r"^\$ (?:\S*/)?((?:make|cohort) [a-z].*)$", README, re.M)
    unknown = []
    for command in (*prose, *typed):
        program, word = command.split()[:2]
        if word not in (targets() if program == "make" else verbs()):
            unknown.append(command)
    assert len(typed) > 5 and unknown == []
