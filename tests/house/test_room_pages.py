"""docs/architecture.md and the pages of rooms are short, complete, and name files that exist.

A room is a folder that pyproject.toml gives a layer. Its page is README.md in the folder.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = ROOT / "docs/architecture.md"
CONTAINERS = ("server", "engine", "executors.llm")
"""Packages whose layers are rooms."""
MOST_FILES_WITHOUT_PAGE = 8
FURTHER_ROOMS = (
    "clients",
    "server/grammar",
    "server/hub",
    "server/ray_serve",
    "server/state",
    "server/telemetry",
    "server/templates",
    "engine/kv",
    "engine/policies",
    "executors/contract",
    "executors/kernels",
    "executors/llm",
    "executors/llm/device",
    "executors/process",
    "executors/testing",
    "tests/sim",
)
"""Small rooms, and those outside `CONTAINERS`, that have a page, too."""
WITHOUT_PAGE = {
    "server/commands": "a verb in each file",
    "server/schemas": "types alone",
    "server/system": "small tools without order",
    "executors/llm/attention": "a backend in each file; the map is executors/llm",
    "executors/llm/checkpoint": "a format in each file; the map is executors/llm",
    "executors/llm/sampling": "the map is executors/llm",
    "executors/llm/tools": "its __init__.py is the page",
}
"""Larger rooms without a page, and why."""
PATH = re.compile(r"`((?:[\w.-]+/)+|(?:[\w.-]+/)*[\w-]+\.(?:py|md|h|cpp|txt|yaml|toml))`")


def rooms_of_layers() -> dict[str, int]:
    """Number of modules by room, of all layers of `CONTAINERS` that are folders."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    names = {
        f"{container}.{name.strip()}".replace(".", "/")
        for contract in contracts
        if contract["type"] == "layers"
        for container in contract.get("containers", ())
        if container in CONTAINERS
        for layer in contract["layers"]
        for name in layer.split("|")
    }
    return {name: len(modules(ROOT / name)) for name in sorted(names) if (ROOT / name).is_dir()}


def modules(folder: Path) -> list[Path]:
    """All modules below a folder."""
    return [path for path in folder.rglob("*.py") if path.name != "__init__.py"]


def pages() -> list[Path]:
    """The pages of rooms: each README.md beside code of the product, and that of the simulation."""
    packages = ("clients", "server", "engine", "executors")
    found = [path for package in packages for path in (ROOT / package).rglob("README.md")]
    return sorted([*found, ROOT / "tests/sim/README.md"])


def missing(page: Path) -> Iterator[str]:
    """Paths in backticks that exist neither beside the page nor in the project."""
    for name in PATH.findall(page.read_text("utf-8")):
        if not (page.parent / name).exists() and not (ROOT / name).exists() and name not in ELSEWHERE:
            yield name


ELSEWHERE = {
    "blobs/": "a folder of huggingface_hub's cache",
}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.parent.relative_to(ROOT).as_posix())
def test_a_room_page_is_short_and_names_what_exists(page: Path) -> None:
    assert list(missing(page)) == []
    assert len(page.read_text("utf-8").splitlines()) <= 30


def test_each_room_has_a_page() -> None:
    large = {room for room, count in rooms_of_layers().items() if count > MOST_FILES_WITHOUT_PAGE}
    assert len(large) > 10
    assert WITHOUT_PAGE.keys() <= large
    having = {page.parent.relative_to(ROOT).as_posix() for page in pages()}
    assert (large - WITHOUT_PAGE.keys()) | set(FURTHER_ROOMS) <= having
    assert not having & WITHOUT_PAGE.keys()


def test_architecture_is_short_and_leads_to_all_pages() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    assert len(text.splitlines()) <= 90
    linked = {f"../{page.relative_to(ROOT).as_posix()}" for page in pages()} - {"../executors/tiny/README.md"}
    assert {link for link in linked if f"({link})" not in text} == set()


def test_architecture_names_what_exists_and_every_room() -> None:
    assert list(missing(ARCHITECTURE)) == []
    text = ARCHITECTURE.read_text("utf-8") + (ROOT / "executors/llm/README.md").read_text("utf-8")
    for room in rooms_of_layers():
        assert room in text or f"`{room.removeprefix('executors/llm/')}/" in text, room


def test_a_missing_path_is_found(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("`server/` `x.py` `server/none.py` `none/` `--flag` `README.md` `a.b`")
    assert list(missing(page)) == ["x.py", "server/none.py", "none/"]
