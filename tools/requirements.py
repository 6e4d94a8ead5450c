"""Prints what the project and its dev extra require, except torch, which the Makefile installs on its own.

Torch comes from an index of the user's choice, in a version of the user's choice, and before anything
that could pull in another build of it.
"""

import re
import tomllib
from pathlib import Path


def requirements(pyproject: str) -> list[str]:
    project = tomllib.loads(pyproject)["project"]
    wanted: list[str] = project["dependencies"] + project["optional-dependencies"]["dev"]
    return [line for line in wanted if not re.match(r"torch\b", line)]


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text())))
