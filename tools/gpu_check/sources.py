"""Which code a part ran, file by file, and which of these files are others now."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDER = Path(__file__).with_name("recorder")
"""On the PYTHONPATH of a part and of what it starts, it writes the modules that they import to the file that `VARIABLE` names."""
VARIABLE = "GPU_SOURCES"
_COMPILED = re.compile(r"""["'](\w+\.(?:cpp|cu))["']""")
_CODE = frozenset((".py", ".cpp", ".h", ".cu"))
_DIGITS = 8

Sources = dict[str, str]
"""Path below the root -> the first 8 hexadecimal digits of the SHA-256 of the file."""


def of_modules(recorded: Path, beside: Iterable[str] = (), root: Path = ROOT) -> Sources:
    """Of the modules that a file names, a name a line, with what they compile, and of the code in the files and folders
    `beside`. Names that are no file of the project are passed over."""
    names = set(recorded.read_text("utf-8").split()) if recorded.exists() else set()
    files = {file for name in names for file in _module(name, root)}
    files |= {
        file for one in beside for file in (root / one, *(root / one).rglob("*")) if file.suffix in _CODE
    }
    return {str(file.relative_to(root)): _digest(file) for file in sorted(files) if file.is_file()}


def _module(name: str, root: Path) -> Iterator[Path]:
    place = root.joinpath(*name.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            yield file
            for compiled in _COMPILED.findall(file.read_text("utf-8")):
                if (file.parent / compiled).is_file():
                    source = file.parent / compiled
                    yield from (source, *file.parent.glob("*.h"), *file.parent.glob(f"{source.stem}_*.cpp"))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]


def changed(sources: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Files that are gone or have another content now."""
    return [
        path
        for path, digest in sources.items()
        if not (root / path).is_file() or _digest(root / path) != digest
    ]


def nested(sources: Mapping[str, str]) -> dict[str, Sources]:
    """As a line of the log has them: by folder, then by name, which is half as long."""
    found: dict[str, Sources] = {}
    for path, digest in sources.items():
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, {})[name] = digest
    return found


def flat(folders: Mapping[str, Mapping[str, str]]) -> Sources:
    """The other way round."""
    return {
        f"{folder}/{name}" if folder else name: digest
        for folder, names in folders.items()
        for name, digest in names.items()
    }
