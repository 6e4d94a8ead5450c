"""What is kept of a check between calls: which parts are settled, and what each gave."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tools.gpu_check.plan import ROOT
from tools.neutral_paths import neutral

Figures = dict[str, Any]
_SOURCES = ("engine", "executors", "benchmarks/gpu", "benchmarks/shapes.py")
PART_SOURCES = {"tests": ("tests/gpu", "tests/executors", "tests/engine/harness.py", "tests/conftest.py")}
"""What a part alone depends on: an edit there settles nothing of the others anew."""


class State(StrEnum):
    """How a part ended. It "passed" only if it ran to its end here."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`settled` parts are not run again by a later call; `figures` may be those of a part that was cut off."""

    state: State
    seconds: float = 0.0
    detail: str = ""
    figures: Figures = field(default_factory=dict)
    settled: bool = True
    sources: str = ""
    """Digest of the part's own, by PART_SOURCES."""


@dataclass(slots=True)
class Record:
    """One check, over as many calls as it takes. Written by `conduct` only, after every part.

    `identity` says what was checked: the outcomes of other sources, of another device or torch, are not this check's.
    """

    identity: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    """Of all calls."""
    device_kind: str = ""
    """As which the machine was asked for, where somebody said so: `--device-kind`."""

    def save(self, path: Path) -> None:
        """Replace the file at once: one that is cut off leaves the one before."""
        write_json(path, neutral(asdict(self)))

    @staticmethod
    def load(path: Path) -> Record:
        """What a call before this one left; empty if there is nothing that can be read."""
        try:
            kept = json.loads(path.read_text("utf-8"))
            outcomes = {
                name: Outcome(**{**one, "state": State(one["state"])})
                for name, one in kept["outcomes"].items()
            }
            return Record(
                dict(kept["identity"]), outcomes, float(kept["seconds"]), str(kept.get("device_kind", ""))
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Record()


def write_json(path: Path, value: object) -> None:
    """Indented JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=2, default=str) + "\n", "utf-8")
    fresh.replace(path)


def sources_digest(root: Path = ROOT, names: Sequence[str] = _SOURCES) -> str:
    """Of code in files and folders, wherever it came from: a machine that computes may have no git. Of what is checked unless
    told otherwise."""
    digest = hashlib.sha256()
    found = (file for name in names for file in ((root / name), *(root / name).rglob("*")))
    for file in sorted(file for file in found if file.suffix in _CODE and file.is_file()):
        digest.update(f"{file.relative_to(root)}\0{len(file.read_bytes())}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


_CODE = frozenset((".py", ".cpp", ".h", ".cu"))
