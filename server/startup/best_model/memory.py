"""The last choice, so that the next start from the same disk takes no longer than one with a name.

    <cache>/choice/last.json    {"key", "free", "path", "package", "why"}

`key` is a digest of everything that a choice depends on but free memory: the models with their sizes and times, the settings and
the version. `free` is that memory, in bytes: with much less or more of it, or on a GPU, whose memory is not known here, the
choice is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from executors.contract import ConfigError, ExecutorConfig
from server import __version__
from server.model_files.candidates import NO_BOUND
from server.model_files.folders import Found, changed
from server.model_files.private_cache import cache_root, private_folder

FOLDER = "choice"
_FILE = "last.json"
_ENOUGH = 0.8
"""The smaller of the memory that was free then and the one that is free now, as a share of the larger."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A choice: the model by path and package, empty where none was good enough, and what a person is told."""

    path: str
    package: str
    why: str


def key_of(models: Iterable[Found], config: ExecutorConfig) -> str:
    """Return the digest of what a choice depends on."""
    facts = [
        (one.name, str(one.path), one.size, one.package, one.problem, changed(one.path)) for one in models
    ]
    return hashlib.sha256(repr((__version__, facts, config)).encode()).hexdigest()


def recall(key: str, free: int) -> Remembered | None:
    """Return the last choice if it is one for this key and for `free` bytes of memory."""
    try:
        stored = json.loads((cache_root() / FOLDER / _FILE).read_bytes())
    except (OSError, ValueError, RuntimeError):
        return None
    match stored:
        case {"key": str(of), "free": int(then), "path": str(path), "package": str(package), "why": str(why)}:
            if of == key and free != NO_BOUND and min(free, then) >= _ENOUGH * max(free, then):
                return Remembered(path, package, why)
    return None


def remember(key: str, free: int, choice: Remembered) -> None:
    """Store a choice in place of the last one. Failing to is no fault."""
    with contextlib.suppress(OSError, ConfigError):
        folder = private_folder(FOLDER)
        handle, name = tempfile.mkstemp(prefix=".", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"key": key, "free": free, **asdict(choice)}, file)
        Path(name).replace(folder / _FILE)
