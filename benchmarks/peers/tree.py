"""Which code is measured: the commit of this checkout, and the files that differ from it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "benchmarks/results"


@dataclass(frozen=True, slots=True)
class Tree:
    """`commit`: None outside of a checkout. `changed`: changed and new files, without those that measuring itself writes."""

    commit: str | None
    changed: tuple[str, ...]


def state(root: Path = ROOT) -> Tree:
    """Ask git. A folder inside of somebody else's checkout is none."""
    if not (root / ".git").exists():
        return Tree(None, ())
    commit = _git(root, "rev-parse", "HEAD")
    lines = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", f":!{RESULTS}")
    return Tree(commit.strip() or None, tuple(line[3:] for line in lines.splitlines()))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30)
    return done.stdout if done.returncode == 0 else ""
