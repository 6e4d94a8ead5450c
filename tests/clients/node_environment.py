"""Clients for JavaScript: npm's packages below `.reports/clients/`, each of the version in `requirements/NAME/package-lock.json`.

To change a version: edit `package.json` there, and run `npm install --package-lock-only` beside it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import FOLDER, LISTS

_FILES = ("package.json", "package-lock.json")


@dataclass(frozen=True)
class NodeEnvironment:
    """`package`: the one that gives the version."""

    name: str
    package: str

    @property
    def wants(self) -> dict[str, str]:
        """Exact versions by package, as a user would install them."""
        return dict(json.loads((LISTS / self.name / "package.json").read_text())["dependencies"])

    @property
    def version(self) -> str:
        return self.wants[self.package]

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"

    def ensure(self) -> Path:
        """The Python that runs its checks, which start node; packages are installed where the list has changed since.

        Raises subprocess.CalledProcessError where npm fails or is missing.
        """
        listed = b"".join((LISTS / self.name / one).read_bytes() for one in _FILES)
        stamp, wanted = self.folder / ".installed", hashlib.sha256(listed).hexdigest()
        if not (stamp.exists() and stamp.read_text() == wanted):
            self.folder.mkdir(parents=True, exist_ok=True)
            for one in _FILES:
                shutil.copy(LISTS / self.name / one, self.folder)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            try:
                subprocess.run(command, cwd=self.folder, check=True)
            except FileNotFoundError:
                raise subprocess.CalledProcessError(127, command, stderr="npm is not installed") from None
            stamp.write_text(wanted)
        return Path(sys.executable)


AI_SDK = NodeEnvironment("ai-sdk", "ai")
