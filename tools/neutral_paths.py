"""Takes the paths of one machine out of a result before it is recorded.

`neutral(value)` replaces, in every string of a JSON value: the checkout by a relative path, the home directory by `~`, the
folder for temporary files by `$TMPDIR`, any other absolute path by `.../` and its last name. Paths below /proc, /sys, /usr
and /dev stay, for they are the same on every machine; so do the HTTP paths below /v1, and paths of one part, such as /ready.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_KEPT = frozenset(("proc", "sys", "usr", "dev", "v1"))
_PATH = re.compile(r"(?:(?<=file://)|(?<![\w.~<>{}$/-]))(?:/[\w.@+-]+)+")
"""A slash inside a word, behind a variable or in the host of a URL begins no absolute path."""


def neutral(value: Any) -> Any:
    """Return a copy of a JSON value (mappings, lists, tuples, strings, numbers, None) whose strings name no machine's paths.

    Keys are treated as values are; tuples become lists.
    """
    places = _places()
    return _neutral(value, places)


def _places() -> dict[str, str]:
    """The folders that have a name of their own, the longest path first: one may lie in another."""
    named = {
        str(ROOT): ".",
        str(Path.home()): "~",
        tempfile.gettempdir(): "$TMPDIR",
    }
    return {folder: named[folder] for folder in sorted(named, key=len, reverse=True) if folder != "/"}


def _neutral(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PATH.sub(lambda found: _renamed(found.group(), places), value)
    if isinstance(value, Mapping):
        return {_neutral(key, places): _neutral(one, places) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_neutral(one, places) for one in value]
    return value


def _renamed(path: str, places: Mapping[str, str]) -> str:
    for folder, name in places.items():
        if path == folder:
            return name
        if path.startswith(f"{folder}/"):
            rest = path.removeprefix(f"{folder}/")
            return rest if name == "." else f"{name}/{rest}"
    parts = path.split("/")[1:]
    return path if len(parts) == 1 or parts[0] in _KEPT else f".../{parts[-1]}"
