"""Relative links of README, CONTRIBUTING, SECURITY, docs and the pages of rooms lead to files and headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "docs/decisions/README.md",
        *(ROOT / "examples").glob("*.md"),
        ROOT / "tests/ops/README.md",
        ROOT / "tests/sim/README.md",
        *(
            page
            for package in ("clients", "server", "engine", "executors")
            for page in (ROOT / package).rglob("README.md")
        ),
    ]
)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
BOOK = (
    "start.md",
    "your-model.md",
    "operate.md",
    "metrics.md",
    "migrate.md",
    "not-supported.md",
    "clients.md",
    "containers.md",
)
"""Pages by task."""


def anchors(markdown: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", FENCE.sub("", markdown), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def broken(page: Path) -> Iterator[str]:
    """Each link of a page that leads nowhere. Links with a scheme are not followed."""
    prose = CODE.sub("", FENCE.sub("", page.read_text("utf-8")))
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(file.read_text("utf-8")):
            yield f"{target}: no such heading"


def test_links_of_decisions_lead_somewhere() -> None:
    pages = (ROOT / "docs/decisions").glob("[0-9]*.md")
    assert [(page.name, link) for page in pages for link in broken(page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One thing: `x`\n\n# Again\n\n# Again\n\n```\n# No heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[1](b.md#one-thing-x) [2](b.md#again-1) [3](c.md) [4](b.md#no-heading) [5](#none) `[6](d.md)` [7](https://x)"
    )
    assert list(broken(page)) == [
        "c.md: no such file",
        "b.md#no-heading: no such heading",
        "#none: no such heading",
    ]


@pytest.mark.parametrize("name", BOOK)
def test_a_page_opens_with_a_command_and_is_short(name: str) -> None:
    lines = (ROOT / "docs" / name).read_text("utf-8").splitlines()
    assert lines[2] == "```console" and lines[3].startswith("$ ") and not lines[4].startswith("```")
    assert len(lines) <= 250


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in index} == set()
