"""An environment with Ray in `.reports/ray-venv`: `python -m tests.ray.environment` makes it where it is not there yet.

It has the packages of `requirements.txt` and sees those of the environment that runs this: torch is not installed a second time.
`python -m tests.ray.environment lock` writes that list anew from what the extra `ray` resolves to.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".reports/ray-venv"
PYTHON = FOLDER / "bin/python"
LIST = Path(__file__).with_name("requirements.txt")


def ensure() -> Path:
    """The environment's Python. Raises subprocess.CalledProcessError where pip fails."""
    stamp, wanted = FOLDER / ".installed", hashlib.sha256(LIST.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        _make()
        # The list is all there is to install: nothing to resolve, and no torch to be dragged in.
        _pip("install", "--quiet", "--no-deps", "-r", str(LIST))
        stamp.write_text(wanted)
    return PYTHON


def lock() -> None:
    """Install what the extra resolves to beside the main environment's packages, and list it."""
    _make()
    [wanted] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]["ray"]
    _pip("install", "--quiet", "-c", str(ROOT / "constraints.txt"), wanted)
    found = importlib.metadata.distributions(path=[str(_packages())])
    lines = sorted(f"{one.metadata['Name']}=={one.version}" for one in found)
    assert not any(re.match(r"(torch|nvidia)", line) for line in lines), "another torch was installed"
    LIST.write_text("\n".join(lines) + "\n")


def _make() -> None:
    # The main environment's pip installs into it: one of its own takes seconds to install.
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(FOLDER)], check=True)
    main = sysconfig.get_path("purelib")
    (_packages() / "main_environment.pth").write_text(f"import site; site.addsitedir({main!r})\n")
    command = FOLDER / "bin/cohort"
    command.write_text(f"#!{PYTHON}\nfrom cohort_server import main\n\nmain()\n")
    command.chmod(0o755)


def _packages() -> Path:
    return FOLDER / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check", *words]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    lock() if sys.argv[1:] == ["lock"] else ensure()
