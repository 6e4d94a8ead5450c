"""Recorded results, the log of experiments and the docs carry no path of the machine that made them.

Results and LOG.md: no absolute path of two parts or more outside of /proc, /sys, /usr and /dev; HTTP paths below /v1 and /v2 are
fine. Docs may also have the HTTP paths of other servers, and the paths that a reader types or finds in the container
(`DOCS_TOO`). No file at all names anything in a home directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "clients",
    "server",
    "engine",
    "executors",
    "tests",
    "benchmarks",
    "tools",
    "docs",
    "configs",
    "examples",
    ".ci",
)
SAME_EVERYWHERE = ("/proc/", "/sys/", "/usr/", "/dev/", "/v1/", "/v2/")
DOCS_TOO = (
    "/api/", "/responses/", "/messages/", "/completions/", "/chat/completions/", "/fim/", "/models/", "/tmp/", "/path/to/",
    "/var/lib/cohort/", "/opt/cohort/", "/etc/",
)  # fmt: skip
ABSOLUTE = re.compile(r"(?:(?<=file://)|(?<![\w.~<>{}$#/-]))(?:/[\w.@+-]+){2,}")
HOME = re.compile(r"(?<![\w.])/(?:root|(?:home|Users)/[\w.-]+)/[\w.]")


def files(*patterns: str) -> list[Path]:
    """The text files of the checkout that match one of the patterns; without a pattern all that people have written."""
    if patterns:
        found = (file for pattern in patterns for file in ROOT.glob(pattern) if file.is_file())
        return sorted(file for file in found if file.suffix != ".png")
    everywhere = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")]
    here = [
        file
        for file in ROOT.iterdir()
        if file.suffix in (".md", ".toml", ".txt", ".yml", "") and file.name != ".git"
    ]
    kinds = (".safetensors", ".pyc", ".so", ".gguf")
    return sorted(
        file
        for file in (*everywhere, *here)
        if file.is_file() and file.suffix not in kinds and "__pycache__" not in file.parts
    )


def absolute(text: str, fine: tuple[str, ...] = SAME_EVERYWHERE) -> Iterator[str]:
    """Absolute paths in a text that begin with none of the prefixes that are fine."""
    return (path for path in ABSOLUTE.findall(text) if not f"{path}/".startswith(fine))


def told(found: dict[Path, list[str]]) -> dict[str, list[str]]:
    return {file.relative_to(ROOT).as_posix(): paths for file, paths in found.items() if paths}


def test_results_have_no_absolute_paths() -> None:
    results = files("benchmarks/results/**/*", "benchmarks/LOG.md")
    assert len(results) > 10
    assert told({file: [*absolute(file.read_text("utf-8"))] for file in results}) == {}


def test_docs_have_only_paths_that_readers_have_too() -> None:
    docs = files("docs/**/*", "*.md", "benchmarks/*.md", "executors/**/*.md")
    assert len(docs) > 10
    fine = (*SAME_EVERYWHERE, *DOCS_TOO)
    assert told({file: [*absolute(file.read_text("utf-8"), fine)] for file in docs}) == {}


def test_home_directories_are_named_nowhere() -> None:
    everything = files()
    assert {ROOT / "Makefile", ROOT / "benchmarks/results/peers-zen5-2cores.json", Path(__file__)} <= set(
        everything
    )
    assert told({file: HOME.findall(file.read_text("utf-8", "replace")) for file in everything}) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"/srv/x/.venv/bin/python"', ["/srv/x/.venv/bin/python"]),
        ("A=b:/mnt/m", ["/mnt/m"]),
        ("see file:///mnt/m/x", ["/mnt/m/x"]),
        ("/usr/bin/g++ and /proc/self/maps, /v1/models, http://host:1/v1/models", []),
        ("tokens/s/core, ~/.cache/x, {model}/a/b, $TMPDIR/a/b, .../x, /ready", []),
    ],
)
def test_an_absolute_path_is_told_from_other_slashes(text: str, found: list[str]) -> None:
    assert [*absolute(text)] == found


def test_a_home_directory_is_told_from_a_containers() -> None:
    homes = ("root", "home/ada", "Users/ada")
    assert all(HOME.search(f'"/{one}/x') for one in homes)
    assert not any(HOME.search(text) for text in ('"HOME": "/root"', "/rootfs/x", "a/root/x", "/home"))
