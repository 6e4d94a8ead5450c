"""`make gpu-wheels`: what server, engine, executors and tests/gpu import beside torch, triton, NumPy and safetensors, for a
machine that reaches no network. gpu-check unpacks what the Python there lacks, and nothing that it has: but for pytest with its
plugins, and FastAPI with what it stands on, which come as a whole or not at all.

    python -m tools.gpu_check.wheels [--folder .gpu-wheels]
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tools.gpu_check.log import ROOT

FOLDER = ROOT / ".gpu-wheels"
PYTHONS = ("3.11", "3.12")
NEEDED = {
    "msgspec": "msgspec",
    "setproctitle": "setproctitle",
    "llguidance": "llguidance",
    "tokenizers": "tokenizers",
    # The server, for load over HTTP, and its clients.
    "fastapi": "fastapi",
    "starlette": "starlette",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic_core",
    "opentelemetry-api": "opentelemetry",
    "annotated-doc": "annotated_doc",
    "annotated-types": "annotated_types",
    "typing-inspection": "typing_inspection",
    "anyio": "anyio",
    "sniffio": "sniffio",
    "idna": "idna",
    "uvicorn": "uvicorn",
    "click": "click",
    "h11": "h11",
    "httptools": "httptools",
    "uvloop": "uvloop",
    "prometheus_client": "prometheus_client",
    "rich": "rich",
    "Jinja2": "jinja2",
    "MarkupSafe": "markupsafe",
    # The tests.
    "gguf": "gguf",
    "structlog": "structlog",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "Pygments": "pygments",
    "pytest-asyncio": "pytest_asyncio",
    "typing_extensions": "typing_extensions",
    "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist",
    "execnet": "execnet",
    "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
}
"""Distribution -> the module that it brings."""
_NAMES = tuple(NEEDED)
FAMILY = _NAMES[_NAMES.index("pytest") :]
"""pytest, its plugins and what they need: made for each other's versions, so they come from one place."""
SERVER = (*_NAMES[_NAMES.index("fastapi") : _NAMES.index("uvloop")], "typing_extensions")
"""FastAPI and what it stands on, likewise: pydantic takes one version of its core, and no other."""
_PLATFORMS = ("manylinux_2_28", "manylinux_2_31", "manylinux_2_34", "manylinux_2_24", "manylinux_2_17", "manylinux2014",
              "manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1")  # fmt: skip
"""pip takes these by name: one that is older does not stand for it."""
MOST_BYTES = 60 << 20


def pinned(constraints: str) -> list[str]:
    """name==version of everything `NEEDED`, as constraints.txt has it. Raises ValueError for one that it does not name."""
    versions = {
        _plain(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", constraints, re.MULTILINE)
    }
    missing = [name for name in NEEDED if _plain(name) not in versions]
    if missing:
        raise ValueError(f"constraints.txt pins no version of {', '.join(missing)}")
    return [f"{name}=={versions[_plain(name)]}" for name in NEEDED]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def download(folder: Path) -> None:
    """Fetch wheels for x86-64 Linux and `PYTHONS`; those that suit several are there once. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    wanted = pinned((ROOT / "constraints.txt").read_text("utf-8"))
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    for python in PYTHONS:
        subprocess.run(
            [
                sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
                "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms, "--dest", str(folder),
                *wanted,
            ],
            check=True,
        )  # fmt: skip
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise ValueError(f"{folder} holds {size:,} bytes; {MOST_BYTES:,} can be carried")
    print(f"{folder}: {len(list(folder.glob('*.whl')))} wheels, {size / 1e6:.1f} MB")


def unpack_missing(folder: Path, target: Path) -> list[str]:
    """Unpack into `target` what this Python cannot import and `folder` has a wheel for, and all of `FAMILY` or `SERVER` where any
    of it comes from there; returns their modules."""
    there = {name: wheel for name in NEEDED if (wheel := _wheel_of(name, folder)) is not None}
    missing = {name for name in there if importlib.util.find_spec(NEEDED[name]) is None}
    families = [set(family) for family in (FAMILY, SERVER) if missing & set(family)]
    unpacked = [name for name in NEEDED if name in missing.union(*(there.keys() & one for one in families))]
    for name in unpacked:
        with zipfile.ZipFile(there[name]) as packed:
            packed.extractall(target)
    return [NEEDED[name] for name in unpacked]


def _wheel_of(name: str, folder: Path) -> Path | None:
    """The wheel of a distribution for this Python, if it is in the folder."""
    own = sys.version_info[:2]
    found = (
        wheel for wheel in sorted(folder.glob("*.whl")) if _plain(wheel.name.split("-")[0]) == _plain(name)
    )
    return next((wheel for wheel in found if suits(wheel.name, own)), None)


def suits(wheel: str, python: tuple[int, int]) -> bool:
    """Whether a wheel, by its name, is for this CPython: pure, of its version, or of the stable interface of an earlier one."""
    tags, interfaces = wheel.removesuffix(".whl").split("-")[-3:-1]
    own = f"cp{python[0]}{python[1]}"
    for tag in tags.split("."):
        if tag.startswith("py3") or (tag == own and own in interfaces.split(".")):
            return True
        stable = re.fullmatch(r"cp3(\d+)", tag)
        if stable and "abi3" in interfaces.split(".") and int(stable[1]) <= python[1]:
            return True
    return False


def main(argv: Iterable[str] | None = None) -> None:
    """Fetch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    download(parser.parse_args(None if argv is None else list(argv)).folder)


if __name__ == "__main__":
    main()
